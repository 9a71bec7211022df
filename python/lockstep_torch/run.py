# SPDX-License-Identifier: BSD-3-Clause
"""torchrun's twin: python -m lockstep_torch.run [option...] script.py [argument...]

Becomes `lockstep run`, which takes torchrun's options. Ranks run the interpreter that started this module.
"""

import sys

import lockstep_commands


def main(arguments=None):
    lockstep_commands.run("lockstep", ["run", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
