#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Sends bytes over a TCP connection in both directions at once and prints the median seconds for each size: what the link
and the cores allow an all-reduce of two hosts. Two of them run, one with --listen."""
import argparse
import json
import socket
import statistics
import threading
import time

PORT = 29870  # in a network namespace of its own


def receive(connection, buffer):
    view = memoryview(buffer)
    while view:
        view = view[connection.recv_into(view):]


def exchange(connection, outgoing, incoming):
    sender = threading.Thread(target=connection.sendall, args=(outgoing,))
    sender.start()
    receive(connection, incoming)
    sender.join()


def connect(address, listens):
    if listens:
        with socket.create_server((address, PORT)) as server:
            return server.accept()[0]
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=30)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--listen", action="store_true")
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    parser.add_argument("--iterations", type=int, default=7)
    flags = parser.parse_args()
    medians = {}
    with connect(flags.address, flags.listen) as connection:
        connection.settimeout(120)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in map(int, flags.sizes.split(",")):
            outgoing, incoming = bytes(size), bytearray(size)
            seconds = []
            for _ in range(flags.iterations + 1):
                exchange(connection, b"x", bytearray(1))
                start = time.monotonic()
                exchange(connection, outgoing, incoming)
                seconds.append(time.monotonic() - start)
            medians[size] = statistics.median(seconds[1:])
    if not flags.listen:
        print(json.dumps(medians))


if __name__ == "__main__":
    main()
