# SPDX-License-Identifier: BSD-3-Clause
"""No command sends anything by itself: connections_test.py <folder with the programs>

Run by `unshare -Urnu`: the only way out of this network is an interface behind which nobody is. What leaves by it, and what asks
a server of names on this host, is recorded by the kernel. Every subcommand of `lockstep` runs; a new one needs a line in COMMANDS.
"""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 60
EVERYTHING = 0x0003  # ETH_P_ALL
NAME_SERVICE = 53
# LibTorch's sockets ask for the name of their peer. 127.0.0.1 as an IPv6 address is not found in /etc/hosts, so the C library asks
# its server of names for it.
OF_LIBTORCH = "1.0.0.127.in-addr.arpa"


def make_network():
    """An interface with addresses and default routes. No neighbour is asked for: packets leave at once."""
    for command in ("ip link set lo up", "ip link add outside type veth peer name beyond", "ip link set beyond up",
                    "ip link set outside arp off up",
                    "ip addr add 192.0.2.1/24 dev outside", "ip -6 addr add 2001:db8::1/64 dev outside nodad",
                    "ip route add default via 192.0.2.2", "ip -6 route add default via 2001:db8::2 dev outside",
                    "hostname localhost"):  # so that the name of this host needs no server
        subprocess.run(command.split(), check=True)


class Recorder:
    """Packets that leave, and questions for names."""

    def __init__(self):
        self._sockets = {}
        for interface in ("outside", "lo"):
            self._sockets[interface] = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            self._sockets[interface].bind((interface, EVERYTHING))
            self._sockets[interface].setblocking(False)

    def packets(self):
        """Descriptions of those since the last call."""
        return [text for interface, recorder in self._sockets.items()
                for data in self._read(recorder) for text in [describe(data, interface)] if text]

    @staticmethod
    def _read(recorder):
        with contextlib.suppress(BlockingIOError):
            while True:
                yield recorder.recv(65536)


def asked_name(question):
    labels = []
    while question and question[0]:
        labels.append(question[1:question[0] + 1].decode(errors="replace"))
        question = question[question[0] + 1:]
    return ".".join(labels)


def describe(data, interface):
    """Where an IP packet goes; "" for one of the kernel's own (ICMPv6; ICMP where this host should have a server of names) and for
    those that stay on this host."""
    version = data[0] >> 4
    protocol, start = (data[9], 4 * (data[0] & 15)) if version == 4 else (data[6], 40)
    if protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        return "" if version == 6 or interface == "lo" else f"protocol {protocol} on {interface}"
    family, address = (socket.AF_INET, data[16:20]) if version == 4 else (socket.AF_INET6, data[24:40])
    port, = struct.unpack("!H", data[start + 2:start + 4])
    if interface == "lo" and port != NAME_SERVICE:
        return ""
    if port == NAME_SERVICE and protocol == socket.IPPROTO_UDP:
        name = asked_name(data[start + 20:])
        return "" if name == OF_LIBTORCH else f"a question for the name {name}, to {socket.inet_ntop(family, address)} port {port}"
    return f"{'TCP' if protocol == socket.IPPROTO_TCP else 'UDP'} to {socket.inet_ntop(family, address)} port {port}"


def check_recorder(recorder):
    """What the test looks for is seen when it happens."""
    for family, address in ((socket.AF_INET, "192.0.2.77"), (socket.AF_INET6, "2001:db8:1::77")):
        with socket.socket(family, socket.SOCK_STREAM) as stranger:
            stranger.setblocking(False)
            stranger.connect_ex((address, 443))
        seen = recorder.packets()
        assert any(f"TCP to {address} port 443" == text for text in seen), f"a connection to {address} was not seen: {seen}"
    with contextlib.suppress(OSError):
        subprocess.run([sys.executable, "-c", "import socket; socket.gethostbyname('lockstep.invalid')"], timeout=LIMIT,
                       stderr=subprocess.DEVNULL)
    seen = recorder.packets()
    assert any(f"port {NAME_SERVICE}" in text for text in seen), f"a question for a name was not seen: {seen}"


def write_checkpoint(path):
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))


def commands(programs, folder):
    """{subcommand: its command lines}; those of LIVE look at a run."""
    rank = str(programs / "report_rank")
    return {
        "run": ["run", "--nproc-per-node", "2", "--report", folder / "report.html", "--", rank, "5"],
        "bench": ["bench", "--nproc", "2", "--sizes", "1K:1K", "all-reduce"],
        "ckpt": ["ckpt", "convert", folder / "a.safetensors", folder / "a.pt"],
        "devices": ["devices"],
        "doctor": ["doctor"],
        "plan": ["plan", "--measure", folder / "machine.json"],
        "recorder": ["recorder", "analyze"],
        "stacks": ["stacks"],
        "top": ["top", "--once"],
    }


LIVE = ("recorder", "stacks", "top")


@contextlib.contextmanager
def live_run(lockstep, rank):
    """Ranks that wait for a launcher that looks at them, which this one does not."""
    process = subprocess.Popen([lockstep, "run", "--nproc-per-node", "2", "--", rank, "1"], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LIMIT
        while subprocess.run([lockstep, "top", "--once"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            assert process.poll() is None and time.monotonic() < end, "the run was not seen"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def main(programs):
    make_network()
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # nobody answers
    recorder = Recorder()
    check_recorder(recorder)
    lockstep = programs / "lockstep"
    help_text = subprocess.run([lockstep, "--help"], check=True, text=True, stdout=subprocess.PIPE).stdout
    listed = re.findall(r"^  (\w+) ", help_text.partition("Subcommands:")[2], re.MULTILINE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "a.safetensors")
        lines = commands(programs, folder)
        assert sorted(lines) == sorted(listed), f"`lockstep --help` lists {listed}, this test runs {list(lines)}"
        for command in sorted(lines, key=lambda command: command in LIVE):
            with live_run(lockstep, programs / "report_rank") if command in LIVE else contextlib.nullcontext():
                result = subprocess.run([lockstep, *lines[command]], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        timeout=LIMIT, cwd=folder)
            # The doctor and `recorder analyze` end with 1 if they find a problem.
            assert result.returncode in ((0, 1) if command in ("doctor", "recorder") else (0,)), f"{command}:\n{result.stdout}"
            seen = recorder.packets()
            assert not seen, f"lockstep {command} has sent:\n  " + "\n  ".join(sorted(set(seen)))
            print(f"lockstep {command}: nothing was sent", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
