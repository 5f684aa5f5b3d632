"""States of counter-based generators, as native code takes them: any part of a sequence can be drawn by itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EDGES, ROWS = (
    1,
    2,
)  # what a sequence is for: the last word of its counter; NumPy's own draws for a seed have 0 there

Words = NDArray[np.uint64]


def key_of(seed: int) -> Words:
    """Return the key, uint64 [2], that numpy.random.Philox has for a seed."""
    key: Words = np.random.Philox(seed).state["state"]["key"]
    return key


def counter(purpose: int, number: int = 0) -> Words:
    """Return the counter, uint64 [4], at which a sequence of its own begins: the ``number``-th for a purpose."""
    return np.array([0, 0, number, purpose], dtype=np.uint64)


def generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    """Return a generator of the ``number``-th sequence for a purpose."""
    return np.random.Generator(np.random.Philox(key=key_of(seed), counter=counter(purpose, number)))


def behind(seed: int, words: int) -> np.random.Generator:
    """Return the generator of a seed, as it is when it has drawn so many words."""
    bits = np.random.Philox(seed)
    bits.advance(words // 4)  # in steps of the counter, which gives four words
    later = np.random.Generator(bits)
    later.random(words % 4)
    return later
