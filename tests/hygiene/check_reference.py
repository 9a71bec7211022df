# SPDX-License-Identifier: BSD-3-Clause
"""Public names and their members have comments: check_reference.py <root of the project> [--missing]

Doxygen reads include/. A name is a class, concept, enumeration, alias, function or variable of a namespace; a member is what a
public class or enumeration contains, without constructors: the class says what makes it. Overloads are one name: one comment is
enough for them, and for a call and its _async form. --missing lists what has no comment.
"""

import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/site"))
import headers

# Per cent that must have a comment. Raise them when more have one.
LEAST = {"names": 100.0, "members": 97.0}
CLASSES = {"class", "struct", "union", "concept"}


def has_comment(element):
    return any("".join(element.find(kind).itertext()).strip()
               for kind in ("briefdescription", "detaileddescription") if element.find(kind) is not None)


def place_of(element):
    location = element.find("location")
    return f"{location.get('file')}:{location.get('line')}"


def needs_none(member):
    """What the language, the base class or the class itself (its constructors) already describes."""
    name, arguments = member.findtext("name"), member.findtext("argsstring") or ""
    is_constructor = member.get("kind") == "function" and not "".join(member.find("type").itertext())  # also one that is inherited
    return (member.get("kind") == "friend" or is_constructor or name.startswith(("~", "operator"))
            or member.find("reimplements") is not None or " override" in arguments or arguments.endswith("=delete"))


class Coverage:
    def __init__(self):
        self.kinds = {"names": {}, "members": {}}  # name -> (has a comment, place)

    def add(self, kind, name, element, commented=None):
        commented = has_comment(element) if commented is None else commented
        before, place = self.kinds[kind].get(name, (False, place_of(element)))
        self.kinds[kind][name] = (before or commented, place)

    def add_members(self, compound, owner):
        for member in compound.iter("memberdef"):
            if member.get("prot") == "public" and not needs_none(member):
                self.add("members", f"{owner}::{member.findtext('name')}", member)
                self.add_enumerators(member, owner)

    def add_enumerators(self, member, owner):
        for value in member.findall("enumvalue"):
            self.add("members", f"{owner}::{member.findtext('name')}::{value.findtext('name')}", member, has_comment(value))

    def add_compound(self, compound):
        name = compound.findtext("compoundname").split("<")[0].strip()
        if compound.get("kind") == "namespace" and name.startswith("lockstep"):
            for member in compound.iter("memberdef"):
                if not member.findtext("name").startswith("operator"):
                    self.add("names", f"{name}::{member.findtext('name')}", member)
                    self.add_enumerators(member, name)
        elif compound.get("kind") in CLASSES and compound.get("prot", "public") == "public" and name.startswith("lockstep"):
            self.add("names", name.removesuffix("Impl"), compound)  # a module's holder and its implementation are one name
            self.add_members(compound, name)

    def missing(self, kind):
        entries = self.kinds[kind]
        return [f"{place}: {name}" for name, (commented, place) in entries.items()
                if not commented and not entries.get(name.removesuffix("_async"), (False, ""))[0]]

    def per_cent(self, kind):
        total = max(1, len(self.kinds[kind]))
        return 100 * (total - len(self.missing(kind))) / total


def coverage(root):
    """The coverage of the headers below `root`, and Doxygen's warnings."""
    found = Coverage()
    with tempfile.TemporaryDirectory() as folder:
        warnings = headers.run_doxygen(root, folder)
        for path in sorted(Path(folder).glob("xml/*.xml")):
            for compound in ET.parse(path).getroot().iter("compounddef"):
                found.add_compound(compound)
    return found, warnings


def main(root, *options):
    found, failures = coverage(root)
    for kind, least in LEAST.items():
        per_cent, missing = found.per_cent(kind), found.missing(kind)
        print(f"{kind}: {len(found.kinds[kind]) - len(missing)} of {len(found.kinds[kind])} have a comment ({per_cent:.1f} %)")
        if "--missing" in options or per_cent < least:
            print(*(f"  {line}" for line in sorted(missing)), sep="\n")
        if per_cent < least:
            failures.append(f"{per_cent:.1f} % of the public {kind} have a comment, fewer than {least} %: add one to what is new")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main(*sys.argv[1:])
