"""The order of the parts: nothing upstream imports what is downstream of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

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


def test_nobody_but_the_command_line_imports_what_people_see() -> None:
    for path in FILES:
        here = path.relative_to(PACKAGE)
        if here.parts[0] in ("cli.py", "cli_results.py", "cli_score.py", "__main__.py", "show"):
            continue
        bad = {name for name in imports(path) if name.startswith(("cleverscore.reporting", "cleverscore.cli.main"))}
        assert not bad, f"{here} imports {bad}"


ORDER = [
    *(
        "errors",
        "checks",
        "allocator",
        "reasons",
        "norms",
        "streams",
        "regions",
        "text",
        "progress",
        "paired",
        "tails",
        "framing",
        "arrays",
        "classifier",
        "balls",
        "targets",
        "gradients",
        "chunks",
        "projections",
    ),
    *(
        "thin",
        "tuning",
        "maxima",
        "budget",
        "estimators",
        "summaries",
        "score",
        "racing",
        "subjects",
        "shortcuts",
        "sketches",
        "settings",
        "gathering",
        "scoring",
        "deciding",
        "cost",
        "attacks",
        "bounds",
    ),
    *("truth", "transforms", "zoo", "load", "run", "show", "cli_results", "cli_score", "cli", "pytest_plugin"),
]


def test_imports_flow_one_way() -> None:
    for path in FILES:
        here = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if here.startswith("__"):
            continue
        for name in imports(path):
            if name.startswith("cleverscore.") and name.split(".")[1] in ORDER:
                room = name.split(".")[1]
                assert ORDER.index(room) <= ORDER.index(here), f"{path.name} imports {name}"


def test_every_file_has_its_place_in_the_order() -> None:
    rooms = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in FILES}
    assert {room for room in rooms if not room.startswith("__")} == set(ORDER)
