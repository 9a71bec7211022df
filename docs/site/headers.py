# SPDX-License-Identifier: BSD-3-Clause
"""Doxygen's view of the public headers, and the directive that renders one header in the order of its lines.

    {doxygenheader} lockstep/ddp/options.h
"""

import hashlib
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path


def run_doxygen(root, folder):
    """Writes `folder`/xml. Returns what Doxygen warns of."""
    settings = (Path(root) / "docs/site/Doxyfile").read_text() + f"\nOUTPUT_DIRECTORY = {folder}\n"
    run = subprocess.run(["doxygen", "-"], input=settings, cwd=root, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"doxygen ended with {run.returncode}:\n{run.stderr}")
    return sorted(set(run.stderr.splitlines()))


def readable(xml):
    """Default arguments as Sphinx's parser of C++ reads them: it knows no designated initializers. Without lists of derived classes."""
    xml = re.sub(r"\s*<derivedcompoundref .*?</derivedcompoundref>", "", xml)
    return re.sub(r"<(defval|argsstring|initializer)>.*?</\1>", lambda match: re.sub(r"([{,]\s*)\.(\w+\s*=)", r"\1\2", match[0]), xml)


def version(root):
    """The parts of the version in version.h."""
    return re.findall(r"define LOCKSTEP_VERSION_\w+ (\d+)", (Path(root) / "include/lockstep/version.h").read_text())


def compounds(xml):
    """The classes, concepts and namespaces of Lockstep, and what the index calls each of them."""
    for entry in ET.parse(Path(xml) / "index.xml").getroot().iter("compound"):
        if entry.get("kind") in {"class", "struct", "union", "concept", "namespace"} and entry.findtext("name").startswith("lockstep"):
            yield entry.get("refid"), next(ET.parse(Path(xml) / f"{entry.get('refid')}.xml").getroot().iter("compounddef"))


def contents(xml):
    """header -> [(line, id of the compound, id of its member or None)], without classes inside of classes and specializations. A
    namespace that has a comment is part of the header that Doxygen names."""
    found, inner = {}, set()
    everything = list(compounds(xml))
    for refid, compound in everything:
        if compound.get("kind") != "namespace":
            inner |= {element.get("refid") for element in compound.findall("innerclass")}
    for refid, compound in everything:
        if compound.get("kind") == "namespace":
            if "".join(compound.find("detaileddescription").itertext()).strip():
                add(found, compound, refid, None)
            for member in compound.iter("memberdef"):
                add(found, member, refid, member.get("id"))
        elif refid not in inner and "<" not in compound.findtext("compoundname"):
            add(found, compound, refid, None)
    return {header: sorted(entries, key=lambda entry: entry[0]) for header, entries in found.items()}


def add(found, element, refid, member):
    location = element.find("location")
    found.setdefault(location.get("file"), []).append((int(location.get("line")), refid, member))


def setup(app):
    import docutils.nodes
    from breathe.directives import BaseDirective  # only Sphinx needs Breathe
    from breathe.parser import CompoundKind
    from sphinx import addnodes
    from breathe.renderer import TaggedNode, filter as breathe_filter
    from breathe.renderer.mask import NullMaskFactory
    from breathe.renderer.target import create_target_handler

    cache = {}

    def add_namespace(rendered, class_name):
        """Breathe shows it before functions, not before classes."""
        space, _, last = class_name.rpartition("::")
        for signature in [found for node in rendered for found in node.findall(addnodes.desc_signature)][:1]:
            name = next(found for found in signature.findall(addnodes.desc_name) if found.astext() == last)
            name.parent.insert(name.parent.index(name), addnodes.desc_addname(f"{space}::", f"{space}::"))

    def shorten_contents(rendered):
        for signature in [found for node in rendered for found in node.findall(addnodes.desc_signature)]:
            signature["_toc_name"] = re.sub(r"^(\w+::)+", "", signature.get("_toc_name", ""))

    class DoxygenHeader(BaseDirective):
        required_arguments = 1

        def run(self):
            project = self.project_info_factory.create_project_info({})
            index = self.get_doxygen_index(project)
            if not cache:
                cache.update(contents=contents(project.project_path()),
                             compounds={compound.refid: compound for group in index.compounds.values() for compound in group})
            return [node for _, refid, member in cache["contents"].get(self.arguments[0], [])
                    for node in self.nodes_of(project, index, cache["compounds"][refid], member)]

        def nodes_of(self, project, index, compound, member):
            if member is not None:
                entry = next(entry for entry in compound.member if entry.refid == member)
                return self.rendered(project, breathe_filter.extend_member_with_compound(self.dox_parser, project, entry, compound, index.root))
            if compound.kind == CompoundKind.namespace:
                definition = self.dox_parser.parse_compound(compound.refid, project).root.compounddef[0]
                stack = [TaggedNode("detaileddescription", definition.detaileddescription), TaggedNode("compounddef", definition)]
                return [docutils.nodes.rubric("", f"Namespace {compound.name}"), *self.rendered(project, stack)]
            shown = breathe_filter.create_class_filter(self.app, compound.name, {"members": "", "undoc-members": None})
            found = self.rendered(project, [TaggedNode("compound", compound), TaggedNode("doxygenindex", index.root)], shown)
            add_namespace(found, compound.name)
            return found

        def rendered(self, project, stack, shown=lambda _: True):
            found = self.render(stack, project, shown, create_target_handler({}, self.env), NullMaskFactory(), self.directive_args)
            shorten_contents(found)
            for block in [block for node in found for block in node.findall(docutils.nodes.literal_block)]:
                block["language"] = "cpp"
            return found

    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.*")))
    app.add_config_value("digest_of_site", hashlib.sha256(sources).hexdigest(), "env")  # all pages are read again when these files change
    app.add_directive("doxygenheader", DoxygenHeader)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
