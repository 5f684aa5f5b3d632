"""Sizes of memory, and counts, as users read and write them."""

from __future__ import annotations

import re

from .errors import InputError
from .errors import shown as quoted

PATTERN = r"^\s*(\d+(?:\.\d+)?)\s*([KkMmGgTt]?)(?:i?[Bb])?\s*$"


def parse(text: str) -> int:
    """Return a number of bytes: digits, and K, M, G or T for powers of 1,024. Raises ValueError for other texts."""
    found = re.fullmatch(PATTERN, text)
    if not found:
        raise ValueError(f"{text!r} is not a size; expected a number and K, M, G or T, such as 2G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def shown(nbytes: float) -> str:
    """Return a number of bytes as text, such as "2.1 GiB", which `parse` takes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 rank", "2 ranks"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def numbers_of(option: str, words: str, largest: int = 2**16) -> list[int]:
    """Return the numbers in a comma-separated list. Raises InputError for anything but 1 .. ``largest``."""
    found = [word.strip() for word in words.split(",")]
    for word in found:
        if not (word.isascii() and word.isdecimal() and len(word) < 20 and 1 <= int(word) <= largest):
            given = f"--{option} {quoted(words)[1:-1]}"
            raise InputError(f"{given}: {quoted(word)}; expected numbers of 1 .. {largest}")
    return [int(word) for word in found]
