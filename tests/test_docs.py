"""Every Python block in README and docs runs; every command and public name is mentioned."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import cleverscore as cs
from cleverscore.cli import program

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src").rglob("*.py")
    if path.name not in ("__main__.py", "train.py")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one page share their names, top to bottom."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        exec(compile(block, f"{page.name}", "exec"), names)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    for command in program.commands:
        assert f"cleverscore {command}" in text, command


def test_readme_names_every_public_name() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for name in cs.__all__:
        if not name.startswith("__"):
            assert f"cs.{name}" in text, name
