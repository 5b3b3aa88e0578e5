"""Markup, style and programs of the pages, and how they become one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from string import Template

__all__ = ["escape", "fill", "part"]


def part(name: str) -> str:
    """The text of one of the files here."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def fill(template: str, *, programs: tuple[str, ...], live: bool = False, **values: str) -> str:
    """A page with its style and its programs inside; `values` are markup already.

    The policy lets only this very style and this very program run, and forbids every request: what a name smuggled in
    would be inert even if it were not escaped. A live page may ask its own server.
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
    return Template(part(template)).substitute(values, style=style, program=program, policy="; ".join(rules))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
