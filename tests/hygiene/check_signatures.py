# SPDX-License-Identifier: BSD-3-Clause
"""Our names, arguments and defaults beside PyTorch's: check_signatures.py <root of the project> [--update]

Reads PyTorch's signatures from the installed torch and torchvision, and ours from Doxygen's XML of the headers; the fields of a
structure of options count as arguments. docs/signature-differences.md lists every difference with its reason. The check fails
when a difference is not in the list, has no reason there, or no longer exists. --update rewrites the list and keeps the reasons.
"""

import datetime
import enum
import importlib
import inspect
import re
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "docs/site"), str(TOP / "tests/support")]
import headers
from signature_pairs import GROUP, LISTS, PAIRS

PAGE = "docs/signature-differences.md"
SECTIONS = ("torch", "torch.distributed", "torch.distributed.checkpoint", "torch.distributed.pipelining", "torch.distributed.tensor",
            "torch.optim", "torch.utils.data", "torchvision.datasets", "torchvision.transforms")
SKIPPED = 77  # SKIP_RETURN_CODE of CTest
REQUIRED, EMPTY = "required", "none"


# Defaults as text that both sides share.


def number(value):
    return f"{float(value):.6g}"


def python_default(value):
    if value is inspect.Parameter.empty:
        return REQUIRED
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.timedelta):
        return f"{number(value.total_seconds())} s"
    if isinstance(value, (int, float)) and not isinstance(value, enum.Enum):
        return number(value)
    if value is None or (isinstance(value, (str, tuple, list, dict)) and not value):
        return EMPTY
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(python_default(item) for item in value) + ")"
    if isinstance(value, str):
        return value.lower()
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    return name.lower() if name else f"{type(value).__name__}()"


UNITS = {"milliseconds": 1e-3, "seconds": 1, "minutes": 60, "hours": 3600}


def cpp_default(text):
    text = re.sub(r"(?<=\d)'(?=\d)", "", text.strip().removeprefix("=").strip())
    if text in ("{}", "std::nullopt", "nullptr", '""', ""):
        return EMPTY
    if duration := re.fullmatch(r"std::chrono::(\w+)[({]([\d.]+)[)}]", text):
        return f"{number(float(duration[2]) * UNITS[duration[1]])} s"
    if text.startswith("{") and text.endswith("}"):
        return "(" + ", ".join(cpp_default(item) for item in text[1:-1].split(",")) + ")"
    if re.fullmatch(r"[-+\d.eE/ *]+", text):
        return number(eval(text, {"__builtins__": {}}))  # digits and operators only
    if text.startswith('"'):
        return text.strip('"').lower()
    if constructed := re.fullmatch(r"([\w:]+)[({](.*)[)}]", text):
        return cpp_default(constructed[2]) if constructed[2] else constructed[1].split("::")[-1] + "()"
    return re.sub(r"^k(?=[A-Z])", "", text.split("::")[-1]).lower()


# Our side. An argument is (its default, its type).


def text_of(element, path):
    found = element.find(path)
    return "" if found is None else "".join(found.itertext())


def default_of(element, path):
    return REQUIRED if element.find(path) is None else cpp_default(text_of(element, path))


def last_name(kind):
    return re.sub(r"\bconst\b|[&*]", "", kind).strip().split("::")[-1].strip()


