"""Sphinx extension: formulas as MathML, which browsers draw themselves; the converter is the one inside docutils."""

from __future__ import annotations

import html
from typing import Any, NoReturn

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

LOG = logging.getLogger(__name__)


def _formula(node: nodes.Element, *, block: bool) -> str:
    try:
        return str(tex2mathml(node.astext(), as_block=block))
    except MathError as error:
        LOG.warning("formula %r: %s", node.astext(), error, location=node)
        return html.escape(node.astext())


def _inline(writer: Any, node: nodes.math) -> NoReturn:
    writer.body.append(_formula(node, block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> NoReturn:
    writer.body.append(f'<div class="formula">{_formula(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer; a formula that the converter does not know is a warning, and so fails the strict build."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
