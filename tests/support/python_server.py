# SPDX-License-Identifier: BSD-3-Clause
"""Runs the scripts of run_python(): python_server.py <socket>. Each runs in a fork of this process, which has imported
what takes seconds. Requests are those of fork_server.h; the words are the script, the number of its arguments, these,
and name=value pairs for its environment."""

import ctypes
import gc
import os
import runpy
import signal
import socket
import sys
import traceback

import torch
import torch._dynamo  # noqa: F401, as every optimizer and DDP import it

PR_SET_PDEATHSIG = 1


def exit_code(path):
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def become(request, out, err):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(out, 1)
    os.dup2(err, 2)
    with open(request, newline="") as file:
        file.seek(0)
        path, count, *words = file.read().split("\0")[:-1]
    arguments, variables = words[:int(count)], words[int(count):]
    os.environ.update(variable.split("=", 1) for variable in variables)
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(path)
    code = exit_code(path)
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's teardown: it takes long, and threads of PyTorch's meshes end it by std::terminate.
    os._exit(code)


def main():
    connection = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        if not message:
            os._exit(0)
        number = int.from_bytes(message, sys.byteorder)
        if number == 0:
            answer = os.fork()
            if answer == 0:
                connection.close()
                become(*descriptors)
        else:
            answer = os.waitpid(number, 0)[1]
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(answer.to_bytes(4, sys.byteorder))


main()
