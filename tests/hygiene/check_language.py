# SPDX-License-Identifier: BSD-3-Clause
"""No file has a phrase or a name that the project no longer uses, and public names have the form of section "Names" of CONTRIBUTING.md:
check_language.py <root of the project>"""

import re
import sys
from pathlib import Path

import sources

SUFFIXES = sources.CPP | {".md", ".pml", ".py", ".sh", ".cmake", ".in", ".txt"}
# They quote what they look for.
EXCLUDED = {"check_language.py", "test_checks.py"}

# Regular expressions; a space also matches a line break and the comment leader of the next line.
PHRASES = (
    r"\b(?:is|are|was|were|be|been|being) told\b(?! apart)",
    r"\btold (?:so|otherwise)\b",
    r"\bin turns\b",
    r"\banother(?: \w+)? than\b",
    r"\b(?:goes|going|went|gone) on\b",
    r"\bgo on with\b",
    r"\bfor ever\b",
    r"\bin vain\b",
    r"\bby way of\b",
    r"\bbrings?\b|\bbrought\b",
    r"\bis heard\b",
    r"\bis never known\b",
    r"\b(?:is|are) no part of\b",
    r"\bis not looked at\b",
    r"\bnothing is noticed\b",
    r"\bnow near and now far\b",
    r"\bas (?:it|one|you) likes?\b",
    r"(?<![\w.:-])Of (?:a|an|the|all|each|it|its|this|these|those|them|what|which)\b",
)
# A sentence that begins with a relative clause, in pages and public headers. A question and a heading may.
WHAT = r"(?:\A|\n|[.!?] )[ \t/*#|\"'-]*What (?:\w|`)[^.?!|]*[.!|\n]"

# Names of section "The field's terms", as they were: in text and code, and in names of files.
NAMES = (
    r"DirectCalls?|direct_calls?|\bcomm/direct\.(?:h|cpp)\b|direct_request|DirectRequest",
    r"(?:start|post|finish)_brief",
    r"call_form|CallForm",
    r"CallLog|\bcall_log",
    r"CallNote|call_note|NoteFile|NoteBoard",
    r"\bHostGroup|\bhost_group|HostMesh|host_mesh|HostMeeting|host_meeting",
    r"IssueListener|issue_listener|IssuedCall|issued_call",
    r"\bPatience\b",
    r"GroupTroubles?|group_trouble",
    r"\bsettle\(|::settle\b",
    r"\bfires_(?:left_)?\b",
    r"\bddp::Replica\b|\bddp/replica\.",
    r"broken_pipes|BrokenPipes",
    r"\brendezvous::Placement\b|\bstruct Placement\b|\brendezvous/placement",
    r"\bstaged_backend|\bStagedBackend|backends/staged\b",
    r"by_device|ByDevice",
    r"find_tensors|\bFindable\b",
    r"large_blocks|LargeBlocks|keeping_allocator|KeepingAllocator",
    r"\bcheckpoint/tiling\b",
    r"\bcheckpoint/(?:distributed_table|read_table|write_table|table_trailer)\b",
    r"\bCheckpointOptions\b",
    r"\bcomm/dying\b|\bis_dying\b",
    r"\bshm/(?:area|in_place|meeting|patience|prepare|team)\b",
)
# The same, in files of the shm backend and its tests only: elsewhere the words mean other things. The models keep them.
SHM_NAMES = (r"\bTeam\b|\bteam_\b", r"\bArea\b", r"\bPost\b|\bposts\[", r"\bMeeting\b|\bmeeting_\b", r"\bInPlace\b")

# In sources, locks are those that clang checks: Note [Checked locks] in base/mutex.h.
UNCHECKED_LOCK = re.compile(r"\bstd::(?:shared_)?mutex\b|\bstd::condition_variable\b")

# How a text names a rank: numbered_rank() of base/throw_error.h.
RANK = re.compile(r"rank \{\} of \{\}")

