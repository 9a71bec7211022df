#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs a command of this repository as on a fresh machine: scripts/fresh.sh <bookworm|trixie> [option...] <command...>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
Usage: scripts/fresh.sh <bookworm|trixie> [option...] <command> [argument...]

Makes a root with the minimal Debian 12 or 13 (debootstrap), clones HEAD into it and runs the command in the clone:
  scripts/fresh.sh bookworm scripts/demo.sh
  scripts/fresh.sh trixie --user scripts/demo.sh

Nothing else of this machine is visible there: no programs, toolkits, caches, settings or environment variables. What the
package registries need is passed on from this machine's own settings: name resolution, proxies, certificates, Debian's
mirror and pip's index. Needs root.

  (no option)         the command runs as root
  --user              as a user who may not become root
  --sudo              as a user with passwordless sudo
  --packages <names>  installs these Debian packages first, a list with spaces
  --set <name=value>  sets an environment variable; may be repeated
  --wheels <folder>   pip takes packages from this folder, visible as /wheels, before it asks its index
  --copy <path>       copies this file or folder, which git ignores, into the clone
  --no-network        the command has no network but its loopback device
  --keep              keeps the root and prints its folder; scripts/fresh.sh --enter <folder> <command> runs another command
END
}

# Below the root, a file of the registries' certificates, which no installed package replaces.
certificates=/etc/registries.pem

# debian_site <label>: the address from which this machine installs packages of Debian or Debian-Security.
debian_site() {
  local site
  # shellcheck disable=SC2016  # apt replaces them
  site=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sed -n "s/^$1 //p" | head -n 1)
  echo "${site:-http://deb.debian.org/${1,,}}"
}

