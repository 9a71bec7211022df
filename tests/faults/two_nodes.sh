#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Two nodes, left and right, with networks and host names of their own and a cable between them:
#   two_nodes.sh <lockstep> <script of a rank> [ranks of each node] [restarts] [name of the first node]
# With a name, each node has a hosts file; the first one's has 127.0.1.1 for its own name, as on Debian.
# To be run in user and network namespaces of its own: unshare -Urn two_nodes.sh ...
set -eu
lockstep=$1
script=$2
ranks=${3:-1}
restarts=${4:-1}
name=${5:-}

# The second node's network and name live as long as this process.
unshare -nu sh -c "hostname right && exec sleep 1000" &
other=$!
own=$(readlink /proc/self/ns/net)
while [ "$(readlink "/proc/$other/ns/net")" = "$own" ] || [ "$(cat "/proc/$other/comm")" != sleep ]; do sleep 0.01; done

ip link set lo up
ip link add left type veth peer name right netns "$other"
ip addr add 10.77.0.1/24 dev left
ip link set left up
nsenter -t "$other" -n sh -c "ip link set lo up; ip addr add 10.77.0.2/24 dev right; ip link set right up"

# <address of the first node> <its name> <command...>
with_hosts_file='
file=$(mktemp)
echo "$0 $1" > "$file"
mount --bind "$file" /etc/hosts
rm "$file"
shift
exec "$@"'

# <node rank> <address of the first node> [command to run it by...]
node() {
  rank=$1
  address=$2
  shift 2
  [ -z "$name" ] || set -- "$@" unshare -m sh -euc "$with_hosts_file" "$address" "$name"
  "$@" "$lockstep" run --nnodes 2 --nproc-per-node "$ranks" --node-rank "$rank" --master-addr "${name:-10.77.0.1}" --master-port 29500 \
    --max-restarts "$restarts" -- /bin/sh -c "$script"
}
node 1 10.77.0.1 nsenter -t "$other" -n -u &
second=$!
status=0
node 0 127.0.1.1 unshare -u sh -c 'hostname left && exec "$@"' sh || status=$?
wait "$second" || status=$?
kill "$other"
exit "$status"
