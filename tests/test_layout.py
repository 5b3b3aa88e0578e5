"""The order of the parts: nothing upstream imports what is downstream of it."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from architecture import ENTRIES, ROOMS

PACKAGE = Path(__file__).parents[1] / "src" / "cleverscore"
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Modules that a file imports, type-checking blocks left aside; relative ones resolved."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) + "." if node.level else ""
            found |= {f"{base}{node.module or ''}".rstrip("."), *(f"{base}{node.module}.{a.name}" for a in node.names)}
    return found


def test_tails_never_needs_torch() -> None:
    for path in FILES:
        if "tails" in path.parts:
            allowed = ("numpy", "scipy", "cleverscore.tails", "cleverscore.errors", "cleverscore.validation")
            for name in imports(path):
                if name.startswith(("torch", "cleverscore")):
                    assert name.startswith(allowed), f"{path.name} imports {name}"
    code = "import sys, cleverscore.tails; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(PACKAGE.parent)}).returncode == 0


def test_reading_a_run_needs_no_torch() -> None:
    read = "cleverscore.runs.results, cleverscore.cli.main, cleverscore.reporting.export, cleverscore.reporting.gate"
    code = f"import sys, {read}, cleverscore.reporting.html.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(PACKAGE.parent)}).returncode == 0


ROOT = {"errors", "norms", "progress", "randomness", "threads", "validation"}
MOST_FILES = 16  # of a room without sub-rooms, `__init__` among them


def room(module: str) -> int:
    """The place of a module's room in the order, 0 for the root."""
    first = module.split(".")[1]
    return 0 if first in {*ROOT, "__version__"} else 1 + ROOMS.index(first)


def test_rooms_import_only_rooms_before_them() -> None:
    for path in FILES:
        here = path.relative_to(PACKAGE.parent).with_suffix("")
        if len(here.parts) == 2 and here.parts[1] in ENTRIES:
            continue
        mine = room(".".join(here.parts))
        for name in imports(path):
            if name.startswith("cleverscore."):
                assert room(name) <= mine, f"{here} imports {name}"


def test_the_root_has_its_few_files_and_all_rooms() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*ROOT, *ENTRIES}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ROOMS)


def test_no_room_is_crowded() -> None:
    folders = {path.parent for path in FILES}
    crowded = {str(folder): count for folder in folders if (count := len(list(folder.glob("*.py")))) > MOST_FILES}
    assert not crowded


def test_tests_mirror_the_rooms() -> None:
    tests = Path(__file__).parent
    rooms = {path.parent.name for path in tests.glob("*/__init__.py")}
    assert set(ROOMS) <= rooms <= {*ROOMS, "docs", "paper"}


@pytest.mark.parametrize("path", sorted((PACKAGE.parents[1] / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_follow_what_they_import(path: Path) -> None:
    """Nobody runs all of them at each change: a name that moved is found here."""
    importlib.import_module(f"benchmarks.{path.stem}")
