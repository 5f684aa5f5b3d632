"""Random damage of bytes."""

from __future__ import annotations

import numpy as np

WORDS = [
    *("0", "1", "-1", "29", "31", "59", "61", "2147483648"), *("9" * n for n in (15, 16, 18, 19, 25, 30, 5000)),
    "x", "nan", "inf", "-inf", "1e999", "1e-999", "1e-400", "1_0", "0x1", "+", "+5", ".", ",", ",,", ";", '"', '""',
    "'", "#", "%", "(", "()", "{", " ", "\t", "\n", "\n\n", "\r", "\0", "\x0b", "\ufffd", "\u0663", "\udcff",
    "%%MatrixMarket", "True", "'|O'", "'<U9'", "'<f8'", "'<M8[s]'", "fortran_order",
]  # fmt: skip


def changed(data: bytearray, rng: np.random.Generator, near: int = 200) -> str:
    """Flip, delete, insert, repeat, cut or exchange bytes, once or a few times; return the changes in words.

    near: changes often lie within so many bytes of the beginning.
    """
    story = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 5]))):
        at = int(rng.integers(min(len(data), int(rng.choice([16, near, 1 << 30]))))) if data else 0
        end = min(len(data), at + int(rng.choice([1, 2, 9, 100])))
        how = str(rng.choice(["flip", "byte", "delete", "insert", "word", "word", "twice", "cut", "zeros"]))
        story.append(f"{how} {at} {end}")
        if how == "flip" and data:
            data[at] ^= 1 << int(rng.integers(8))
        elif how == "byte":
            data[at:end] = bytes(rng.integers(256, size=end - at).tolist())
        elif how == "delete":
            del data[at:end]
        elif how == "insert":
            data[at:at] = bytes(rng.integers(256, size=end - at).tolist())
        elif how == "word":
            data[at : at + int(rng.integers(3))] = str(rng.choice(WORDS)).encode(errors="surrogateescape")
        elif how == "twice":
            data[at:at] = data[at:end] * int(rng.choice([1, 3, 1000]))
        elif how == "zeros":
            data[at : at + int(rng.choice([9, 5000]))] = bytes(int(rng.choice([9, 5000])))
        elif how == "cut":
            del data[at:]
    return ", ".join(story)
