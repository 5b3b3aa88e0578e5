"""The site builds strictly and loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["-q", "-W", "--keep-going", "-n", "-b", "html", str(source), str(target)]
    return subprocess.run([sys.executable, "-m", "sphinx", *arguments], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", target)
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text()
    for name in PAGES:
        assert (site / f"{name}.html").exists()
        assert name == "index" or f'href="{name}.html"' in index


def test_no_page_asks_another_machine_for_anything(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*", re.I)
    for page in site.rglob("*.html"):
        assert not loads.findall(page.read_text()), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet.name


def test_formulas_are_mathml(site: Path) -> None:
    text = (site / "mathematics.html").read_text()
    assert text.count("<math") > 20 and "\\frac" not in text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[away](nowhere.md)", "nowhere"),
        ("[away](other.md#no-such-part)", "no-such-part"),
        ("$$ \\nosuchcommand{x} $$", "nosuchcommand"),
    ],
)
def test_what_is_broken_fails(tmp_path: Path, text: str, complaint: str) -> None:
    source = small_site(
        tmp_path, index="# Small\n\n## Part\n\n- [Other](other.md): one\n", other=f"# Other\n\n{text}\n"
    )
    done = build(source, tmp_path / "site")
    assert done.returncode != 0 and complaint in done.stderr


def test_a_page_without_a_place_fails(tmp_path: Path) -> None:
    done = build(small_site(tmp_path, index="# Small\n", other="# Other\n"), tmp_path / "site")
    assert done.returncode != 0 and "toctree" in done.stderr


def test_a_sound_small_site_builds(tmp_path: Path) -> None:
    source = small_site(tmp_path, index="# Small\n\n## Part\n\n- [Other](other.md): one\n", other="# Other\n\n$x^2$\n")
    done = build(source, tmp_path / "site")
    assert done.returncode == 0, done.stderr


def small_site(folder: Path, **pages: str) -> Path:
    source = folder / "source"
    source.mkdir()
    shutil.copytree(ROOT / "docs" / "_static", source / "_static")
    configuration = (ROOT / "docs" / "conf.py").read_text()
    tools = f"Path({str(ROOT / 'docs' / '_tools')!r})"
    (source / "conf.py").write_text(configuration.replace('Path(__file__).parent / "_tools"', tools))
    for name, text in pages.items():
        (source / f"{name}.md").write_text(text)
    return source
