# SPDX-License-Identifier: BSD-3-Clause
"""The seed of a sample in a loader with augmentation_seed: docs/images.md describes the rule."""
BITS = (1 << 64) - 1


def split_mix(value):
    value = (value + 0x9e3779b97f4a7c15) & BITS
    value = ((value ^ value >> 30) * 0xbf58476d1ce4e5b9) & BITS
    value = ((value ^ value >> 27) * 0x94d049bb133111eb) & BITS
    return value ^ value >> 31


def seed_of(base, epoch, passes, index):
    seed = split_mix(base)
    for part in (epoch, passes, index):
        seed = split_mix(seed ^ part)
    return seed
