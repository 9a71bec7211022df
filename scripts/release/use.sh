#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs and uses the wheel and the packages of a release on this minimal machine: scripts/release/use.sh <folder of a release>
# scripts/release.sh --use runs it in a root of scripts/fresh.sh, as root.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
release=$1
work=$(mktemp -d)
venv=$work/venv

# timed <what> <command...>: adds a row to the table of docs/platforms.md.
timed() {
  local what=$1 begin=$SECONDS
  shift
  say "$what"
  "$@"
  printf '| %s | %s s |\n' "$what" $((SECONDS - begin)) >>"$work/times.md"
}

# expect <words> <command...>: it fails and says so, in one line.
expect() {
  local words=$1 text
  shift
  if text=$("$@" 2>&1); then fail "$* ended well; it had to say \"$words\""; fi
  [[ $text == *"$words"* ]] || fail "$* had to say \"$words\" and said: $text"
}

# The first program of the start page, and its project.
make_project() {
  mkdir -p "$1"
  python3 - "$1" <<'END'
import pathlib, re, sys
page, folder = pathlib.Path("docs/start.md").read_text(), pathlib.Path(sys.argv[1])
(folder / "train.cpp").write_text(re.search(r"^```cpp\n(#include.*?)^```", page, re.M | re.S)[1])
(folder / "CMakeLists.txt").write_text(re.search(r"^```cmake\n(cmake_minimum.*?)^```", page, re.M | re.S)[1])
END
}

# cpp <name> <lockstep> [argument of cmake...]: configures, builds and runs it on two ranks.
cpp() {
  local folder=$work/$1 lockstep=$2
  shift 2
  make_project "$folder"
  cmake -S "$folder" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
  cmake --build "$folder/build"
  "$lockstep" run --nproc-per-node 2 "$folder/build/train" 2>&1 | tee "$folder/log"
  grep -q 'epoch 2: rank 1 of 2, loss' "$folder/log"
}

# The wheel for this Python; empty if the release has none.
wheel=$(compgen -G "$release/lockstep_torch-*-$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*.whl" || true)

install_torch() {
  local torch
  torch=$(dpkg-deb --field "$release"/lockstep-torch*.deb Version)
  python3 -m venv "$venv"
  retry 3 "$venv/bin/pip" install --quiet "torch==${torch#*+torch}" numpy
}

install_wheel() {
  local torch
  torch=$("$venv/bin/pip" freeze | grep '^torch==')
  "$venv/bin/pip" install --quiet "$wheel"
  "$venv/bin/pip" check
  [[ $("$venv/bin/pip" freeze | grep '^torch==') == "$torch" ]] || fail "pip replaced $torch"
}

use_wheel() {
  "$venv/bin/lockstep" run --nproc-per-node 2 tests/package/wheel/train.py
  "$venv/bin/python" -m lockstep_torch.run --nproc-per-node 2 tests/package/wheel/train.py
  "$venv/bin/lockstep" doctor --json >/dev/null || [[ $? == 1 ]]
}

install_packages() {
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends "$release"/*.deb >/dev/null
}

# A folder that says that it is another LibTorch.
other_torch() {
  local folder=$work/other
  mkdir -p "$folder/lib" "$folder/share/cmake/Torch" "$folder/share/cmake/Caffe2"
  touch "$folder/share/cmake/Torch/TorchConfig.cmake" "$folder/share/cmake/Caffe2/Caffe2Targets.cmake" "$folder/lib/libtorch_cpu.so"
  echo '_ZNSt7__cxx1112basic_string' >"$folder/lib/libc10.so"
  echo 'set(PACKAGE_VERSION "2.99.0")' >"$folder/share/cmake/Torch/TorchConfigVersion.cmake"
  echo "$folder"
}

use_packages() {
  local other
  other=$(other_torch)
  expect "has no torch" env -u VIRTUAL_ENV /usr/bin/lockstep-bench --help
  export VIRTUAL_ENV=$venv
  /usr/bin/lockstep bench --nproc 2 all_reduce
  /usr/bin/lockstep plan --help >/dev/null
  /usr/bin/lockstep ckpt --help >/dev/null
  /usr/bin/lockstep doctor | tee "$work/doctor" || [[ ${PIPESTATUS[0]} == 1 ]]
  grep -q '^ok *libtorch' "$work/doctor"
  expect "has LibTorch 2.99.0" env "LOCKSTEP_TORCH_PREFIX=$other" /usr/bin/lockstep-bench --help
  expect "Found LibTorch 2.99.0" cmake -S "$work/cpp_by_packages" -B "$work/refused" -G Ninja "-DTorch_DIR=$other"
}

(cd "$release" && sha256sum --quiet --check SHA256SUMS)
timed "pip install of torch, with the download" install_torch
if [[ -n $wheel ]]; then
  timed "pip install of the wheel" install_wheel
  timed "a Python program on two ranks, by the wheel" use_wheel
  timed "a C++ program: configured, built and run on two ranks, by the wheel" \
    cpp cpp_by_wheel "$venv/bin/lockstep" "-DCMAKE_PREFIX_PATH=$("$venv/bin/python" -m lockstep_torch --cmake-prefix-path)"
  "$venv/bin/pip" uninstall --quiet --yes lockstep-torch
else
  say "The release has no wheel for $(python3 --version); only its packages are used"
fi
timed "apt-get install of the packages" install_packages
export VIRTUAL_ENV=$venv
timed "a C++ program: configured, built and run on two ranks, by the packages" cpp cpp_by_packages /usr/bin/lockstep
timed "the commands of the packages, and another LibTorch that they refuse" use_packages
if [[ -n $wheel ]]; then
  say "Used: the wheel and the two packages. Not used: the source archive, the source distribution"
else
  say "Used: the two packages. Not used: the wheel, the source archive, the source distribution"
fi
cat "$work/times.md"
