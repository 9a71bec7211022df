#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the Python package: scripts/wheel.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/wheel.sh

Sets up what is missing, builds, and writes the wheel and the source distribution of lockstep-torch to build/wheel.
END
}

case "${1:-}" in
  '') ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
bash scripts/setup.sh --tests
configure release everything
build release lockstep_wheel lockstep_mpi
python=$(cached release LOCKSTEP_PYTHON)
"$python" python/pack_wheel.py build/release build/wheel
"$python" -c 'import scikit_build_core.build as build; print("build/wheel/" + build.build_sdist("build/wheel"))'
