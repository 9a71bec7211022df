#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Makes the files of a release: scripts/release.sh <version> [option...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/release.sh <version> [--rehearse] [--python <headers>]... [--tree <folder>] [--output <folder>]
       scripts/release.sh --use <bookworm|trixie> <folder of a release> [--sources]
       scripts/release.sh --compare <folder of a release> <folder of a release>

Makes, from the present commit and the torch of .venv, in build/release-<version>: the source archive, the source
distribution and the wheel of lockstep-torch, two Debian packages, licences, a bill of materials,
notes and SHA256SUMS. It builds in build/release-tree. Refuses a tree with changes, and a version that a file contradicts:
scripts/release/version.py set <version> makes all files state it. docs/releasing.md is about releases.

  --rehearse         accepts a version that the changelog calls unreleased
  --python <headers>  the wheel also serves the CPython whose Python.h is in this folder, besides that of .venv.
                     scripts/release/python_headers.sh fetches such folders
  --tree <folder>    updates and packs this build tree, instead of build/release-tree. It needs
                     LOCKSTEP_BUILD_PYTHON and static libraries. Its programs name folders of this machine, so the files
                     differ from those of another machine
  --output <folder>  a folder that does not exist yet
  --use              installs the wheel, if it serves that Python, and the Debian packages in a minimal Debian and
                     uses them on two ranks (root; needs the network for torch); with --sources, the source distribution
                     and the source archive, too, which are compiled
  --compare          fails unless both folders have equal files
END
}

# compare <folder> <folder>
compare() {
  local folder
  for folder in "$@"; do [[ -f $folder/SHA256SUMS ]] || fail "$folder has no SHA256SUMS; name two folders that this script has made"; done
  diff -r "$1" "$2" || fail "the releases in $1 and $2 differ"
  say "Equal: $(wc -l <"$1/SHA256SUMS") files"
}

# use <suite> <folder> [--sources]
use() {
  [[ -f $2/SHA256SUMS ]] || fail "$2 has no SHA256SUMS; name a folder that this script has made"
  exec bash scripts/fresh.sh "$1" --packages "python3 python3-venv g++ cmake ninja-build" --wheels "$2" bash scripts/release/use.sh /wheels "${@:3}"
}

# Programs without folders of this machine: neither the places of LibTorch and of the build, nor __FILE__ of this tree.
configure_tree() {
  local torch=$1
  cmake --preset release -B "$tree" "-DTorch_DIR=$torch/share/cmake/Torch" -DLOCKSTEP_BUILD_TESTS=OFF \
    -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF -DLOCKSTEP_BUILD_GPU_CHECKS=OFF -DLOCKSTEP_BUILD_PYTHON=ON -DLOCKSTEP_WITH_CUDA=OFF \
    -DLOCKSTEP_WITH_MPI=OFF -DLOCKSTEP_WITH_LIBDW=ON -DLOCKSTEP_WITH_NCURSES=ON -DLOCKSTEP_WITH_MICROHTTPD=ON \
    -DLOCKSTEP_CCACHE=OFF -DCMAKE_SKIP_RPATH=ON "-DLOCKSTEP_PYTHON_HEADERS=$(IFS=';' && echo "${pythons[*]}")" \
    "-DCMAKE_CXX_FLAGS=\"-ffile-prefix-map=$root=.\" \"-ffile-prefix-map=$torch=torch\""
}

case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  --compare) [[ $# == 3 ]] || { usage >&2 && exit 2; } && compare "$(cd "$caller_dir" && realpath "$2")" "$(cd "$caller_dir" && realpath "$3")" && exit 0 ;;
  --use)
    [[ $# == 3 || ($# == 4 && $4 == --sources) ]] || { usage >&2 && exit 2; }
    use "$2" "$(cd "$caller_dir" && realpath "$3")" "${@:4}"
    ;;
  '' | -*) usage >&2 && exit 2 ;;
esac
version=$1 tree='' output='' rehearse=() pythons=()
shift
while (($#)); do
  case $1 in
    --rehearse) rehearse=(--rehearse) ;;
    --python)
      (($# > 1)) || fail "--python needs a folder"
      [[ -f $(cd "$caller_dir" && realpath -m "$2")/Python.h ]] || fail "--python: $2 has no Python.h; name a folder of headers, such as /usr/include/python3.13"
      pythons+=("$(cd "$caller_dir" && realpath "$2")") && shift
      ;;
    --tree)
      (($# > 1)) || fail "--tree needs a folder"
      [[ -f $(cd "$caller_dir" && realpath -m "$2")/CMakeCache.txt ]] || fail "--tree: $2 is no build tree; name a folder that CMake has configured"
      tree=$(cd "$caller_dir" && realpath "$2") && shift
      ;;
    --output)
      (($# > 1)) || fail "--output needs a folder"
      output=$(cd "$caller_dir" && realpath -m "$2") && shift
      ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
[[ -z $tree || ${#pythons[@]} == 0 ]] || fail "--python is for a tree of this script's own: configure $tree with -DLOCKSTEP_PYTHON_HEADERS"
output=${output:-$root/build/release-$version}
[[ ! -e $output ]] || fail "$output exists: remove it, or name another folder with --output"
command -v git >/dev/null || fail "git is missing: apt-get install git"
changes=$(git status --porcelain) || fail "git cannot say whether this tree has changes; see its message above"
[[ -z $changes ]] || fail "this tree has changes: commit them, so that the release is what the commit says"
python3 -B scripts/release/version.py check "$version" "${rehearse[@]}"
for program in dpkg-shlibdeps:dpkg-dev dpkg-deb:dpkg; do
  command -v "${program%:*}" >/dev/null || fail "${program%:*} is missing: apt-get install ${program#*:}"
done

umask 022
export LC_ALL=C.UTF-8 TZ=UTC
env -u VIRTUAL_ENV bash scripts/setup.sh --tests
if [[ -z $tree ]]; then
  torch=$(torch_prefix .venv 2>/dev/null) || fail ".venv has no torch: unset LOCKSTEP_TORCH_PREFIX and deactivate other environments, then run scripts/setup.sh --tests"
  tree=$root/build/release-tree
  configure_tree "$(realpath "$torch")"
fi
python=$(sed -n 's/^LOCKSTEP_PYTHON:[A-Z]*=//p' "$tree/CMakeCache.txt")
[[ -n $python && $(sed -n 's/^LOCKSTEP_BUILD_PYTHON:BOOL=//p' "$tree/CMakeCache.txt") == ON ]] || fail "$tree has no Python package: configure it with -DLOCKSTEP_BUILD_PYTHON=ON"
[[ $(sed -n 's/^BUILD_SHARED_LIBS:BOOL=//p' "$tree/CMakeCache.txt") != ON ]] || fail "$tree has shared libraries, which the packages do not contain: configure it with -DBUILD_SHARED_LIBS=OFF"
say "Building ${tree#"$root"/}"
cmake --build "$tree" --parallel "$(jobs_that_fit)" --target lockstep_wheel | thin_progress
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
PATH=$root/.venv/bin:$PATH
export SOURCE_DATE_EPOCH PATH
say "Making ${output#"$root"/}"
rm -rf "$output.part"
"$python" -B scripts/release/make.py "$version" "$tree" "$output.part"
mv "$output.part" "$output"
