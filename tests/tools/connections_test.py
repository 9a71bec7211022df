# SPDX-License-Identifier: BSD-3-Clause
"""No command sends anything by itself: connections_test.py <folder with the programs>

Run by `unshare -Urnu`: the only way out of this network is an interface behind which nobody is. What leaves by it, and what asks
a server of names on this host, is recorded by the kernel. Every subcommand of `lockstep` runs; a new one needs a line in COMMANDS.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
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


# Classic BPF over an IP packet: only what goes to port 53. Ranks exchange too much over lo to keep it.
ONLY_QUESTIONS = (
    (0x30, 0, 0, 0), (0x74, 0, 0, 4), (0x15, 3, 0, 6),  # version; 6: skip three
    (0xb1, 0, 0, 0), (0x48, 0, 0, 2), (0x05, 0, 0, 1),  # IPv4: the port behind a header of any length
    (0x28, 0, 0, 42),  # IPv6
    (0x15, 0, 1, NAME_SERVICE), (0x06, 0, 0, 65535), (0x06, 0, 0, 0))
SO_ATTACH_FILTER, SOL_PACKET, PACKET_STATISTICS = 26, 263, 6


def make_network():
    """An interface with addresses and default routes. No neighbour is asked for: packets leave at once."""
    for program, package in (("ip", "iproute2"), ("hostname", "hostname")):
        if not shutil.which(program):
            sys.exit(f"{program} is missing, which makes the network of this test: apt-get install {package}")
    if not Path("/proc/net/if_inet6").exists():
        sys.exit("this kernel has no IPv6, by which a connection could leave unseen: enable it (ipv6.disable=0) to run this test")
    for command in ("ip link set lo up", "ip link add outside type veth peer name beyond", "ip link set beyond up",
                    "ip link set outside arp off up",
                    "ip addr add 192.0.2.1/24 dev outside", "ip -6 addr add 2001:db8::1/64 dev outside nodad",
                    "ip route add default via 192.0.2.2", "ip -6 route add default via 2001:db8::2 dev outside",
                    "hostname localhost"):  # so that the name of this host needs no server
        result = subprocess.run(command.split(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            sys.exit(f"`{command}` failed: {result.stdout.strip()}. This test makes a network of its own: run it by `unshare -Urnu`, "
                     "where user namespaces are allowed (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)")


def attach(recorder, instructions):
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
    recorder.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(instructions), ctypes.addressof(code)))


class Recorder:
    """Packets that leave, and questions for names."""

    def __init__(self):
        self._sockets = {}
        for interface in ("outside", "lo"):
            self._sockets[interface] = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            if interface == "lo":
                attach(self._sockets[interface], ONLY_QUESTIONS)
            self._sockets[interface].bind((interface, EVERYTHING))
            self._sockets[interface].setblocking(False)

    def packets(self):
        """Descriptions of those since the last call."""
        found = [text for interface, recorder in self._sockets.items()
                 for data in self._read(recorder) for text in [describe(data, interface)] if text]
        for interface, recorder in self._sockets.items():
            _, dropped = struct.unpack("II", recorder.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
            assert dropped == 0, f"{dropped} packets on {interface} were not recorded"
        return found

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
    assert any(f"port {NAME_SERVICE}" in text for text in seen), (
        f"a question for a name was not seen: {seen}. A service may answer without a network (nss-resolve, nscd): "
        "remove it from `hosts` of /etc/nsswitch.conf to run this test")


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
