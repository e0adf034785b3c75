"""Sphinx configuration: `make docs` builds the site with warnings as errors, for reading without a network."""

import importlib.util
import sys
from pathlib import Path

import rl_training

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))


def mathjax_file() -> str:
    """MathJax with its fonts in one file, from the package that carries it."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError('the documentation needs: pip install "rl-training[docs]"')
    return str(Path(spec.origin).parent / "static" / "mathjax" / "tex-svg.js")


project = "rl_training"
author = "the developers of rl_training"
release = version = rl_training.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "pages",
]
exclude_patterns = ["_build", "_ext"]
highlight_language = "none"

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
"""Anchors as code hosts make them, so that one link works in both places."""

html_theme = "furo"
html_title = "rl_training"
html_static_path = ["_static", mathjax_file()]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_copyright = False
html_show_search_summary = False
"""The summaries are fetched, which browsers refuse for files."""
html_copy_source = False
mathjax_path = "tex-svg.js"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"EnvLike": "EnvLike", "Array": "Array"}
default_role = "code"
"""Docstrings mark code with single backticks."""
