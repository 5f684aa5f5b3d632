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
        old, noise = bytes(data[at : at + int(rng.choice([1, 2, 9, 100]))]), rng.bytes(100)
        word = str(rng.choice(WORDS)).encode(errors="surrogateescape")
        count = int(rng.choice([9, 5000]))
        changes = {
            "flip": (old[:1], bytes(byte ^ 1 << noise[0] % 8 for byte in old[:1])),
            "noise": (old, noise[: len(old)]),
            "delete": (old, b""),
            "insert": (b"", noise[: len(old)]),
            "word": (old[: int(rng.integers(3))], word),
            "twice": (b"", old * int(rng.choice([1, 3, 1000]))),
            "zeros": (data[at : at + count], bytes(count)),
            "cut": (data[at:], b""),
        }
        how = str(rng.choice([*changes, "word"]))
        story.append(f"{how} {at} {len(old)}")
        out, new = changes[how]
        data[at : at + len(out)] = new
    return ", ".join(story)
