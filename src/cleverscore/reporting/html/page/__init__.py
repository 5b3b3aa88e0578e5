"""Reads the HTML, CSS and scripts of the pages from this folder, and joins them to one self-contained page."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from string import Template

__all__ = ["escape", "fill", "part"]


def part(name: str) -> str:
    """The text of one of the files in this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def fill(template: str, *, programs: tuple[str, ...], live: bool = False, **values: str) -> str:
    """A page with its style and its programs inside.

    template    the file with the page's body, in which each $name is replaced by a value.
    programs    the files of the page's script, in order.
    live        whether the page may send requests to its own server.
    values      the values by name, as markup: names of models, for example, must be escaped already.

    The content security policy allows only this style and this script, and forbids every other request. So even if a
    name were not escaped, markup in it could neither run code nor load anything.
    """
    style = part("page.css")
    program = "(() => {\n" + "\n".join(map(part, programs)) + "\n})();"
    rules = [
        "default-src 'none'",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(program)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if live else []),
    ]
    body = Template(part(template)).substitute(values)
    frame = Template(part("frame.html"))
    return frame.substitute(values, body=body, style=style, program=program, policy="; ".join(rules))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
