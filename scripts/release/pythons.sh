#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds CPythons that this Debian does not have, from the sources in newer ones: scripts/release/pythons.sh <folder> <3.13:trixie>...
# Installs each with its headers as <folder>/python3.13/bin/python3.13, for scripts/release.sh --python. Needs root for apt-get.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
(($# >= 2)) || fail "usage: scripts/release/pythons.sh <folder> <version:Debian, such as 3.13:trixie>..."
folder=$(cd "$caller_dir" && realpath -m "$1")
shift
# What the standard library needs to run pip and to import torch.
apt-get -qq install -y --no-install-recommends gcc make xz-utils libssl-dev zlib1g-dev libffi-dev libbz2-dev liblzma-dev libsqlite3-dev >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lists of their own, so that nothing of a newer Debian is installed here.
mkdir -p "$work/lists/partial" "$work/source"
mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1)
for suite in "${@#*:}"; do echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"; done | sort -u >"$work/sources.list"
newer=(-o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
apt-get -qq "${newer[@]}" update

for wanted in "$@"; do
  version=${wanted%:*}
  say "CPython $version"
  (cd "$work/source" && apt-get -qq "${newer[@]}" source --download-only "python$version/${wanted#*:}")
  mkdir "$work/$version"
  tar -xf "$work/source/python${version}"_*.orig.tar.xz -C "$work/$version" --strip-components 1
  (
    cd "$work/$version"
    ./configure --quiet "--prefix=$folder/python$version" --without-static-libpython
    make --silent -j "$(nproc)"
    make --silent install
  ) >"$work/$version.log" 2>&1 || { tail -n 40 "$work/$version.log" && fail "CPython $version was not built; see above"; }
  "$folder/python$version/bin/python$version" --version
done
