"""Seeds as a function of where a draw happens, so that resume and the number of processes cannot change it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a seed is for; streams never share draws."""

    TRAIN_TASK = 0
    TRAIN_TOKEN = 1
    HELD_OUT_TOKEN = 2
    SHUFFLE = 3
    DEMONSTRATION = 4


def derive_seed(root: int, stream: Stream, *path: int) -> int:
    """The 63-bit seed of the draw that `path` (epoch, attempt, group, member, turn, ...) names below `root`."""
    if max(path, default=0) >= 1 << 32:
        raise ValueError(f"{path} has a step of 2**32 or more, whose draws could be those of another path")
    words = np.random.SeedSequence(entropy=root, spawn_key=(stream, *path)).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def uniforms(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`count` numbers in [0, 1) that depend on `seed` alone."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)
