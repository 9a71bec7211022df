#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Sets up, builds and runs every test: scripts/test.sh [preset] [ctest argument...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ -n ${CI:-} ]] || warnings_as_errors=OFF

usage() {
  cat <<END
Usage: scripts/test.sh [preset] [ctest argument...]

Sets up what is missing, builds everything and runs the tests. What follows the preset goes to ctest:
  scripts/test.sh                    all tests
  scripts/test.sh -L unit            those with the label "unit"
  scripts/test.sh asan -R LostRanks  those whose name matches, with sanitizers
Presets: ${presets[*]} (default: release).
END
}

case "${1:-}" in -h | --help) usage && exit 0 ;; esac
preset=release
if (($#)) && is_preset "$1"; then
  preset=$1
  shift
fi
say "1 of 3: set-up. Where nothing is installed it downloads 210 to 300 MB of Debian packages, 190 MB to 2.7 GB of PyTorch and
    170 MB of other Python packages, and takes four minutes besides"
bash scripts/setup.sh --tests
say "2 of 3: build (half an hour on two cores the first time)"
configure "$preset" everything
if [[ -n ${CI:-} ]]; then
  build "$preset" all benchmarks/all # so that the benchmarks keep compiling
else
  build "$preset"
fi
say "3 of 3: tests (fifteen minutes on two cores)"
exec ctest --preset "$preset" "$@"
