#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Makes a release twice on this minimal machine, the second time in a clone elsewhere and with another umask, language and time zone,
# and compares the files: scripts/release/twice.sh <version> <folder>
set -euo pipefail
version=$1 folder=$2
scripts/release/python_headers.sh /opt/headers 3.13:trixie 3.14:forky 3.15:forky
pythons=(--python /opt/headers/python3.13 --python /opt/headers/python3.14 --python /opt/headers/python3.15)
scripts/release.sh "$version" --rehearse "${pythons[@]}" --output "$folder/first"
umask 077
git clone --quiet . /root/elsewhere/lockstep
cd /root/elsewhere/lockstep
LC_ALL=C TZ=Asia/Tokyo scripts/release.sh "$version" --rehearse "${pythons[@]}" --output "$folder/second"
scripts/release.sh --compare "$folder/first" "$folder/second"
