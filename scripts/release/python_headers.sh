#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Headers of CPythons that this Debian does not have, from packages of newer ones: scripts/release/python_headers.sh <folder> <3.13:trixie>...
# Puts each into <folder>/python3.13, for scripts/release.sh --python. A module needs nothing else of its Python to be compiled.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
(($# >= 2)) || fail "usage: scripts/release/python_headers.sh <folder> <version:Debian, such as 3.13:trixie>..."
folder=$(cd "$caller_dir" && realpath -m "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lists of their own, so that nothing of a newer Debian is installed here.
mkdir -p "$work/lists/partial" "$folder"
mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1)
for suite in "${@#*:}"; do echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"; done | sort -u >"$work/sources.list"
newer=(-o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
apt-get -qq "${newer[@]}" update

for wanted in "$@"; do
  name=python${wanted%:*}
  mkdir "$work/$name"
  (cd "$work/$name" && apt-get -qq "${newer[@]}" download "lib$name-dev/${wanted#*:}")
  dpkg -x "$work/$name"/*.deb "$work/$name"
  rm -rf "${folder:?}/$name"
  mv "$work/$name/usr/include/$name" "$folder/$name"
  # Debian's file in its place includes the one of the architecture, which only a system folder leads to.
  mv "$work/$name/usr/include/$(dpkg-architecture -q DEB_HOST_MULTIARCH)/$name/pyconfig.h" "$folder/$name/pyconfig.h"
  grep -q '^#define PY_RELEASE_LEVEL *PY_RELEASE_LEVEL_FINAL' "$folder/$name/patchlevel.h" ||
    fail "$folder/$name is of a CPython that is not released yet, whose interface may still change"
  say "$folder/$name: $(sed -nE 's/^#define PY_VERSION +"(.*)"/\1/p' "$folder/$name/patchlevel.h")"
done