class Headers:
    """Functions and classes of the headers by their full names."""

    def __init__(self, root):
        self.functions, self.fields, self.aliases, self.classes = {}, {}, {}, set()
        with tempfile.TemporaryDirectory() as folder:
            headers.run_doxygen(root, folder)
            for _, compound in headers.compounds(f"{folder}/xml"):
                self.add(compound)

    def add(self, compound):
        owner = re.sub(r"<.*", "", compound.findtext("compoundname")).strip()
        self.classes.add(owner)
        for member in compound.iter("memberdef"):
            name, kind = member.findtext("name"), member.get("kind")
            if member.get("prot") != "public":
                continue
            if kind == "function" and "=delete" not in member.findtext("argsstring", ""):
                parameters = [(text_of(p, "declname"), text_of(p, "type"), default_of(p, "defval")) for p in member.findall("param")]
                self.functions.setdefault(f"{owner}::{name}", []).append(parameters)
            elif kind == "typedef":
                self.aliases[name] = last_name(text_of(member, "type"))
            elif kind == "variable" and compound.get("kind") != "namespace" and member.get("static") != "yes":
                self.fields.setdefault(owner, {})[name] = (default_of(member, "initializer"), text_of(member, "type"))

    def structure(self, kind, scope):
        """The fields of a structure of options of that type, as it is named in `scope`."""
        last = last_name(kind)
        if not any(name.endswith(f"::{last}") for name in self.fields):
            last = self.aliases.get(last, last)
        while last.endswith("Options") and scope:
            if f"{scope}::{last}" in self.fields:
                return self.fields[f"{scope}::{last}"]
            scope = scope.rpartition("::")[0]
        return next((fields for name, fields in self.fields.items() if last.endswith("Options") and name.endswith(f"::{last}")), None)

    def arguments(self, parameters, scope, options, whole):
        """The arguments by name. `options` is the structure that a template takes as `Options`; those in `whole` stay structures."""
        found = {}
        for name, kind, default in parameters:
            if "std::source_location" in kind or last_name(kind) == "Where":
                continue
            fields = None if name in whole else self.structure(options if last_name(kind) == "Options" else kind, scope)
            found.update({name: (default, kind)} if fields is None else fields)
        return found

    def candidates(self, name, whole):
        """Every overload of a function, every constructor of a class, or the fields of an aggregate."""
        name, _, options = name.removesuffix(">").partition("<")
        last = name.split("::")[-1]
        lists = [parameters for full in (name, f"{name}::{last}", f"{name}Impl::{last}Impl") for parameters in self.functions.get(full, [])]
        lists = [parameters for parameters in lists if not (len(parameters) == 1 and last_name(parameters[0][1]) in (last, f"{last}&&"))]
        if lists:
            return [self.arguments(parameters, name, options, whole) for parameters in lists]
        if name in self.fields:
            return [self.fields[name]]
        return [{}] if name in self.classes else []


# The comparison.


def python_object(name):
    """An attribute rather than a module of its name: torch.multiprocessing.spawn is a function."""
    first, *rest = name.split(".")
    found, path = importlib.import_module(first), first
    for part in rest:
        path += f".{part}"
        if not hasattr(found, part):
            importlib.import_module(path)
        found = getattr(found, part)
    return found


def public_names(module):
    found = python_object(module)
    own = (name for name in dir(found) if str(getattr(getattr(found, name), "__module__", "")).startswith(module) and name != "reduce_op")
    return {name for name in getattr(found, "__all__", own) if name[0] != "_"}