# make_base <suite>: an archive of the minimal system, made once.
make_base() {
  local suite=$1 base=.cache/fresh/$1.tar
  if [[ -f $base ]]; then return 0; fi
  command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
  say "Making a minimal $suite (1 to 3 minutes, once)"
  rm -rf "$base.root"
  debootstrap --variant=minbase "$suite" "$base.root" "$(debian_site Debian)" >"$base.log" 2>&1 ||
    fail "debootstrap failed (its output: $root/$base.log)"
  rm -rf "$base.root"/var/cache/apt/*.bin "$base.root"/var/cache/apt/archives/*.deb
  tar -C "$base.root" -cf "$base.part" .
  mv "$base.part" "$base"
  rm -rf "$base.root"
}

# certificates_of_host: the file that this machine's pip, OpenSSL or npm trusts by its settings, if any.
certificates_of_host() {
  local file
  for file in "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" "$(python3 -m pip config get global.cert 2>/dev/null || true)" \
    "${NODE_EXTRA_CA_CERTS:-}"; do
    if [[ -n $file && -f $file ]]; then echo "$file" && return 0; fi
  done
}

# pass_on <folder> <suite>: what the registries need.
pass_on() {
  local folder=$1 suite=$2 index trusted
  cp -L /etc/resolv.conf /etc/hosts "$folder/etc/"
  echo "127.0.1.1 fresh" >>"$folder/etc/hosts"
  echo fresh >"$folder/etc/hostname"
  cat >"$folder/etc/apt/sources.list" <<END
deb $(debian_site Debian) $suite main
deb $(debian_site Debian) $suite-updates main
deb $(debian_site Debian-Security) $suite-security main
END
  apt-config dump Acquire 2>/dev/null | grep -iE '^Acquire::(https?::Proxy|Check-Valid-Until|Check-Date)' >"$folder/etc/apt/apt.conf.d/90host" || true
  index=$(python3 -m pip config get global.index-url 2>/dev/null || true)
  trusted=$(certificates_of_host)
  {
    echo '[global]'
    if [[ -n $index ]]; then echo "index-url = $index"; fi
    if [[ -n $trusted ]]; then echo "cert = $certificates"; fi
    if [[ -n $wheels ]]; then echo 'find-links = /wheels'; fi
  } >"$folder/etc/pip.conf"
  if [[ -n $trusted ]]; then
    cp -L "$trusted" "$folder$certificates"
    variables+=("SSL_CERT_FILE=$certificates" "NODE_EXTRA_CA_CERTS=$certificates")
  fi
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [[ -n ${!name:-} ]]; then variables+=("$name=${!name}"); fi
  done
}

# enter <folder> <user> <command...>: runs it in a mount, process, IPC and host-name namespace of its own.
enter() {
  local folder=$1 user=$2
  shift 2
  unshare --mount --pid --ipc --uts ${no_network:+--net} --fork --kill-child bash -s -- "$folder" "$wheels" "$no_network" <<'END'
set -euo pipefail
folder=$1 wheels=$2 no_network=$3
if [[ -n $no_network ]]; then ip link set lo up; fi
mount --make-rprivate /
mount --bind "$folder" "$folder"
cd "$folder"
mount -t proc proc proc
mount -t tmpfs -o mode=755,size=1m tmpfs dev
mkdir dev/shm dev/pts
for device in null zero full random urandom tty; do touch "dev/$device" && mount --bind "/dev/$device" "dev/$device"; done
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount --bind /sys sys && mount -o remount,bind,ro sys
if [[ -n $(ls /sys/fs/cgroup) ]]; then mount --rbind /sys/fs/cgroup sys/fs/cgroup; fi  # as every booted machine has
if [[ -n $wheels ]]; then mkdir -p wheels && mount --bind "$wheels" wheels; fi
hostname fresh
mkdir -p old-root
pivot_root . old-root
cd /
umount -l /old-root
rmdir /old-root
# Not exec: the first process of the namespace has to collect orphans.
bash /enter.sh </dev/null
exit $?
END
}

# write_entry <folder> <user> <command...>: what runs inside, first.
write_entry() {
  local folder=$1 user=$2 home=/root as=() words
  shift 2
  if [[ $user != root ]]; then
    home=/home/$user
    as=(setpriv "--reuid=$user" "--regid=$user" --init-groups)
  fi
  words=$(printf '%q ' env -i "HOME=$home" "USER=$user" "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    LANG=C.UTF-8 TERM=dumb "${variables[@]}" "${as[@]}" "$@")
  printf 'cd %q && exec %s\n' "$home/lockstep" "$words" >"$folder/enter.sh"
}

# prepare <folder> <suite> <user>: packages, the user, and the clone.
prepare() {
  local folder=$1 suite=$2 user=$3 home=/root
  tar -C "$folder" -xf ".cache/fresh/$suite.tar"
  pass_on "$folder" "$suite"
  if ((${#packages[@]})); then
    say "Installing ${packages[*]}"
    mkdir -p "$folder/root/lockstep"
    write_entry "$folder" root bash -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends "$@"' - "${packages[@]}"
    enter "$folder" root >"$folder.log" 2>&1 || { tail -n 20 "$folder.log" >&2 && fail "the packages could not be installed"; }
    rmdir "$folder/root/lockstep"
  fi
  if [[ $user != root ]]; then
    home=/home/$user
    chroot "$folder" useradd --create-home --shell /bin/bash "$user"
    if [[ -d $folder/etc/sudoers.d ]]; then
      echo "$user ALL=(ALL) NOPASSWD: ALL" >"$folder/etc/sudoers.d/$user"
    fi
  fi
  git clone --quiet --no-hardlinks "$root" "$folder$home/lockstep"
  git -C "$folder$home/lockstep" remote remove origin
  local path
  for path in "${copies[@]}"; do cp -r --parents "$path" "$folder$home/lockstep"; done
  chroot "$folder" chown -R "$user:$user" "$home/lockstep"
}

folder='' suite='' user=root wheels='' keep='' no_network='' packages=() variables=() copies=()
case "${1:-}" in
  bookworm | trixie) suite=$1 && shift ;;
  --enter) [[ -d ${2:-} ]] || fail "there is no folder ${2:-}" && folder=$(realpath "$2") && keep=1 && shift 2 ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
while (($#)); do
  case $1 in
    --user) user=me ;;
    --sudo) user=me && packages+=(sudo) ;;
    --packages) read -ra more <<<"$2" && packages+=("${more[@]}") && shift ;;
    --set) variables+=("$2") && shift ;;
    --wheels) wheels=$(realpath "$2") && shift ;;
    --copy) copies+=("$2") && shift ;;
    --no-network) no_network=1 ;;
    --keep) keep=1 ;;
    -*) usage >&2 && exit 2 ;;
    *) break ;;
  esac
  shift
done
(($#)) || { usage >&2 && exit 2; }
[[ $(id -u) == 0 ]] || fail "scripts/fresh.sh makes roots and namespaces, so it needs root"

if [[ -z $folder ]]; then
  mkdir -p .cache/fresh
  make_base "$suite"
  folder=$(mktemp -d "$root/.cache/fresh/$suite.XXXXXX")
  chmod 755 "$folder"
  if [[ -z $keep ]]; then trap 'rm -rf "$folder" "$folder.log"' EXIT; fi
  prepare "$folder" "$suite" "$user"
elif [[ -f $folder$certificates ]]; then
  variables+=("SSL_CERT_FILE=$certificates" "NODE_EXTRA_CA_CERTS=$certificates")
fi
write_entry "$folder" "$user" "$@"
clone=$folder/$([[ $user == root ]] && echo root || echo "home/$user")/lockstep
say "In a fresh ${suite:-root}, as $user, at commit $(git -c safe.directory='*' -C "$clone" rev-parse --short HEAD): $*"
# Seconds of the processors that the ended processes of this script have used.
processor_seconds() { awk -v ticks="$(getconf CLK_TCK)" '{print int(($16 + $17) / ticks)}' "/proc/$$/stat"; }
seconds=$SECONDS before=$(processor_seconds) status=0
enter "$folder" "$user" || status=$?
say "It ended with status $status after $((SECONDS - seconds)) s ($(($(processor_seconds) - before)) s of processor time)"
if [[ -n $keep ]]; then say "Its root is kept in ${folder#"$root"/}"; fi
exit "$status"
