"""Read Criteo's click logs: text lines with a label, 13 integers and 26 hexadecimal words, separated by tabs.

A field is empty if its value is missing; the word 0 stands for a missing value, too. Files are plain, or
compressed by gzip or zstd, and are read in blocks of whole lines. A block is parsed by array operations on all
of its fields at once: a window is a uint64 that holds the last 8 characters of a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...sizes import counted
from ..readers.compressed import TextBlock, lines_of, text_blocks
from ..readers.limits import shown

INTEGERS, WORDS = 13, 26
FIELDS = 1 + INTEGERS + WORDS
MISSING = -(1 << 31)  # in place of an integer that is missing
TAB, NEWLINE, MINUS = b"\t\n-"
EACH = 0x0101010101010101  # EACH * byte has the byte in each of its 8 bytes
LAST = np.array(
    [(1 << 8 * digits) - 1 for digits in range(9)], np.uint64
)  # mask of the last 0 .. 8 bytes of a window
ZEROS = ~LAST & np.uint64(ord("0") * EACH)
PIECE = 512 << 10  # bytes that are parsed at a time, so that caches hold what is computed


@dataclass(frozen=True, eq=False)
class Clicks:
    """Rows of a click log.

    label: int8 [n], 0 or 1. dense: int32 [n, 13], MISSING for missing integers. category: uint32 [n, 26], 0 for
    missing words. bad: number of wrong lines that were skipped. end: arguments with which `read_criteo`
    continues after these rows.
    """

    label: NDArray[np.int8]
    dense: NDArray[np.int32]
    category: NDArray[np.uint32]
    bad: int = 0
    end: dict[str, int] | None = None


def read_criteo(path: Path, *, offset: int = 0, line: int = 1, skip_bad: bool = False) -> Iterator[Clicks]:
    """Yield the rows of a file, some megabytes of text at a time.

    offset: byte at which to begin. line: number of the line there, for messages. skip_bad: True to skip and
    count wrong lines. Raises InputError with file, line and column for a line with a wrong number of fields, or
    with a field that is not a label, an integer or a word, respectively.
    """
    for block in text_blocks(path, offset=offset, line=line):
        found, bad = _in_pieces(block.text), 0
        if found is None:
            kept, bad = _sound_lines(path, block, skip_bad=skip_bad)
            found = _in_pieces(kept)
            assert found is not None  # each of its lines was parsed alone
        label, dense, category = found
        yield Clicks(label, dense, category, bad, block.end)


def _in_pieces(text: NDArray[np.uint8]) -> list[NDArray[Any]] | None:
    """Return the result of `_parsed`, computed in pieces of whole lines that fit the caches."""
    found: list[tuple[NDArray[Any], ...]] = []
    begin = 0
    while begin < len(text) or not found:
        end = begin + 1 + text[begin : begin + PIECE].tobytes().rfind(b"\n")
        end = end if begin < end else len(text)  # of a line that is longer
        piece = _parsed(text[begin:end])
        if piece is None:
            return None
        found.append(piece)
        begin = end
    return [np.concatenate(each) for each in zip(*found, strict=True)]


def _parsed(text: NDArray[np.uint8]) -> tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.uint32]] | None:
    """Return labels, int8 [n], integers, int32 [n, 13], and words, uint32 [n, 26], of n whole lines.

    Returns None if any line is wrong.
    """
    text = np.concatenate([np.zeros(16, np.uint8), text])  # windows before the first fields
    ends: NDArray[np.int64] = np.flatnonzero((text == TAB) | (text == NEWLINE))
    if len(ends) % FIELDS:
        return None
    starts = np.concatenate([[16], ends + 1])[:-1].reshape(-1, FIELDS)
    kinds, ends = text[ends].reshape(-1, FIELDS), ends.reshape(-1, FIELDS)
    if (kinds[:, -1] != NEWLINE).any() or (kinds[:, :-1] != TAB).any():
        return None
    ends[:, -1] -= (ends[:, -1] > starts[:, -1]) & (text[ends[:, -1] - 1] == ord("\r"))
    digits, numbers = ends - starts, slice(0, 1 + INTEGERS)
    empty = digits[:, numbers] == 0
    negative = (text[starts[:, numbers]] == MINUS) & ~empty
    digits[:, numbers] -= negative
    many, long = digits[:, numbers], digits[:, 1 + INTEGERS :]
    if (many > 10).any() or (long > 8).any() or ((many == 0) & negative).any():
        return None
    words = _windows(text, ends[:, 1 + INTEGERS :], long)
    low = _windows(text, ends[:, numbers], np.minimum(many, 8))
    high = _windows(text, ends[:, numbers] - 8, np.maximum(many - 8, 0))
    category, wrong = _hexadecimal(words)
    if wrong or _not_decimal(low) or _not_decimal(high):
        return None
    value = (_decimal(high) * np.uint64(10**8) + _decimal(low)).view(np.int64)
    dense = np.where(empty, MISSING, np.where(negative, -value, value))
    label = dense[:, 0]
    if ((label != 0) & (label != 1)).any() or (value >= -MISSING).any():
        return None
    return label.astype(np.int8), dense[:, 1:].astype(np.int32), category


def _windows(
    text: NDArray[np.uint8], ends: NDArray[np.int64], digits: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the last characters of fields, at most 8, as windows: uint64, the last one in the lowest byte.

    text: uint8. ends: index in ``text`` after each field. digits: number of characters to take; the bytes
    before them are the character "0".
    """
    windows: NDArray[np.uint64] = np.ndarray(len(text) - 7, ">u8", text, strides=(1,))
    return windows[ends - 8].astype(np.uint64) & LAST[digits] | ZEROS[digits]


