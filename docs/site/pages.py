# SPDX-License-Identifier: BSD-3-Clause
"""The pages of the site from the files of the project: links, navigation, one page of the reference for each folder of headers.

docs/README.md becomes the start page, and its headings with their links the navigation. A linked file outside of docs/ becomes a
page of its own below project/.
"""

import hashlib
import posixpath
import re
from pathlib import Path

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
OTHER_SITE = re.compile(r"[a-z]+:|#")
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".cmake": "cmake"}
# The themes of the reference in the order of its pages: folder of include/lockstep -> title. A new folder needs a line.
THEMES = {
    "rendezvous": "Start of a rank", "comm": "Process groups", "runtime": "Default group and meshes", "spawn": "Processes",
    "backends": "Backends", "base": "Errors and settings", "node": "Recorded calls",
    "ddp": "DistributedDataParallel", "fsdp": "Sharding", "tensor_parallel": "Tensor parallelism", "pipelining": "Pipelines",
    "context_parallel": "Context parallelism", "nn": "Layers and averages", "amp": "Mixed precision", "optim": "Optimizers",
    "graphs": "CUDA graphs", "device": "Devices and memory", "serialize": "Values and files", "checkpoint": "Checkpoints",
    "data": "Data", "transforms": "Transforms", "models": "Models", "metrics": "Metrics", "training": "Training loop",
}


