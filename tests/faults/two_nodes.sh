#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Two nodes, left and right, with networks and host names of their own and a cable between them:
#   two_nodes.sh <lockstep> <script of a rank> [ranks of each node] [restarts]
# To be run in user and network namespaces of its own: unshare -Urn two_nodes.sh ...
set -eu
lockstep=$1
script=$2
ranks=${3:-1}
restarts=${4:-1}

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

# <node rank> [command to run it by...]
node() {
  rank=$1
  shift
  "$@" "$lockstep" run --nnodes 2 --nproc-per-node "$ranks" --node-rank "$rank" --master-addr 10.77.0.1 --master-port 29500 \
    --max-restarts "$restarts" -- /bin/sh -c "$script"
}
node 1 nsenter -t "$other" -n -u &
second=$!
status=0
node 0 unshare -u sh -c 'hostname left && exec "$@"' sh || status=$?
wait "$second" || status=$?
kill "$other"
exit "$status"
