#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs clang-tidy 16: scripts/tidy.sh [--all | file...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/tidy.sh [--all | file...]

Runs clang-tidy over the C++ files that differ from the last commit, over all, or over those named.
It takes about 20 seconds for a file that includes LibTorch. The tests do not run it.
END
}

program=$(command -v clang-tidy-16 || command -v clang-tidy) ||
  fail "clang-tidy 16 is missing; on Debian: apt-get install clang-tidy-16"

all_sources() { find src tools examples benchmarks -name '*.cpp' | sort; }
changed_sources() {
  { git diff --name-only --diff-filter=d HEAD && git ls-files --others --exclude-standard; } |
    grep -E '^(src|tools|examples|benchmarks)/.*\.cpp$' | sort -u || true
}

case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  --all) mapfile -t files < <(all_sources) ;;
  '') mapfile -t files < <(changed_sources) ;;
  *) files=("$@") ;;
esac
if ((!${#files[@]})); then
  say "No C++ file differs from the last commit"
  exit 0
fi

bash scripts/setup.sh
# A tree of its own: clang-tidy cannot read g++'s precompiled headers.
if [[ ! -f build/tidy/build.ninja ]]; then
  cmake -S . -B build/tidy -G Ninja -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DLOCKSTEP_CCACHE=OFF \
    -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_BENCHMARKS=OFF >/dev/null
fi
say "Checking ${#files[@]} file(s) with $program"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(jobs_that_fit)" "$program" --quiet -p build/tidy
