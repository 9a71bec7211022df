#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a command whose system calls of these names are refused with EPERM: under.py <name>[,<name>...] <command>..."""
import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": {"process_vm_readv": 310, "memfd_create": 319, "pidfd_open": 434, "unshare": 272},
           "aarch64": {"process_vm_readv": 270, "memfd_create": 279, "pidfd_open": 434, "unshare": 97}}
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse(names):
    numbers = [NUMBERS[platform.machine()][name] for name in names]
    code = [(LOAD, 0, 0, 0)]
    code += [(EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    program = Program(len(code), b"".join(struct.pack("HBBI", *each) for each in code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments, 0, 0) != 0:
            sys.exit(f"under.py: prctl: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    refuse(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
