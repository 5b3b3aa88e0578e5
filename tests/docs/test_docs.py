"""What README, docs and the notebook show is what happens, and nothing public is left out of them."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import blocks
import figures
import matplotlib.pyplot as plt
import navigation
import pytest
import reference

import cleverscore as cs
from cleverscore.cli.main import program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src").rglob("*.py")
    if path.name not in ("__main__.py", "train.py")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run_and_print_what_the_page_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for shown in blocks.run_page(page):
        assert shown.agrees, f"{shown.code}\nthe page shows\n{shown.text}\nbut it prints\n{shown.printed}"
    plt.close("all")


def test_the_demo_prints_what_the_readme_shows_and_writes_plots_and_a_report(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    text = readme.split("```text\n", 1)[1].split("```", 1)[0]
    printed = blocks.run_command(f"cleverscore demo --out {tmp_path / 'demo'}")
    table = "".join(printed.splitlines(keepends=True)[: text.count("\n")])
    shown = blocks.Shown("cleverscore demo", 0, 0, text, table)
    assert shown.agrees, f"README shows\n{text}\nbut the demo prints\n{table}"
    made = sorted(path.name for path in (tmp_path / "demo").glob("*.png"))
    assert made == [f"{name}-{norm}.png" for name in ("robust-accuracy", "scores", "tail") for norm in ("l2", "linf")]
    assert all((tmp_path / "demo" / name).stat().st_size > 5000 for name in made)
    assert "zoo:mnist-mlp" in (tmp_path / "demo" / "report.html").read_text()
    plt.close("all")


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in reference.PAGES], ids=lambda page: page.name)
def test_the_program_understands_every_command(page: Path) -> None:
    for arguments in blocks.commands(page):
        blocks.parse(arguments)


def test_a_wrong_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('score', 1.0)\n```\n\n```text\nscore 1.3\n```\n")
    assert [shown.agrees for shown in blocks.run_page(page)] == [False]
    assert blocks.write(page) == 1 and "score 1.0" in page.read_text()
    assert [shown.agrees for shown in blocks.run_page(page)] == [True]
    page.write_text("```console\n$ cleverscore --version\ncleverscore, version 99\n```\n")
    assert [shown.agrees for shown in blocks.run_page(page)] == [False]
    page.write_text("```sh\ncleverscore score a b --no-such-option 3\n```\n")
    with pytest.raises(Exception, match="no-such-option"):
        blocks.parse(*blocks.commands(page))


@pytest.mark.parametrize("module", [blocks, figures, navigation], ids=lambda module: module.__name__)
def test_examples_in_the_tools_run(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.failed == 0 and result.attempted


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells in order, in one namespace; lines for the notebook's own shell are left out."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells), "outputs are kept out of the repository"
    assert len(code) > 5
    names: dict = {"__name__": "notebook"}
    for number, cell in enumerate(code):
        plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", cell, flags=re.M)
        exec(compile(plain, f"{notebook.name}, cell {number}", "exec"), names)
    plt.close("all")


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_is_what_the_program_says(name: str) -> None:
    assert (DOCS / name).read_text() == reference.PAGES[name](), "run: make reference"


def test_every_command_and_option_is_documented() -> None:
    text, readme = (DOCS / "cli.md").read_text(), (ROOT / "README.md").read_text()
    for name, command in program.commands.items():
        assert f"\n## cleverscore {name}\n" in text
        assert f"cleverscore {name}" in readme
        assert command.help, name
        section = text.split(f"\n## cleverscore {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in section, f"{name} {option}"
                assert getattr(parameter, "help", ""), f"{name} {option} has no help"


def test_every_public_name_is_documented() -> None:
    text = (DOCS / "api.md").read_text()
    by_hand = "\n".join(page.read_text() for page in PAGES if page.name != "api.md")
    for name in cs.__all__:
        if not name.startswith("__"):
            assert re.search(rf"^###? cs\.{name}$", text, re.M), name
            assert f"cs.{name}" in by_hand, name
    for module in ("tails", "plots"):
        for name in getattr(cs, module).__all__:
            assert f"### cs.{module}.{name}\n" in text, name
            assert inspect.getdoc(getattr(getattr(cs, module), name))


def test_links_of_the_readme_lead_somewhere() -> None:
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", (ROOT / "README.md").read_text()):
        target = ROOT / path if path else ROOT / "README.md"
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}, anchor


def test_nothing_names_a_machine() -> None:
    for page in [*PAGES, *NOTEBOOKS]:
        assert not re.search(r"/tmp/|/home/|/root/|/work/", page.read_text()), page.name
