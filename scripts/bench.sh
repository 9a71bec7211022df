#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs a benchmark: scripts/bench.sh <name> [argument...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

names() {
  local file
  for file in benchmarks/run_*.py; do
    [[ -f $file ]] && basename "$file" .py | sed 's/^run_/  /'
  done
}

usage() {
  cat <<END
Usage: scripts/bench.sh <name> [argument...]

Sets up what is missing, builds, and runs benchmarks/run_<name>.py. Most have --record, which writes the run to benchmarks/results.
The benchmarks there are:
$(names)
END
}

case "${1:-}" in -h | --help) usage && exit 0 ;; esac
if ((!$#)) || [[ ! -f benchmarks/run_$1.py ]]; then
  ((!$#)) || printf 'error: there is no benchmark %s\n\n' "$1" >&2
  usage >&2
  exit 2
fi
name=$1
shift
bash scripts/setup.sh --tests
configure release everything
build release tools/lockstep/all tools/lockstep_bench/all tools/lockstep_plan/all examples/all benchmarks/all lockstep_python
LOCKSTEP_BUILD_DIR=$root/build/release
LOCKSTEP_PYTHON=$(cached release LOCKSTEP_PYTHON)
export LOCKSTEP_BUILD_DIR LOCKSTEP_PYTHON
exec "$LOCKSTEP_PYTHON" "benchmarks/run_$name.py" "$@"