class Site:
    """Pages by the name of their file below the source folder of Sphinx, and other files that they show."""

    def __init__(self, root):
        self.root, self.texts, self.files = Path(root), {}, {}
        self.navigation = set()

    def page_of(self, path):
        """The page of a file of the project, such as docs/ddp.md; None for a folder without README.md."""
        if (self.root / path).is_dir():
            if not (self.root / path / "README.md").exists():
                return None
            path = posixpath.join(path, "README.md")
        page = re.sub(r"(^|/)README\.md$", r"\1index.md", path.removeprefix("docs/")) if path.startswith("docs/") else "project/" + path
        if path.startswith("include/lockstep/") and path.count("/") == 3:
            return f"api/{path.split('/')[2]}.md"
        return page if path.startswith("docs/") or path.endswith(".md") else page + ".md"

    def add(self, path):
        """Adds the page of a file of the project, and those of the files that it links."""
        page, source = self.page_of(path), self.root / path
        if source.is_dir():
            path, source = posixpath.join(path, "README.md"), source / "README.md"
        if page in self.texts or page in self.files or page.startswith("api/"):
            return
        if path.startswith("docs/") and source.suffix != ".md":
            self.files[page] = source.read_bytes()
        elif source.suffix == ".md":
            self.texts[page] = ""
            self.texts[page] = self.with_links(source.read_text(), path, page)
        else:
            language = LANGUAGES.get(source.suffix, "text")
            self.texts[page] = f"# {path}\n\n`````{{code-block}} {language}\n:linenos:\n\n{source.read_text()}\n`````\n"

    def with_links(self, text, path, page):
        lines, fence = [], None
        for line in text.splitlines():
            mark = re.match(r"\s*(`{3,}|~{3,})", line)
            if mark and fence is None:
                fence = mark[1]
            elif mark and mark[1].startswith(fence):
                fence = None
            elif fence is None:
                line = LINK.sub(lambda match: self.link(match, path, page), line)
            lines.append(line)
        return "\n".join(lines) + "\n"

    def link(self, match, path, page):
        mark, text, target = match.groups()
        if OTHER_SITE.match(target):
            return match[0]
        name, _, anchor = target.partition("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if linked.startswith("../") or not (self.root / linked).exists():
            raise SystemExit(f"{path} links {target}, which does not exist")
        other = self.page_of(linked)
        if other is None:
            return text
        self.add(linked)
        return f"{mark}[{text}]({posixpath.relpath(other, posixpath.dirname(page))}{'#' + anchor if anchor else ''})"

    def linked_pages(self, text, page):
        """The pages that `text` links, in order, each once in the whole site."""
        for match in LINK.finditer(text):
            target = match[3].partition("#")[0]
            name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            if not match[1] and target.endswith(".md") and not OTHER_SITE.match(match[3]) and "#" not in match[3] and name not in self.navigation:
                self.navigation.add(name)
                yield posixpath.relpath(name, posixpath.dirname(page)).removesuffix(".md")

    def add_navigation(self):
        """The start page's headings become captions; an index.md in a subfolder leads to the pages that it links."""
        start = self.texts["index.md"]
        self.navigation.add("index.md")
        parts = re.split(r"^## (.*)\n", start, flags=re.M)
        trees = [(caption, list(self.linked_pages(text, "index.md"))) for caption, text in zip(parts[1::2], parts[2::2])]
        if "Reference" not in dict(trees):
            trees.append(("Reference", []))
        for caption, pages in trees:
            start += tree(pages + ["api/index"] * (caption == "Reference"), caption)
        self.texts["index.md"] = start
        for page in sorted(page for page in self.texts if page.endswith("/index.md") and page in self.navigation):
            folder = posixpath.dirname(page)
            pages = [name for name in self.linked_pages(self.texts[page], page) if not name.startswith("..") and f"{folder}/{name}.md" in self.texts]
            self.texts[page] += tree(pages) if pages else ""
        for page in self.texts:
            if page.startswith("project/") and page not in self.navigation:
                self.texts[page] = "---\norphan: true\n---\n" + self.texts[page]

    def add_reference(self, contents):
        """One page for each folder of public headers, described by the table of layers in CONTRIBUTING.md. A comment in it changes with
        `contents`, what each header declares, so that Sphinx reads the page again."""
        rows = re.findall(r"^\| \w+ \| `(\w+)` \| (.*?) \| [^|]* \|$", (self.root / "CONTRIBUTING.md").read_text(), flags=re.M)
        about = dict(rows)
        public = self.root / "include/lockstep"
        headers = sorted(path.relative_to(public.parent).as_posix() for path in public.rglob("*.h") if "detail" not in path.parts)
        by_folder = {}
        for header in headers:
            by_folder.setdefault(posixpath.dirname(header).removeprefix("lockstep").strip("/"), []).append(header)
        new = set(by_folder) - set(THEMES) - {""}
        if new or set(THEMES) - set(by_folder):
            raise SystemExit(f"THEMES in docs/site/pages.py and the folders of include/lockstep differ: {sorted(new ^ (set(THEMES) - set(by_folder)))}")
        index = ["# API", "", "Every public header by theme. Include a single header, or one of those that include others:", "", "| header | includes |", "|---|---|"]
        for header in by_folder[""]:
            included = re.findall(r"#include <(lockstep/.*?)>", (public.parent / header).read_text())
            index.append(f"| `<{header}>` | {', '.join(f'`{name}`' for name in summary(included)) or 'the version, for the preprocessor'} |")
        index += ["", "| page | what it has |", "|---|---|"]
        index += [f"| [{title}]({folder}.md) | {about.get(folder, '')} |" for folder, title in THEMES.items()]
        self.texts["api/index.md"] = "\n".join(index) + tree(list(THEMES))
        for folder, title in THEMES.items():
            parts = [f"# {title}\n"]
            for header in by_folder[folder]:
                declared = [(compound, member) for _, compound, member in contents.get(header, [])]
                digest = hashlib.sha256(repr(declared).encode()).hexdigest()
                parts.append(f"## `<{header}>`\n\n% {digest}\n\n```{{doxygenheader}} {header}\n```\n")
            self.texts[f"api/{folder}.md"] = "\n".join(parts)


def summary(included):
    """Folders in place of their headers."""
    return sorted({f"{name.rsplit('/', 1)[0]}/" if name.count("/") > 1 else name for name in included})


def tree(pages, caption=""):
    caption = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(pages) + "\n```\n"


def site_of(root, contents):
    site = Site(root)
    for path in sorted((site.root / "docs").rglob("*.md")):
        site.add(path.relative_to(site.root).as_posix())
    site.add_reference(contents)
    site.add_navigation()
    return site
