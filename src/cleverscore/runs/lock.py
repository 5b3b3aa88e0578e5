"""One writer per run directory: a lock that the system releases when the process ends, even if it crashes."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from cleverscore.errors import StoreError

FILE_NAME, OWNER_NAME = "run.lock", "run.owner"


class RunLock:
    """The lock of a run directory, held by the process that writes; readers do not need it."""

    def __init__(self, folder: Path) -> None:
        owner = folder / OWNER_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / FILE_NAME, timeout=0)
            self._lock.acquire()
        except Timeout as error:
            name = owner.read_text() if owner.is_file() else "another process"
            raise StoreError(
                f"{folder} is being written by {name}: wait until it ends, or choose another --out; "
                "show, report and export can read it meanwhile"
            ) from error
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
        with suppress(OSError):  # a full disk: the lock holds, only the name of its owner is missing
            owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")

    def release(self) -> None:
        """Release the lock, so that another process can write."""
        self._lock.release()
