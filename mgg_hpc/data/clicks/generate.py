"""Synthetic click logs: each column has as many distinct words as Criteo's Kaggle data set, in as many rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .criteo import INTEGERS, MISSING, WORDS, Clicks

# Distinct words of each column in Criteo's Display Advertising Challenge (Kaggle, 2014), of 45,840,617 rows.
DISTINCT = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
EXPONENT = 1.05  # of Zipf's law over the distinct words of a column, of which that many rows draw each one
# By column, where they would not: with these exponents, over all words of 32 bits, they draw as many. Tests compute it.
FITTED = {2: 1.0672, 3: 1.2326, 11: 1.0902, 15: 1.1374, 20: 1.1095}
BLOCK = 1 << 15  # rows that are drawn by one generator
DIGITS = 5  # of integers, at most
HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


def draw_clicks(rows: int, *, seed: int = 0) -> Iterator[Clicks]:
    """Yield rows in blocks, each of which depends on seed and number alone.

    Words are drawn by Zipf distributions, one for each column. The label depends on words of all columns, so that a
    model can learn it.
    """
    count, exponent = laws()
    for number, first in enumerate(range(0, rows, BLOCK)):
        rng, n = np.random.Generator(np.random.Philox([seed, number])), min(BLOCK, rows - first)
        place = zipf(rng.random((n, WORDS)), count, exponent)
        # An odd factor is a bijection of 32 bits: distinct places are distinct words, and none is 0.
        words = ((place * 2654435761) & 0xFFFFFFFF).astype(np.uint32)
        drawn = np.floor(np.exp(1.5 * rng.standard_normal((n, INTEGERS))))
        dense = drawn.clip(0, 10**DIGITS - 1).astype(np.int32)
        dense[rng.random((n, INTEGERS)) < 0.2] = MISSING
        signal = ((words >> 9) % 16 / 7.5 - 1).sum(1) / 3
        label = rng.random(n) < 1 / (1 + np.exp(1.3 - signal))
        yield Clicks(label.astype(np.int8), dense, words)


def laws() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the number of words, and the exponent, of each column's Zipf distribution."""
    count, exponent, fitted = np.array(DISTINCT, float), np.full(WORDS, EXPONENT), list(FITTED)
    count[fitted], exponent[fitted] = 2.0**32 - 1, list(FITTED.values())
    return count, exponent


def zipf(uniform: NDArray[np.float64], count: NDArray[np.float64], exponent: Any) -> NDArray[np.int64]:
    """Return places 1 .. count by the inverse of the continuous Zipf distribution.

    uniform: draws in [0, 1). exponent: other than 1, a number or an array.
    """
    slope, most = 1 - exponent, count + 1
    found = (1 + uniform * (most**slope - 1)) ** (1 / slope)
    return np.minimum(found.astype(np.int64), count.astype(np.int64))


def write_text(path: Path, blocks: Iterator[Clicks]) -> None:
    """Write rows as a file of Criteo's."""
    with path.open("wb") as file:
        for each in blocks:
            n, tab = len(each.label), np.full((len(each.label), 1), ord("\t"), np.uint8)
            columns = [each.label[:, None].astype(np.uint8) + ord("0")]
            powers = 10 ** np.arange(DIGITS - 1, -1, -1)
            for value in each.dense.T:
                digits = (value[:, None] // powers % 10 + ord("0")).astype(np.uint8)
                digits[:, :-1][value[:, None] < powers[:-1]] = 0  # bytes of 0 are left out
                digits[value == MISSING] = 0
                columns += [tab, digits]
            for word in each.category.T:
                columns += [tab, HEXADECIMAL[word[:, None] >> np.arange(28, -1, -4, dtype=np.uint32) & 15]]
            columns.append(np.full((n, 1), ord("\n"), np.uint8))
            text = np.concatenate(columns, 1).reshape(-1)
            file.write(text[text != 0].tobytes())
