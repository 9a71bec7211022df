# SPDX-License-Identifier: BSD-3-Clause
"""numpy's scalars, each with the plain number: numpy_scalars.py <file>"""
import sys

import numpy as np
import torch

SCALARS = [np.float64(1.5), np.float32(0.1), np.float16(0.1), np.int64(-7), np.int32(7), np.int16(-300), np.int8(-5),
           np.uint64(2**64 - 1), np.uint32(2**32 - 1), np.uint16(9), np.uint8(255), np.bool_(True), np.complex128(1 - 2j)]
torch.save({str(scalar.dtype): (scalar, scalar.item()) for scalar in SCALARS}, sys.argv[1])
