"""Sphinx extension: docs/index.md is the navigation, and tables written by benchmarks get a title.

Every list item `- [title](page.md): ...` under a heading of index.md puts that page under that heading of the side bar.
To add a page, add its line; a page without one fails the strict build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ITEM = re.compile(r"^- \[[^\]]+\]\((?P<page>[\w-]+)\.md\)", re.M)
MEASURED = "Measured"


def toctree(caption: str, pages: list[str]) -> str:
    """Sphinx's own notation of one part of the navigation."""
    listed = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def navigation(index: str, tables: list[str]) -> str:
    r"""One part for each heading of the index that lists pages, and one for tables that benchmarks wrote.

    >>> print(navigation("## Use\n- [Models](models.md): all\n## Other\ntext", []).strip().splitlines()[-2:])
    ['models', '```']
    """
    parts = re.split(r"^## (.+)$", index, flags=re.M)
    trees = [
        toctree(caption, ITEM.findall(text))
        for caption, text in zip(parts[1::2], parts[2::2], strict=True)
        if ITEM.search(text)
    ]
    return "".join(trees) + (toctree(MEASURED, tables) if tables else "")


def _prepare(app: Any, name: str, source: list[str]) -> None:
    if name == "index":
        tables = sorted(path.stem for path in Path(app.srcdir).glob("_*_benchmark.md"))
        source[0] += navigation(source[0], tables)
    elif name.startswith("_"):
        example = name.strip("_").removesuffix("_benchmark")
        text = re.sub(r"^#{2,3} ", "## ", source[0], flags=re.M)
        source[0] = f"# Measured: {example.replace('_', ' ')}\n\n{text}"


def setup(app: Any) -> dict[str, bool]:
    """Connect to the reading of pages."""
    app.connect("source-read", _prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
