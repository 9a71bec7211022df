# SPDX-License-Identifier: BSD-3-Clause
"""Settings of the documentation site. scripts/docs.sh calls Sphinx: docs/site/build.py prepares the pages."""

import sys
from pathlib import Path

here = Path(__file__).parent
sys.path.insert(0, str(here / "site"))
import headers  # noqa: E402 (beside this file)

project = "Lockstep"
copyright = "the authors of Lockstep"  # noqa: A001 (Sphinx's name)
release = ".".join(headers.version(here.parent))
version = release

extensions = ["myst_parser", "breathe", "sphinx_copybutton", "headers", "short_contents", "torch_links"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]  # output and pseudo-code in blocks of C++
breathe_projects = {"lockstep": str(here / "../build/docs/doxygen/xml")}
breathe_default_project = "lockstep"
breathe_domain_by_extension = {"h": "cpp"}
primary_domain = "cpp"
highlight_language = "text"
maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Lockstep {release}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_js_files = [("../../versions.js", {"priority": 10}), "site.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
html_sidebars = {
    "**": ["sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html",
           "sidebar/scroll-end.html"]
}
templates_path = ["site/templates"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
