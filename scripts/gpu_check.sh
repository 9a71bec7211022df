#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# On a machine with a GPU: builds with its LibTorch, runs all that needs a GPU and measures, for one report.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END2'
Usage: scripts/gpu_check.sh [--limit <seconds>] [--parts <part>...] [--report <file>] [argument of tests/gpu/run_gpu_checks.py]...
       scripts/gpu_check.sh --pack
       scripts/gpu_check.sh --rehearse

Builds into build/gpu with the LibTorch of the active Python (torch 2.11 or later, with CUDA; LOCKSTEP_TORCH_PREFIX
names another) and runs, in this order, each part within a time of its own:

  build     300 s  the programs of tests/gpu
  devices    20 s  what nvidia-smi and LibTorch see
  nccl       75 s  one rank over nccl: collectives, DDP, mixed precision, checkpoints, a hanging device
  parity     90 s  MNIST, ResNet-50 and GPT beside Python on the same GPU, bit by bit
  shared     60 s  two ranks that share the GPU
  graphs     75 s  GraphedStep beside eager steps and Python's graphs
  loader     60 s  batches in pinned memory, beside Python's DataLoader
  parallel   60 s  shards, pipelines, ring attention, experts of two ranks that share the GPU, and Trainer
  figures   180 s  tokens and images a second and percent of the card's peak, beside Python, for GPTs of 500 and 125
                   million parameters and ResNet-50
  two_gpus  400 s  where there are two

Nothing is downloaded: nets, weights and data are made here. Findings are added to build/gpu_report.md (--report names
another) line by line, and all that the programs wrote to the .log beside it. Exits with 1 if something failed.

  --limit     seconds for all; parts that do not fit any more are not run
  --parts     only these
  --pack      on a machine that can install packages: puts what the build needs of them (headers) into .gpu-packages,
              for a machine that cannot. It is used there when it lies in the tree
  --rehearse  on a machine without a GPU: all of it in a minimal Debian 13 without network, with PyPI's torch 2.11.0, what
              --pack has packed, and a simulated GPU. Needs root; --keep keeps the root (6 GB)

LOCKSTEP_BUILD_JOBS compiles that many files at a time; otherwise cores and free memory decide.
END2
}

packages=(libcli11-dev libfmt-dev nlohmann-json3-dev zlib1g-dev libssl-dev libgloo-dev libjpeg62-turbo-dev libpng-dev)

pack() {
  local folder=$root/.gpu-packages package
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  say "Fetching ${packages[*]}"
  # The shared fmt has another name in every release.
  packages+=("$(apt-cache depends libfmt-dev | sed -n 's/.*Depends: \(libfmt[0-9]*\)$/\1/p')")
  (cd "$scratch" && chmod 755 . && retry 3 apt-get download "${packages[@]}")
  # Headers of CUDA that LibTorch's own packages leave out; a toolkit's will do as well.
  retry 3 python3 -m pip download --quiet --no-deps --dest "$scratch" 'nvidia-cuda-crt~=13.0.0' 'nvidia-cuda-cccl~=13.0.0'
  rm -rf "$folder"
  for package in "$scratch"/*.deb; do dpkg -x "$package" "$folder"; done
  for package in "$scratch"/*.whl; do python3 -m zipfile -e "$package" "$folder"; done
  # A compiler searches such a folder of an architecture only below /usr.
  cp -r "$folder"/usr/include/x86_64-linux-gnu/. "$folder/usr/include"
  rm -rf "$folder/usr/include/x86_64-linux-gnu"
  rm -rf "$folder"/usr/share/{doc,man} "${folder:?}/usr/bin" "$folder"/usr/lib/*/lib{gloo*,ssl}.a
  # Shared libraries are in other packages; static ones take their place.
  rm -f "$folder"/usr/lib/*/lib{crypto,ssl,z,jpeg,png*}.so
  # Links may not survive the way to the other machine.
  find "$folder" -xtype l -delete
  find "$folder" -type l | while IFS= read -r link; do cp -rL "$link" "$link.copy" && rm "$link" && mv "$link.copy" "$link"; done
  say "$(du -sh "$folder" | cut -f 1) in .gpu-packages"
}

compile() {
  local python prefix targets=(gpu_checks gpu_training parallel_checks lockstep_cli)
  python=$(command -v python3)
  prefix=${LOCKSTEP_TORCH_PREFIX:-$("$python" -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')}
  local options=(-DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_UNITY_BUILD=ON -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF
    -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_WITH_CURL=OFF -DLOCKSTEP_WITH_WEBP=OFF -DLOCKSTEP_WITH_HDF5=OFF -DLOCKSTEP_WITH_MPI=OFF
    -DLOCKSTEP_BUILD_GPU_CHECKS=ON -DLOCKSTEP_WITH_CUDA=ON "-DTorch_DIR=$prefix/share/cmake/Torch")
  if [[ -d .gpu-packages ]]; then
    options+=("-DCMAKE_PREFIX_PATH=$root/.gpu-packages/usr" "-DLOCKSTEP_GLOO_INCLUDE_DIR=$root/.gpu-packages/usr/include"
      "-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu")
  fi
  if (($(nvidia-smi -L 2>/dev/null | grep -c '^GPU') > 1)); then targets+=(mixed_jobs); fi
  say "Configuring build/gpu"
  cmake -S . -B build/gpu -G Ninja "${options[@]}"
  say "Building build/gpu: ${targets[*]}"
  # A file that does not compile does not keep the other programs from being built.
  cmake --build build/gpu --parallel "$(jobs_that_fit)" --target "${targets[@]}" "$@" -- -k 0
}

# The machine with the GPU has another Linux and Python; what is alike is that nothing but the tree, what was packed, torch,
# a compiler and CMake is there.
rehearse() {
  local keep='' prepared enter=(env PATH=/opt/torch/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin CXX=g++-13)
  if [[ ${1:-} == --keep ]]; then keep=1; fi
  command -v ip >/dev/null || fail "ip is missing: apt-get install iproute2"
  if [[ ! -d .gpu-packages ]]; then (pack); fi
  prepared=$(mktemp)
  bash scripts/fresh.sh trixie --keep --packages "g++-13 cmake ninja-build python3-venv" --copy .gpu-packages \
    bash -c 'python3 -m venv /opt/torch && /opt/torch/bin/pip install --quiet --progress-bar off torch===2.11.0 numpy' | tee "$prepared"
  rehearsal=$root/$(sed -n 's/^==> Its root is kept in //p' "$prepared")
  rm "$prepared"
  if [[ -z $keep ]]; then trap 'rm -rf "$rehearsal" "$rehearsal.log"' EXIT; fi
  inside() { bash scripts/fresh.sh --enter "$rehearsal" --no-network "${enter[@]}" "$@"; }
  local status=0
  inside scripts/gpu_check.sh --parts build --stretch 20 --limit 6000 || status=1
  inside bash -c "scripts/gpu_check.sh --compile simulated_gpu && tests/gpu/simulated/run.sh build/gpu 1 \
    scripts/gpu_check.sh --parts devices nccl parity shared graphs loader parallel figures --small --steps 3 --stretch 20" || status=1
  mkdir -p build
  cp "$rehearsal"/root/lockstep/build/gpu_report.{md,log} build/
  say "The report is build/gpu_report.md"
  return "$status"
}

case "${1:-}" in
  -h | --help) usage ;;
  --pack) pack ;;
  --compile) shift && compile "$@" ;;
  --rehearse) shift && rehearse "$@" ;;
  *) exec python3 tests/gpu/run_gpu_checks.py "$@" ;;
esac
