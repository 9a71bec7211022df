#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Hosts with networks of their own, joined by a switch for each of their two cards: networks.sh <number> <program of tests>
# [argument...]. Host h has 10.78.0.h on the card network and 10.79.0.h on the card network2.
# To be run in user and network namespaces of its own: unshare -Urn networks.sh ... The program gets LOCKSTEP_TEST_NETWORKS, the
# processes whose networks they are.
set -eu
count=$1
shift
own=$(readlink /proc/self/ns/net)
ip link set lo up
for card in network network2; do
  ip link add "$card" type bridge
  ip link set "$card" up
done
holders=
trap 'kill $holders 2>/dev/null' EXIT INT TERM
for host in $(seq "$count"); do
  setpriv --pdeathsig KILL unshare -n sleep 10000 &
  holder=$!
  holders=$holders${holders:+ }$holder
  while [ "$(readlink "/proc/$holder/ns/net")" = "$own" ] || [ "$(cat "/proc/$holder/comm")" != sleep ]; do
    kill -0 "$holder" || exit 1
    sleep 0.01
  done
  nsenter -t "$holder" -n ip link set lo up
  for card in network:78 network2:79; do
    name=${card%:*}
    ip link add "$name.$host" type veth peer name "$name" netns "$holder"
    ip link set "$name.$host" master "$name" up
    nsenter -t "$holder" -n ip addr add "10.${card#*:}.0.$host/24" dev "$name"
    nsenter -t "$holder" -n ip link set "$name" up
  done
done
LOCKSTEP_TEST_NETWORKS=$holders "$@"
