# SPDX-License-Identifier: BSD-3-Clause
"""A header predicts its file, and few files are fragments: check_files.py <root of the project>

A .cpp of include/, src/ and tools/ has a header of its name, in its folder or in include/lockstep; WITHOUT_HEADER lists
the others with their reasons. A fragment has 30 lines of code or fewer, without blank lines and comments: a .cpp, or a
header without a .cpp of its name. Umbrellas, which are headers directly in include/lockstep, and main.cpp do not count.
"""

import sys
from pathlib import Path

import sources

FRAGMENT = 30  # lines of code
FRAGMENTS = 30  # files
LISTED_FILES = 41
# Reason: files.
WITHOUT_HEADER = {
    "backends, which backends/factories.h declares": """src/communication/backends/device_dispatch/device_dispatch_backend.cpp
        src/communication/backends/fake/fake_backend.cpp src/communication/backends/hierarchical/hierarchical_backend.cpp
        src/communication/backends/host_staged/host_staged_backend.cpp src/communication/backends/mpi/mpi_backend.cpp""",
    "one header a kind and one file a family: codecs, networks, optimizers, schedulers, communication hooks": """
        src/kit/data/images/bmp.cpp src/kit/data/images/jpeg.cpp src/kit/data/images/png.cpp src/kit/data/images/webp.cpp
        src/kit/models/dgcnn.cpp src/kit/models/gpt2.cpp src/kit/models/llama.cpp src/kit/models/mobilenet_v2.cpp
        src/kit/models/point_net.cpp src/kit/models/resnet.cpp src/kit/models/vision_transformer.cpp
        src/tensors/optim/adam_variants.cpp src/tensors/optim/adaptive_steps.cpp src/tensors/optim/layerwise_steps.cpp
        src/tensors/optim/cyclic_schedules.cpp src/tensors/optim/epoch_schedules.cpp
        src/parallel/ddp/between_hosts.cpp src/parallel/ddp/powersgd.cpp""",
    "compiled in another way: once for each instruction set, with fmt's own source, with CUDA's headers, as a module": """
        src/communication/backends/shm/kernels_impl.cpp src/foundation/base/fmt.cpp src/tensors/graphs/graph_device.cpp
        src/communication/backends/mpi/module/library.cpp""",
    "second files of a header, without which the first would have more than 400 lines": """
        src/communication/comm/object_collectives.cpp src/communication/rendezvous/session_groups.cpp
        src/communication/runtime/value_objects.cpp src/kit/data/image_folder.cpp src/kit/data/modelnet.cpp
        src/kit/metrics/class_metrics.cpp src/launcher/launch/changing_nodes.cpp src/launcher/launch/lost_ranks.cpp
        src/parallel/fsdp/fsdp_module.cpp src/parallel/fsdp/tree_checks.cpp
        src/parallel/pipelining/lowering.cpp src/parallel/tensor_parallel/loss_parallel.cpp
        src/tensors/device/caching_cpu_allocator.cpp src/tensors/serialize/dict.cpp""",
}
LISTED = {name for names in WITHOUT_HEADER.values() for name in names.split()}
# Public headers whose folder is not their layer, or not the folder of their .cpp, because their paths stay.
ELSEWHERE = {"src/tensors/state/state_dict.cpp": "include/lockstep/checkpoint/state_dict.h",
             "src/kit/data/images/images.cpp": "include/lockstep/data/images.h"}


def header_candidates(name):
    """Where the header of src/<wing>/<layer>/x.cpp or tools/<program>/x.cpp may be."""
    path = Path(name)
    beside = str(path.with_suffix(".h"))
    if path.parts[0] != "src":
        return [beside]
    folder = Path("include/lockstep", *path.parts[2:-1])
    return [beside, str(folder / (path.stem + ".h")), str(folder / "detail" / (path.stem + ".h")), ELSEWHERE.get(name)]


def lines_of_code(text):
    return sum(bool(line.strip()) and not line.lstrip().startswith("//") for line in text.splitlines())


def problems(root, listed=LISTED):
    files = {str(path.relative_to(root)): lines_of_code(path.read_text()) for path in sources.cpp_files(root)
             if path.relative_to(root).parts[0] in ("include", "src", "tools")}
    header_of = {name: next((each for each in header_candidates(name) if each in files), None)
                 for name in files if name.endswith(".cpp") and Path(name).name != "main.cpp"}
    found = [f"{name}: has no header of its name; give it one, or list it with its reason in {Path(__file__).name}"
             for name, header in header_of.items() if header is None and name not in listed]
    found += [f"{Path(__file__).name}: {name} is listed, but is no .cpp without a header; remove it from the list"
              for name in sorted(listed) if name not in header_of or header_of[name] is not None]
    if len(listed) > LISTED_FILES:
        found.append(f"{Path(__file__).name}: {len(listed)} files are listed, and {LISTED_FILES} may; give some a header")
    with_source = set(header_of.values())
    fragments = [name for name, lines in files.items() if lines <= FRAGMENT and name not in with_source
                 and Path(name).name != "main.cpp" and Path(name).parent != Path("include/lockstep")]
    if len(fragments) > FRAGMENTS:
        found.append(f"{len(fragments)} files have {FRAGMENT} lines of code or fewer, and {FRAGMENTS} may; merge some into "
                     f"the files whose idea they belong to: {', '.join(fragments)}")
    return found


if __name__ == "__main__":
    sources.finish(problems(Path(sys.argv[1])), "headers predict their files")
