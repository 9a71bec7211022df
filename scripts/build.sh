#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds: scripts/build.sh [preset] [target...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<END
Usage: scripts/build.sh [preset] [target...]

Sets up what is missing, then builds the targets (default: all) in build/<preset>.
Presets: ${presets[*]} (default: release). Programs land in build/<preset>/bin.
END
}

case "${1:-}" in -h | --help) usage && exit 0 ;; esac
preset=release
if (($#)) && is_preset "$1"; then
  preset=$1
  shift
fi
bash scripts/setup.sh --tests
configure "$preset" everything
build "$preset" "$@"
