# SPDX-License-Identifier: BSD-3-Clause
"""python -m lockstep_torch --cmake-prefix-path: what find_package(Lockstep) needs in CMAKE_PREFIX_PATH."""

import argparse

import lockstep_torch


def main():
    parser = argparse.ArgumentParser(prog="python -m lockstep_torch")
    parser.add_argument("--version", action="version", version=lockstep_torch.__version__)
    parser.add_argument(
        "--cmake-prefix-path", action="store_true", required=True,
        help="print the folder that CMake's find_package(Lockstep) searches")
    parser.parse_args()
    print(lockstep_torch.cmake_prefix_path)


main()
