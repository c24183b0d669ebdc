"""Sphinx makes a site of the pages in docs/ and benchmarks/ by these settings: `make site`, from the root.

The pages stay plain Markdown that reads well on a forge, too. Nothing in the site is fetched from elsewhere.
"""

from heterps import __version__

project = "heterps"
release = __version__
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/**", "CHANGELOG.md", "SECURITY.md"]
exclude_patterns = ["docs/_build", "docs/site", ".*", "src", "tests", "tools", "examples", "data", "runs", "demo"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4  # links to headings, with the names that a forge gives them
highlight_language = "text"  # drawings and output; code blocks name their language

html_theme = "furo"
html_title = "heterps"
html_static_path = ["static"]
html_js_files = ["keyboard.js"]
html_extra_path = ["site"]  # index.html, which leads to docs/index.html
html_copy_source = False
html_show_copyright = False
