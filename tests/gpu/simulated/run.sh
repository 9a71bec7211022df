#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# run.sh <build folder> <number of GPUs> <program> [argument]...: runs it with simulated GPUs.
set -euo pipefail
libraries=$(realpath "$1")/simulated_gpu
export LOCKSTEP_SIMULATED_GPUS=$2
shift 2
exec env LD_PRELOAD="$libraries/libcudart.so.13:$libraries/libcuda.so.1:$libraries/libnccl.so.2:$libraries/libsimulated_kernels.so" "$@"
