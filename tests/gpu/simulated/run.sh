#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# run.sh <build folder> <number of GPUs> <program> [argument]...: runs it with simulated GPUs.
set -euo pipefail
if (($# < 3)); then
  echo "Usage: run.sh <build folder> <number of GPUs> <program> [argument]..." >&2
  exit 2
fi
libraries=$(realpath "$1")/simulated_gpu
for library in libcudart.so.13 libcuda.so.1 libnccl.so.2 libsimulated_kernels.so; do
  if [[ ! -e $libraries/$library ]]; then
    echo "run.sh: $libraries/$library is not there: build the target simulated_gpu" >&2
    exit 1
  fi
done
export LOCKSTEP_SIMULATED_GPUS=$2
shift 2
exec env LD_PRELOAD="$libraries/libcudart.so.13:$libraries/libcuda.so.1:$libraries/libnccl.so.2:$libraries/libsimulated_kernels.so" "$@"
