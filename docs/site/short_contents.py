# SPDX-License-Identifier: BSD-3-Clause
"""The navigation shows titles of pages only. Sphinx would copy every heading and declaration of the site into every page of it, for
minutes, and the theme drop them."""

from sphinx import addnodes
from sphinx.environment.adapters.toctree import TocTree

contents = {}


def keep_titles(app, builder):
    for page, toc in list(app.env.tocs.items()):
        contents[page] = toc
        short = toc.deepcopy()
        for item in list(short.findall(lambda node: node.tagname == "list_item")):
            if item.parent is not None and item.parent is not short and not list(item.findall(addnodes.toctree)):
                item.parent.remove(item)
        app.env.tocs[page] = short


def show_contents(app, page, template, context, doctree):
    if page in contents:
        short, app.env.tocs[page] = app.env.tocs[page], contents[page]
        context["toc"] = app.builder.render_partial(TocTree(app.env).get_toc_for(page, app.builder))["fragment"]
        app.env.tocs[page] = short
        context["furo_hide_toc"] = context["toc"].count("<li") < 2


def setup(app):
    app.connect("write-started", keep_titles)
    app.connect("html-page-context", show_contents, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
