#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Fuzzes the readers of files, and what launchers receive:
#   scripts/fuzz.sh <checkpoint | datasets | images | launcher | tar> [libFuzzer option...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/fuzz.sh <checkpoint | datasets | images | launcher | tar> [libFuzzer option...]

Builds a fuzzer of tests/fuzz with clang 16 and the address sanitizer, and runs it on small files that Python writes:
checkpoints, files of datasets, images, tar archives, or messages and events of the launchers of a run. The default is one
hour; -runs=N and -max_total_time=SECONDS change it. The corpus stays in build/fuzz/<name>/corpus.
END
}

case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  checkpoint) seeds=tests/fuzz/seeds.py ;;
  datasets) seeds=tests/fuzz/dataset_seeds.py ;;
  images) seeds=tests/fuzz/image_seeds.py ;;
  launcher) seeds=tests/fuzz/launcher_seeds.py ;;
  tar) seeds=tests/fuzz/tar_seeds.py ;;
  *) usage >&2 && exit 2 ;;
esac
name=$1
shift
compiler=$(command -v clang++-16 || command -v clang++) || fail "clang++ 16 is missing; on Debian: apt-get install clang-16"
bash scripts/setup.sh --tests
# Examples are configured, since tests name them, and not built.
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -g1" -DCMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link" \
  -DLOCKSTEP_SANITIZE=address -DLOCKSTEP_FUZZ=ON -DLOCKSTEP_UNITY_BUILD=ON -DLOCKSTEP_BUILD_EXAMPLES=ON \
  -DLOCKSTEP_BUILD_BENCHMARKS=OFF >/dev/null
ninja -C build/fuzz "fuzz_$name"
folder=build/fuzz/$name
mkdir -p "$folder/corpus"
"$(cached fuzz LOCKSTEP_PYTHON)" -W ignore "$seeds" "$folder/seeds"
limits=(-rss_limit_mb=3072 -malloc_limit_mb=1024 -timeout=10 -max_len=30000)
if ((!$#)); then set -- -max_total_time=3600; fi
OMP_NUM_THREADS=1 exec "build/fuzz/bin/fuzz_$name" "${limits[@]}" -artifact_prefix="$folder/" "$@" \
  "$folder/corpus" "$folder/seeds"
