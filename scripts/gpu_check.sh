#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# On a machine with a GPU: builds with its LibTorch and checks all that needs a GPU, for one report.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END2'
Usage: scripts/gpu_check.sh [--part build|checks|parity|mixed|benchmark]... [argument of tests/gpu/run_gpu_checks.py]...
       scripts/gpu_check.sh --pack

Builds into build/gpu with the LibTorch of the active Python (torch 2.11 or later, with CUDA; LOCKSTEP_TORCH_PREFIX
names another), runs one rank over nccl, two ranks that share a GPU over shm and gloo, parity with Python, moves of
checkpoints between devices, loader, graphs, and a benchmark beside Python. Adds its findings to build/gpu_report.md
(--report names another), and all that the programs wrote to the .log beside it. LOCKSTEP_BUILD_JOBS compiles that many
files at a time; otherwise free memory decides.

  --part   only these. Not given: all, in this order. Each ends within ten minutes, the benchmark by nets:
           --part benchmark --nets mnist (or gpt, resnet50) [--rounds 1]
  --pack   on a machine that can install packages: puts what the build needs of them (headers) into .gpu-packages, for
           a machine that cannot. It is used there when it lies in the tree
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
  rm -rf "$folder/usr/share/doc" "$folder"/usr/lib/*/lib{gloo*,ssl}.a
  # Shared libraries are in other packages; static ones take their place.
  find "$folder/usr/lib" -name 'libcrypto.so' -o -name 'libz.so' -o -name 'libssl.so' -o -name 'libjpeg.so' -o -name 'libpng*.so' | xargs rm -f
  say "$(du -sh "$folder" | cut -f 1) in .gpu-packages"
}

parts=()
arguments=()
while (($#)); do
  case $1 in
    --pack) pack && exit 0 ;;
    --part)
      [[ ${2:-} =~ ^(build|checks|parity|mixed|benchmark)$ ]] || { usage >&2 && exit 2; }
      parts+=("$2") && shift 2
      ;;
    -h | --help) usage && exit 0 ;;
    *) arguments+=("$1") && shift ;;
  esac
done
((${#parts[@]})) || parts=(build checks parity mixed benchmark)

python=$(command -v python3)
prefix=${LOCKSTEP_TORCH_PREFIX:-$("$python" -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')}

build_here() {
  local options=(-DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_UNITY_BUILD=ON -DLOCKSTEP_BUILD_TESTS=OFF
    -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_WITH_CURL=OFF -DLOCKSTEP_WITH_WEBP=OFF -DLOCKSTEP_WITH_HDF5=OFF
    -DLOCKSTEP_BUILD_GPU_CHECKS=ON -DLOCKSTEP_WITH_CUDA=ON
    "-DTorch_DIR=$prefix/share/cmake/Torch")
  if [[ -d .gpu-packages ]]; then
    local gloo=$root/.gpu-packages/usr/include
    options+=("-DCMAKE_PREFIX_PATH=$root/.gpu-packages/usr" "-DLOCKSTEP_GLOO_INCLUDE_DIR=$gloo"
      "-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu")
  fi
  say "Configuring build/gpu"
  cmake -S . -B build/gpu -G Ninja "${options[@]}"
  say "Building build/gpu"
  cmake --build build/gpu --parallel "$(jobs_that_fit)" --target gpu_checks gpu_training mixed_jobs lockstep_cli
}

rest=()
for part in "${parts[@]}"; do
  if [[ $part == build ]]; then build_here; else rest+=("$part"); fi
done
if ((${#rest[@]})); then
  exec "$python" tests/gpu/run_gpu_checks.py --build build/gpu --part "${rest[@]}" "${arguments[@]}"
fi
