"""How Sphinx builds the pages. It imports nothing of the package, and so needs neither torch nor a GPU."""

from __future__ import annotations

project = "Shoal"
author = "the Shoal contributors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True  # A reference that leads nowhere is a warning, and a warning fails the build.
smartquotes = False  # It would turn the two hyphens of a flag into a dash.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Shoal"
