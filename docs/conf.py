"""The site: `make docs` builds it with Sphinx, strictly, into build/site.

Sphinx because it is alive, works offline and fails on broken links, missing pages and unknown references; MyST because
the pages are Markdown and read well where they lie. Formulas become MathML; no page loads anything from elsewhere.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_tools"))

project = "cleverscore"
extensions = ["myst_parser", "navigation", "mathml"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_tools"]
nitpicky = True

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "cleverscore"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_permalinks_icon = "#"
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, sans-serif"},
    "dark_css_variables": {"font-stack": "system-ui, sans-serif"},
}