def python_arguments(name):
    """{argument: default}, without those that are private."""
    found = python_object(name)
    parameters = inspect.signature(found.__init__ if inspect.isclass(found) else found).parameters.values()
    return {p.name: python_default(p.default) for p in parameters
            if p.name != "self" and not p.name.startswith("_") and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def same_default(theirs, ours, kind):
    return theirs == ours or (ours == EMPTY and theirs.endswith("()") and theirs.removesuffix("()") == last_name(kind))


def differences(theirs, ours, names):
    """{argument: difference}. `names` has our name of an argument of PyTorch's where it is another one."""
    found, common = {}, []
    for name, default in theirs.items():
        own = next((own for own in (name, names.get(name), GROUP.get(name)) if own in ours), None)
        if own is None:
            found[name] = "missing"
            continue
        common.append(own)
        parts = [] if own == name else [f"named `{own}`"]
        if not same_default(default, *ours[own]):
            parts.append("required" if ours[own][0] == REQUIRED else f"default `{ours[own][0]}`")
            parts[-1] += "; PyTorch: required" if default == REQUIRED else f"; PyTorch: `{default}`"
        if parts:
            found[name] = ", ".join(parts)
    order = [name for name in ours if name in common]
    if order != common:
        found["-"] = "order: " + ", ".join(f"`{name}`" for name in order)
    elif leading := list(ours)[:list(ours).index(common[0])] if common else []:
        found["-"] = "after " + ", ".join(f"`{name}`" for name in leading)
    return found


def nearest(theirs, candidates, names):
    """The differences from the overload that has most of the arguments."""
    every = [differences(theirs, ours, names) for ours in candidates]
    return min(every, key=lambda found: (list(found.values()).count("missing"), len(found), sum(map(len, found.values()))))


def compare(root):
    """{(name, argument): difference}, in the order of PAIRS."""
    ours, found = Headers(root), {}
    for python, cpp, names in PAIRS:
        theirs = python_arguments(python)
        candidates = [arguments for name in cpp.split("|") for arguments in ours.candidates(f"lockstep::{name}", theirs)]
        if not candidates:
            raise SystemExit(f"{python}: the headers have no lockstep::{cpp}; correct tests/hygiene/signature_pairs.py")
        least = nearest(theirs, candidates, names)
        found.update({(python, argument): difference for argument, difference in least.items()})
    own_names = {name.split("::")[-1].removesuffix("Impl") for name in [*ours.functions, *ours.classes, *ours.aliases]}
    paired = {python for python, _, _ in PAIRS}
    for module, left_out in LISTS:
        names = [name for name in sorted(public_names(module) - own_names - set(left_out)) if f"{module}.{name}" not in paired]
        if names:
            found[module, "-"] = "no " + ", ".join(f"`{name}`" for name in names)
    return found


# The page.


def read_rows(page):
    """{(name, argument): (difference, reason)} of the tables."""
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 4:
            rows[cells[0].strip("`"), cells[1].strip("`")] = (cells[2], cells[3])
    return rows


def covering(rows, name, argument, difference):
    """The key of the row about a difference: its own, or one of all functions of a module, `torch.distributed.*`."""
    for key in ((name, argument), (name.rpartition(".")[0] + ".*", argument)):
        if key in rows and rows[key][0] == difference:
            return key
    return None


def problems(found, rows):
    used = set()
    for (name, argument), difference in found.items():
        key = covering(rows, name, argument, difference)
        if key is None:
            yield f"not in the list: {name}, {argument}: {difference}"
        elif len(rows[key][1]) < 3:
            yield f"no reason in the list: {name}, {argument}: {difference}"
        used.add(key)
    for (name, argument), (difference, _) in rows.items():
        if (name, argument) not in used:
            yield f"in the list, but no longer so: {name}, {argument}: {difference}"


def section_of(name):
    return max((section for section in SECTIONS if name.startswith(section)), key=len)


def updated(page, found, rows):
    groups = {}
    for (name, argument), difference in found.items():
        groups.setdefault((name.rpartition(".")[0] + ".*", argument, difference), []).append(name)
    kept = {}
    for (name, argument), difference in found.items():
        every = name.rpartition(".")[0] + ".*"
        own = (every if argument != "-" and len(groups[every, argument, difference]) > 2 else name, argument)
        key = covering(rows, name, argument, difference) or own
        kept[key] = (difference, rows.get(key, ("", ""))[1])
    head = page.split("\n## ")[0].rstrip()
    sections = {}
    for (name, argument), (difference, reason) in kept.items():
        sections.setdefault(section_of(name), []).append(f"| `{name}` | `{argument}` | {difference} | {reason} |")
    for section in SECTIONS:
        if section in sections:
            head += f"\n\n## {section}\n\n| PyTorch | argument | Lockstep | reason |\n|---|---|---|---|\n" + "\n".join(sections[section])
    return head + "\n"


def main(root, *options):
    import torch
    import torchvision_cpu  # noqa: F401
    root = Path(root)
    page = (root / PAGE).read_text()
    compared_with = re.search(r"PyTorch (\d+\.\d+)", page)[1]
    if not torch.__version__.startswith(compared_with + "."):
        print(f"the list is about PyTorch {compared_with}, not {torch.__version__}")
        sys.exit(SKIPPED)
    found, rows = compare(root), read_rows(page)
    if "--update" in options:
        (root / PAGE).write_text(updated(page, found, rows))
        rows = read_rows((root / PAGE).read_text())
    failures = list(problems(found, rows))
    print(f"{len(PAIRS)} names compared, {len(found)} differences in {len(rows)} rows")
    if failures:
        sys.exit("\n".join([*failures, f"write rows into {PAGE} with --update, and the reasons by hand"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
