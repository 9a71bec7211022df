# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Functions that the scripts beside this file share. Sourced, not run.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck disable=SC2034  # read by scripts
caller_dir=$PWD
presets=(release debug asan tsan plain)
# The presets stop at a compiler's warning. The two commands of the README do so only in CI: a user may have another
# compiler or LibTorch, which warn of other things.
warnings_as_errors=ON
cd "$root" || exit

say() { printf '==> %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# retry <times> <command...>: downloads fail now and then.
retry() {
  local times=$1 attempt
  shift
  for ((attempt = 1; attempt <= times; ++attempt)); do
    "$@" && return 0
    if ((attempt < times)); then
      say "That failed (attempt $attempt of $times); trying again in $((attempt * 5)) s"
      sleep $((attempt * 5))
    fi
  done
  return 1
}

is_preset() {
  local preset
  for preset in "${presets[@]}"; do [[ $preset == "$1" ]] && return 0; done
  return 1
}

# make_torch_venv <folder> <requirement of torch> [package...]: a virtual environment with this torch and these packages. One with CUDA
# also gets the headers that its packages leave out.
make_torch_venv() {
  local venv=$1 cuda
  shift
  if [[ ! -x $venv/bin/pip ]]; then python3 -m venv "$venv" || return; fi
  retry 3 "$venv/bin/pip" install --quiet "$@" numpy || return
  cuda=$("$venv/bin/python" -c 'import torch; print(torch.version.cuda or "")') || return
  if [[ -z $cuda ]]; then return 0; fi
  retry 3 "$venv/bin/pip" install --quiet "nvidia-cuda-crt~=$cuda.0" "nvidia-cuda-cccl~=$cuda.0" ||
    say "No headers for CUDA $cuda: building without the nccl backend"
}

# torchvision_for <version of torch>: the torchvision that belongs to it.
torchvision_for() {
  case $1 in
    2.11.*) echo 0.26.0 ;;
    2.12.*) echo 0.27.1 ;;
    2.13.*) echo 0.28.0 ;;
    2.14.*) echo 0.29.1 ;;
    2.15.*) echo 0.29.2 ;;
    *) fail "no torchvision is known for torch $1: add it to torchvision_for() in scripts/common.sh" ;;
  esac
}

# torch_prefix <venv>: the LibTorch in its torch.
torch_prefix() { "$1/bin/python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])'; }

# One job a core, but no more than memory allows: a compiler that reads LibTorch's headers takes up to 2 GB.
# LOCKSTEP_BUILD_JOBS says another number.
jobs_that_fit() {
  local cores memory
  if [[ -n ${LOCKSTEP_BUILD_JOBS:-} ]]; then echo "$LOCKSTEP_BUILD_JOBS" && return; fi
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 2097152)}' /proc/meminfo)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

# cached <preset> <variable>: what the build tree's cache holds for it.
cached() { sed -n "s/^$2:[A-Z]*=//p" "build/$1/CMakeCache.txt" 2>/dev/null || true; }

# torch_state: names the torch of .venv and the packages of CUDA beside it.
torch_state() { (compgen -G '.venv/lib/python3*/site-packages/*.dist-info' || true) | sed -nE '/\/(torch|nvidia_\w+)-/p' | sort | sha256sum | cut -c 1-16; }

# configure <preset> <everything|product>: product leaves out tests and benchmarks, and with them what they need.
# Does nothing when the tree already has what is asked for.
configure() {
  local preset=$1 tests=OFF torch=${LOCKSTEP_TORCH_PREFIX:-} state earlier same='' forget=()
  local record=build/$preset/libtorch_of_scripts
  if [[ -n ${LOCKSTEP_TORCH:-} ]]; then torch=$(echo "$root"/.venv/lib/python3*/site-packages/torch); fi
  # A tree stays with its LibTorch until another one is named, or that of .venv is replaced.
  state=$(torch_state)
  earlier=$(cat "$record" 2>/dev/null || true)
  if [[ $earlier == "${torch:-${earlier% *}} $state" ]]; then same=1; fi
  if [[ $2 == everything ]]; then tests=ON; fi
  if [[ -f build/$preset/build.ninja ]]; then
    if [[ $tests == OFF || "$(cached "$preset" LOCKSTEP_BUILD_TESTS)$(cached "$preset" LOCKSTEP_BUILD_BENCHMARKS)$(cached "$preset" LOCKSTEP_HAS_MPI)$(cached "$preset" LOCKSTEP_BUILD_PYTHON)" == ONONONON ]] &&
      [[ $warnings_as_errors == OFF || "$(cached "$preset" LOCKSTEP_WARNINGS_AS_ERRORS)" == ON ]] &&
      [[ -n $same ]]; then
      return 0
    fi
  fi
  say "Configuring build/$preset"
  if [[ -n $earlier && -z $same ]]; then # what was found in the earlier one is looked for again
    forget=(-U Torch_DIR -U LOCKSTEP_WITH_CUDA -U LOCKSTEP_PYTHON -U 'LOCKSTEP_CU*_INCLUDE_DIR' -U 'LOCKSTEP_[CN]*_INCLUDE_DIR' -U LOCKSTEP_CUDART)
  fi
  local options=("-DLOCKSTEP_BUILD_TESTS=$tests" "-DLOCKSTEP_BUILD_BENCHMARKS=$tests" "-DLOCKSTEP_BUILD_PYTHON=$tests"
    "-DLOCKSTEP_WARNINGS_AS_ERRORS=$warnings_as_errors")
  if [[ $tests == ON ]]; then options+=("-DLOCKSTEP_WITH_MPI=ON"); fi # tests do not skip themselves
  # Without a GPU a toolkit that happens to be there changes nothing: setup.sh installed the CPU part alone.
  if [[ -f .cache/setup/without-cuda && -z ${LOCKSTEP_TORCH_PREFIX:-} ]]; then options+=("-DLOCKSTEP_WITH_CUDA=OFF"); fi
  if [[ -n $torch ]]; then options+=("-DTorch_DIR=$torch"); fi
  cmake --preset "$preset" "${forget[@]}" "${options[@]}"
  echo "${torch:-${earlier% *}} $state" >"$record"
}

# Keeps one line of ninja's progress in each twentieth of the way, and every line that is none of progress. Not with awk:
# Debian's mawk waits for a full block of input.
thin_progress() {
  local line part shown=
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+), ]]; then
      part=$((20 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      if [[ $part == "$shown" ]]; then continue; fi
      shown=$part
    fi
    printf '%s\n' "$line"
  done
}

# build <preset> [target...]: each line shows how many steps are done, of how many, and the seconds since the start.
build() {
  local preset=$1 targets=() jobs
  shift
  if (($#)); then targets=(--target "$@"); fi
  jobs=$(jobs_that_fit)
  say "Building build/$preset${*:+: $*} ($jobs at a time)"
  export NINJA_STATUS='[%f/%t, %e s] '
  if [[ -t 1 ]]; then
    cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}"
  else
    cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}" | thin_progress
  fi
}
