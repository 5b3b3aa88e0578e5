"""Start the small study again and again, and kill it with SIGKILL: `python -m tests.runs.killed FOLDER KILLS SEED`.

Python and torch are loaded once: every run is a fork of a process that has not computed anything yet.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.runs.studies import run


def main(folder: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            run(folder)
            os._exit(0)
        time.sleep(chance.uniform(0.05, 0.35))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