def _hexadecimal(windows: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], bool]:
    """Return the values of windows of 8 hexadecimal digits, and True if any byte is not such a digit."""
    lower = windows | np.uint64(0x20 * EACH)
    digit = (lower & np.uint64(0x0F * EACH)) + np.uint64(9) * (lower >> np.uint64(6) & np.uint64(EACH))
    letter = digit + np.uint64(6 * EACH) >> np.uint64(4) & np.uint64(EACH)
    # A byte is no digit if its digit does not give the byte again, if it is above f, or if it is not printable.
    again = digit + np.uint64(ord("0") * EACH) + np.uint64(ord("a") - ord("0") - 10) * letter
    odd = digit & np.uint64(0xF0 * EACH) | ~(windows >> np.uint64(1) | windows) & np.uint64(0x20 * EACH)
    for shift, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0xFFFFFFFF)):
        digit = (digit | digit >> np.uint64(shift)) & np.uint64(mask)
    return digit.astype(np.uint32), bool((odd | (again ^ lower)).any())


def _not_decimal(windows: NDArray[np.uint64]) -> bool:
    """Return True if any byte of the windows is not a decimal digit."""
    over = windows + np.uint64((0x80 - ord("9") - 1) * EACH) | windows - np.uint64(ord("0") * EACH) | windows
    return bool((over & np.uint64(0x80 * EACH)).any())


def _decimal(windows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values of windows of 8 decimal digits.

    Digits are joined to pairs, these to fours, these to all.
    """
    value = windows & np.uint64(0x0F * EACH)
    for bits, mask, base in (
        (8, 0x00FF00FF00FF00FF, 10),
        (16, 0x0000FFFF0000FFFF, 100),
        (32, 0xFFFFFFFF, 10000),
    ):
        value = (value >> np.uint64(bits) & np.uint64(mask)) * np.uint64(base) + (value & np.uint64(mask))
    return value


def _sound_lines(path: Path, block: TextBlock, *, skip_bad: bool) -> tuple[NDArray[np.uint8], int]:
    """Return the text of a block without its wrong lines, and their number.

    Raises InputError for the first wrong line unless ``skip_bad``.
    """
    kept, bad, begin = [], 0, 0
    for number, end, line in lines_of(block.text, block.line):
        mine = block.text[begin:end]
        begin = end
        if _parsed(mine) is not None:
            kept.append(mine)
        elif not skip_bad:
            raise InputError(f"{path}:{number}: {_fault(line)}; --skip-bad passes over such lines")
        else:
            bad += 1
    return np.concatenate(kept) if kept else block.text[:0], bad


def _fault(line: str) -> str:
    """Return a description of the error in a wrong line, for messages."""
    fields = line.rstrip("\r").split("\t")
    if len(fields) != FIELDS:
        found = counted(len(fields), "column")
        return f"has {found}; expected {FIELDS}: a label, {INTEGERS} integers, {WORDS} words, by tabs"
    for column, field in enumerate(fields):
        alone = ["0", *[""] * INTEGERS, *[""] * WORDS]
        alone[column] = field
        if _parsed(np.frombuffer(("\t".join(alone) + "\n").encode(), np.uint8)) is None:
            kind = (
                "0 or 1"
                if not column
                else "an integer"
                if column <= INTEGERS
                else "a word of 8 hexadecimal digits"
            )
            return f"column {column + 1} is {shown(field)}; expected {kind}{', or nothing' if column else ''}"
    return "is wrong"
