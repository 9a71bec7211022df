#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# On a machine without a GPU: compiles and links everything against a LibTorch with CUDA, runs what needs no GPU, and what
# needs one with simulated GPUs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=${1:-$(sed -n 's/^torch==//p' scripts/requirements.txt)}
if [[ $version == -h || $version == --help ]]; then
  cat <<'END2'
Usage: scripts/cuda_build_check.sh [version of torch]

Installs that version's Python package with CUDA (default: that of scripts/requirements.txt; about 5 GB with what it links) into build/cuda,
builds Lockstep with it into build/cuda as well, and runs the tests that need no GPU, and with simulated GPUs those that
need one (docs/gpu.md says what that shows). Prints what it saw for docs/gpu.md.
END2
  exit 0
fi
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "\"$version\" is not a version such as 2.15.0"

bash scripts/setup.sh --tests
venv=$root/build/cuda/venv-$version
python=$venv/bin/python
if ! "$python" -c 'import torch, sys; sys.exit(torch.version.cuda is None)' 2>/dev/null; then
  say "Installing torch $version with CUDA into ${venv#"$root"/}"
  mkdir -p build/cuda
  # "===" is the very version, without a local one such as 2.13.0+cpu.
  make_torch_venv "$venv" "torch===$version"
fi
cuda=$("$python" -c 'import torch; print(torch.version.cuda)')
prefix=$(torch_prefix "$venv")

tree=build/cuda/$version
say "Configuring $tree"
cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_UNITY_BUILD=ON -DLOCKSTEP_BUILD_TESTS=ON \
  -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_BUILD_GPU_CHECKS=ON -DLOCKSTEP_WITH_CUDA=ON "-DTorch_DIR=$prefix/share/cmake/Torch"
tests=(unit_device unit_communication unit_rendezvous unit_amp unit_optim unit_graphs unit_data unit_data_device)
say "Building $tree"
cmake --build "$tree" --parallel "$(jobs_that_fit)" \
  --target gpu_checks parallel_checks gpu_training mixed_jobs lockstep_cli examples/all simulated_gpu "${tests[@]}"

say "Running what needs no GPU"
for test in "${tests[@]}"; do "$tree/bin/$test" --gtest_brief=1; done
"$tree/bin/gpu_checks" list >/dev/null
"$tree/bin/parallel_checks" list >/dev/null
# Without a GPU nccl has to be refused, and programs have to run on the CPU.
if "$python" -c 'import torch, sys; sys.exit(torch.cuda.is_available())'; then
  if "$tree/bin/gpu_checks" nccl 2>"$tree/refusal.txt"; then fail "nccl was not refused without a GPU"; fi
  grep -q "on the CPU use shm (one host)" "$tree/refusal.txt" || fail "unclear: $(cat "$tree/refusal.txt")"
  "$tree/bin/lockstep" run --nproc-per-node 2 "$tree/bin/01_hello_allreduce"
fi

say "Running with two simulated GPUs what needs GPUs"
report=$tree/simulated_report.md
rm -f "$report"
# Work on a stream begins late, so that what does not wait for it is seen.
LOCKSTEP_SIMULATED_GPU_DELAY_US=100 tests/gpu/simulated/run.sh "$tree" 2 "$python" tests/gpu/run_gpu_checks.py \
  --build "$tree" --parts devices nccl shared graphs loader parallel two_gpus --small --stretch 5 --report "$report"
tests/gpu/simulated/run.sh "$tree" 1 "$python" tests/gpu/run_gpu_checks.py \
  --build "$tree" --parts parity figures --steps 3 --small --stretch 10 --report "$report"
say "$(date +%F): built with torch $version, CUDA $cuda, NCCL $("$python" -c 'import torch; print(".".join(map(str, torch.cuda.nccl.version())))'), $(c++ --version | head -1); tests passed, and the checks of GPUs with simulated ones"
