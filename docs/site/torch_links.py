# SPDX-License-Identifier: BSD-3-Clause
"""Links names of PyTorch in the pages to PyTorch's documentation, by the table torch_names.txt."""

import re
from pathlib import Path

SITE = "https://docs.pytorch.org/"
NAME = re.compile(r"(\.?\w+(?:\.\w+)*)(?:\(.*\))?")
BEHIND = re.compile(r"(?:PyTorch|torchvision): (?:the \w+ )?$")


def table(path=Path(__file__).with_name("torch_names.txt")):
    """name -> address of its page, None where it has none"""
    found, page = {}, None
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            found.update((name, None if page == "-" else f"{SITE}{page.replace('*', name)}#{name}") for name in line.split())
        elif line and not line.startswith("#"):
            page = line
    return found


class Names:
    def __init__(self):
        self.pages, self.ends = table(), {}
        for name, page in self.pages.items():
            parts = name.split(".")
            for i in range(1, len(parts)):
                self.ends.setdefault(".".join(parts[i:]), set()).add(page)

    def page_of(self, text, names_pytorch):
        """The page of a literal; `names_pytorch`: it stands behind "PyTorch:", so the end of a name is enough if no other has it."""
        match = NAME.fullmatch(text)
        if match is None:
            return None
        pages = self.ends.get(match[1], set()) - {None} if names_pytorch else ()
        return self.pages.get(match[1]) or (next(iter(pages)) if len(pages) == 1 else None)


def setup(app):
    from docutils import nodes
    from sphinx.transforms.post_transforms import SphinxPostTransform
    from sphinx.util import logging

    names, log = Names(), logging.getLogger(__name__)

    class TorchLinks(SphinxPostTransform):
        default_priority = 300

        def run(self, **_):
            for literal in list(self.document.findall(nodes.literal)):
                parent = literal.parent
                before = parent[parent.index(literal) - 1] if parent.index(literal) else ""
                if any(isinstance(outer, nodes.reference) for outer in (parent, parent.parent)):
                    continue
                text = literal.astext()
                page = names.page_of(text, isinstance(before, nodes.Text) and BEHIND.search(before.astext()) is not None)
                if page is not None:
                    link = nodes.reference("", "", internal=False, refuri=page)
                    parent.replace(literal, link)
                    link += literal
                elif text not in names.pages and re.fullmatch(r"torch(vision)?(\.[A-Za-z]\w*)+(\(\))?", text):
                    log.warning("%s is not in docs/site/torch_names.txt", text, location=literal)

    app.add_post_transform(TorchLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
