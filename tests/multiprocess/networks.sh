#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Hosts with networks of their own, 10.78.0.1 and on, joined by a switch: networks.sh <number> <program of tests> [argument...]
# To be run in user and network namespaces of its own: unshare -Urn networks.sh ... The program gets LOCKSTEP_TEST_NETWORKS, the
# processes whose networks they are.
set -eu
count=$1
shift
own=$(readlink /proc/self/ns/net)
ip link set lo up
ip link add switch type bridge
ip link set switch up
holders=
trap 'kill $holders 2>/dev/null' EXIT INT TERM
for host in $(seq "$count"); do
  unshare -n sleep 10000 &
  holder=$!
  holders=$holders${holders:+ }$holder
  while [ "$(readlink "/proc/$holder/ns/net")" = "$own" ] || [ "$(cat "/proc/$holder/comm")" != sleep ]; do
    kill -0 "$holder" || exit 1
    sleep 0.01
  done
  ip link add "port$host" type veth peer name network netns "$holder"
  ip link set "port$host" master switch up
  nsenter -t "$holder" -n sh -c "ip link set lo up; ip addr add 10.78.0.$host/24 dev network; ip link set network up"
done
LOCKSTEP_TEST_NETWORKS=$holders "$@"
