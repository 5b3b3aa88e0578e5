"""What pages show is what happens: code blocks of a Markdown page, run from top to bottom.

```python    is executed; the blocks of a page share their names.
```text      directly after a python block is what that block prints.
```console   holds `$ cleverscore ...` and what the program prints on stdout.
```sh        and every other `cleverscore ...` line is only parsed by the program's own parser: it has placeholders.

Numbers are compared to a relative 2%, since machines differ in the last digits; all else must be equal. After a change,
    python docs/_tools/blocks.py docs/faq.md
writes what is printed now into the page.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
COMMAND = re.compile(r"^(?:\$ |    )?(cleverscore [^\n]*)$", re.M)
CLOSE = 0.02


@dataclass(frozen=True)
class Shown:
    """Something a page shows as printed: by which code, where in the page, and what was printed just now."""

    code: str
    start: int
    end: int
    text: str
    printed: str

    @property
    def agrees(self) -> bool:
        """Whether the page is right."""
        return same(self.text, self.printed)


def same(shown: str, printed: str) -> bool:
    """Whether two texts differ in nothing but the last digits of numbers and in spaces.

    >>> same("score 0.6266", "score  0.6267"), same("score 0.62", "score 0.72"), same("ok", "poor")
    (True, False, False)
    """
    words = [" ".join(NUMBER.sub("#", text).replace("-", " ").split()) for text in (shown, printed)]
    numbers = [[float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (shown, printed)]
    return words[0] == words[1] and all(
        math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-9) for one, other in zip(*numbers, strict=True)
    )


def run_page(page: Path) -> Iterator[Shown]:
    """Run the blocks of a page in the current folder and yield what it shows and what was printed."""
    text = page.read_text()
    names: dict[str, Any] = {"__name__": "page"}
    printed, code, ended = "", "", -1
    for block in FENCE.finditer(text):
        body, (start, end) = block["text"], block.span("text")
        if block["kind"] == "python":
            out = io.StringIO()
            line = text.count("\n", 0, start)
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * line + body, str(page.name), "exec"), names)
            printed, code, ended = out.getvalue(), body, block.end()
        elif block["kind"] == "text" and ended >= 0 and not text[ended : block.start()].strip():
            yield Shown(code, start, end, body, printed)
        elif block["kind"] == "console":
            yield from _session(body, start)


def _session(body: str, offset: int) -> Iterator[Shown]:
    starts = [match.start() for match in re.finditer(r"^\$ ", body, re.M)]
    for start, stop in zip(starts, [*starts[1:], len(body)], strict=True):
        command, _, shown = body[start:stop].partition("\n")
        place = offset + start + len(command) + 1
        yield Shown(command, place, offset + stop, shown, run_command(command.removeprefix("$ ")))


def run_command(command: str) -> str:
    """What `cleverscore ...` prints on stdout, in this process: a new one would import torch each time."""
    from cleverscore.cli.main import main

    out, errors = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, shlex.split(command, comments=True)
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("default")  # the program shows warnings by itself
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
    if code not in (0, None, 1):  # 1 is a gate that failed, which a page may show
        raise RuntimeError(f"{command}: exit code {code}: {errors.getvalue()}")
    return out.getvalue()


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `cleverscore` line in the blocks of a page, descriptions after two spaces left out."""
    found = []
    for line in COMMAND.findall(page.read_text()):
        command = re.split(r"\s{2,}|\s#\s", line)[0]
        found.append(shlex.split(command)[1:])
    return found


def parse(arguments: list[str]) -> None:
    """Let the program's own parser read arguments, without running anything; raises a click error."""
    from cleverscore.cli.main import program

    if not arguments or arguments[0].startswith("-"):
        program.make_context("cleverscore", list(arguments) or ["--help"], resilient_parsing=True)
        return
    name, *rest = arguments
    command = program.commands.get(name)
    if command is None:
        raise LookupError(f"there is no command {name!r}")
    command.make_context(name, rest)


def write(page: Path) -> int:
    """Put what is printed now into a page; returns how many places changed."""
    text, shift, changed = page.read_text(), 0, 0
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            results = list(run_page(page))
        finally:
            os.chdir(here)
    for shown in results:
        if not shown.agrees:
            text = text[: shown.start + shift] + shown.printed + text[shown.end + shift :]
            shift += len(shown.printed) - (shown.end - shown.start)
            changed += 1
    page.write_text(text)
    return changed


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {write(Path(name).resolve())} places changed")
