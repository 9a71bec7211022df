#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the documentation site: scripts/docs.sh [folder]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/docs.sh [folder]

Builds the documentation site of this version in <folder>/<version> (default: build/docs/html). Earlier versions that the folder has
stay, and every page lists them. Open <folder>/index.html: the site needs neither a server nor a network. Nothing is fetched
but packages that are missing, and every warning is an error.
END
}

case "${1:-}" in -h | --help) usage && exit 0 ;; esac
folder=${1:+$(cd "$caller_dir" && realpath -m "$1")}
if ! command -v doxygen >/dev/null || ! .venv/bin/python -c 'import breathe, furo, myst_parser, sphinx_copybutton' 2>/dev/null; then
  bash scripts/setup.sh --tests
fi
exec .venv/bin/python -B docs/site/build.py "${folder:-build/docs/html}"
