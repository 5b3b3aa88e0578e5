"""HTML, CSS and scripts of the pages, and how they become one self-contained file."""

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
    """A page with its style and its programs inside; `values` are markup already.

    The content security policy allows only this style and this script, and forbids every request; so markup that is
    smuggled in by a name has no effect, even if it were not escaped. A live page may send requests to its own server.
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
