#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# The checks of the inner loop: scripts/check.sh [unit test...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/check.sh [unit test...]

Runs the checks of the source tree (format, includes, language and others), then builds and runs the unit tests, all or
those named, such as unit_ddp. It takes a minute after a build with scripts/build.sh.
END
}

case "${1:-}" in -h | --help) usage && exit 0 ;; esac
[[ -f build/release/build.ninja ]] || bash scripts/setup.sh --tests
configure release everything
ctest --preset release --label-regex hygiene --exclude-regex 'hygiene\.symbols'
if (($#)); then
  build release "$@"
  exec ctest --preset release --label-regex '^unit$' --tests-regex "^($(IFS='|' && echo "$*"))\."
fi
build release tests/unit/all
exec ctest --preset release --label-regex '^unit$'
