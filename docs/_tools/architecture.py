"""Draws the map of the package in docs/architecture.md from the tree: rooms in their order, what they import, files."""

from __future__ import annotations

import ast
from pathlib import Path

DOCS = Path(__file__).parents[1]
PACKAGE = DOCS.parent / "src" / "cleverscore"
BEGIN, END = "<!-- drawn by: make reference; do not edit -->\n", "<!-- end of the drawing -->\n"
# Each room imports the rooms before it only; the files of the root come first (a test holds both).
ROOMS = (
    "models", "inputs", "tails", "estimators", "scores", "attacks", "certificates", "exact", "brackets", "loading",
    "runs", "reporting", "cli",
)  # fmt: skip
ENTRIES = ("__init__", "__main__", "pytest_plugin")  # what Python and pytest start with: they may import everything


def first_sentence(path: Path) -> str:
    """The first paragraph of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").rstrip(".")


def rooms_imported(room: Path) -> set[str]:
    """Names of the other rooms that the files of a room import; blocks for type checkers are left aside."""
    found = set()
    for path in room.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cleverscore"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name.split(".")[1] for name in names}
    return {name for name in found if (PACKAGE / name).is_dir()} - {room.name}


def _files(folder: Path, indent: str) -> list[str]:
    found = sorted(path for path in folder.glob("*.py") if path.stem not in ENTRIES)
    width = max((len(path.stem) for path in found), default=0)
    return [f"{indent}{path.stem.ljust(width)}  {first_sentence(path)}" for path in found]


def files(folder: Path, indent: str) -> list[str]:
    """A line for every file of a room, then its sub-rooms."""
    lines = _files(folder, indent)
    for sub in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines += [f"{indent}{sub.name}/  {first_sentence(sub / '__init__.py')}", *files(sub, indent + "    ")]
    return lines


def drawing() -> str:
    """The map as a block of text."""
    lines = ["(root)", *_files(PACKAGE, "    ")]
    for room in map(PACKAGE.joinpath, ROOMS):
        needs = ", ".join(sorted(rooms_imported(room))) or "the root alone"
        lines += ["", f"{room.name}/  {first_sentence(room / '__init__.py')}", f"    (imports {needs})"]
        lines += files(room, "    ")
    return "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"


def page() -> str:
    """docs/architecture.md with the drawing of the present tree."""
    text = (DOCS / "architecture.md").read_text()
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + drawing() + END + rest.partition(END)[2]