# Names of PyTorch, torchvision and of networks that have an acronym in capitals; and enums that PyTorch has.
ACRONYMS = set("""
    FSDPModule CPUOffloadPolicy P2POp PowerSGD PowerSGDState PostLocalSGD FusedSGD SGD ASGD NAdam RAdam LBFGS RMSprop LRScheduler LambdaLR MultiplicativeLR StepLR MultiStepLR
    ConstantLR LinearLR ExponentialLR PolynomialLR CosineAnnealingLR SequentialLR CyclicLR OneCycleLR SWALR ReduceLROnPlateau
    ScheduleGPipe ScheduleLoopedBFS ScheduleZBVZeroBubble MNIST FashionMNIST KMNIST CIFAR CIFAR10 CIFAR100 DGCNN DTensor GPT2 GPT2Config GPT2Model LMHead
""".split())
ENUMS = {"ReduceOp", "ComputationType", "ImageReadMode", "InterpolationMode", "AutoAugmentPolicy", "WeightsEnum"}
TYPE = re.compile(r"^ *(?:enum )?(?:struct|class|concept) (\w+)(?: final)?(?: : \w[^{;]*)? [{=]|^using (\w+) =", re.MULTILINE)
# An argument that is a structure of options or a group, and no reference.
BY_VALUE = re.compile(r"[(,]\s*((?:std::optional<)?\b(?:\w+::)*(?:\w*Options|ProcessGroup)>?)\s+\w+\s*(?=[=,)])")
ENUM = re.compile(r"^ *enum class (\w+)[^{;]*\{([^}]*)\}", re.MULTILINE)

GAP = r"[\s/*#]+"
PHRASE = re.compile("|".join(phrase.replace(" ", GAP) for phrase in PHRASES))
SENTENCE = re.compile(WHAT)
NAME = re.compile("|".join(NAMES))
SHM_NAME = re.compile("|".join(SHM_NAMES))


def hits(path, text):
    """(position, what was found) for one file; `path` is relative to the root."""
    patterns = [PHRASE, NAME]
    if "shm" in path.as_posix() and path.suffix != ".pml":
        patterns.append(SHM_NAME)
    if path.parts[0] in ("include", "src", "tools") and path.name != "mutex.h":
        patterns.append(UNCHECKED_LOCK)
    if path.parts[0] == "src" and path.name != "error.cpp":
        patterns.append(RANK)
    for pattern in patterns:
        for match in pattern.finditer(text):
            yield match.start(), " ".join(re.sub(GAP, " ", match[0]).split())
    for match in SENTENCE.finditer(text) if path.suffix in (".md", ".pml") or path.parts[0] == "include" else ():
        start = match[0].index("What")
        if path.suffix != ".md" or "#" not in match[0][:start]:
            yield match.start() + start, match[0][start:].split("\n")[0][:40]


def badly_named(text):
    """(position, name) of types, enumerators and arguments of a public header that section "Names" of CONTRIBUTING.md does not allow."""
    text = re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)
    for match in TYPE.finditer(text):
        name = match[1] or match[2]
        if name.endswith("_Weights"):  # torchvision's
            continue
        stem = name.removesuffix("Options").removesuffix("Arguments").removesuffix("Impl").removesuffix("Group")
        if (re.search("[A-Z]{2}", stem) and stem not in ACRONYMS) or "_" in name:
            yield match.start(), name
    for match in ENUM.finditer(text):
        for name in re.findall(r"\w+", match[2]):
            if not (name.isupper() if match[1] in ENUMS else name.islower()):
                yield match.start(), f"{match[1]}::{name}"
    for match in BY_VALUE.finditer(text):
        yield match.start(1), f"{match[1]} by value"


def problems(root):
    root = Path(root)
    found = []
    for file in sources.files(root):
        path = file.relative_to(root)
        if file.suffix not in SUFFIXES or file.name in EXCLUDED:
            continue
        name = NAME.search(path.as_posix())
        if name:
            found.append(f"{path}: its name has {name[0]!r}")
        text = file.read_text()
        for position, name in badly_named(text) if path.parts[0] == "include" else ():
            found.append(f"{path}:{text.count(chr(10), 0, position) + 1}: {name} is not of section Names of CONTRIBUTING.md")
        for position, words in sorted(hits(path, text)):
            found.append(f"{path}:{text.count(chr(10), 0, position) + 1}: {words!r}")
    return found


if __name__ == "__main__":
    sources.finish(problems(sys.argv[1]), "no file has an abandoned phrase or name")
