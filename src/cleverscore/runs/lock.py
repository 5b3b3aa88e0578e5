"""One writer per run directory: a lock that the system releases however the process ends."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import IO

from cleverscore.errors import StoreError

FILE_NAME = "run.lock"


class RunLock:
    """Held by the process that writes to a run; readers do not need it."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
        if not _take(self._file):
            self._file.seek(0)
            owner = self._file.read().strip() or "another process"
            self._file.close()
            raise StoreError(
                f"{folder} is being written by {owner}: wait until it ends, or choose another --out; "
                "show, report and export can read it meanwhile"
            )
        try:
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._file.flush()
        except OSError:  # a full disk: the lock holds, only the name of its owner is missing
            pass

    def release(self) -> None:
        """Let others write."""
        self._file.close()


if sys.platform == "win32":

    def _take(file: IO[str]) -> bool:
        import msvcrt

        try:
            file.seek(2**30)  # beyond the text, so that others can read who holds the lock
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:

    def _take(file: IO[str]) -> bool:
        import fcntl

        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
