"""Read Criteo's click logs: text lines with a label, 13 integers and 26 hexadecimal words, separated by tabs.

A field is empty if its value is missing; the word 0 stands for a missing value, too. Files are plain, or
compressed by gzip or zstd, and are read in blocks of whole lines, which are parsed in pieces by array operations
on all fields of a piece, a digit at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, shown
from ...sizes import counted
from ..readers.compressed import text_blocks

INTEGERS, WORDS = 13, 26
FIELDS = 1 + INTEGERS + WORDS
MISSING = -(1 << 31)  # in place of an integer that is missing
TAB, NEWLINE, MINUS = b"\t\n-"
DIGITS = np.full(256, 99, np.uint8)  # value of each byte as a digit, at least 16 of others
DIGITS[np.frombuffer(b"0123456789abcdefABCDEF", np.uint8)] = [*range(16), *range(10, 16)]
Part = tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.uint32], int]  # as of Clicks, down to bad
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
        text, begin, number = block.text, 0, block.line
        parts = _rows(path, text[:0], number, skip_bad=skip_bad)
        while begin < len(text):
            end = begin + 1 + text[begin : begin + PIECE].tobytes().rfind(b"\n")
            end = end if begin < end else len(text)  # of a line that is longer
            parts += _rows(path, text[begin:end], number, skip_bad=skip_bad)
            begin, number = end, block.line + sum(len(part[0]) + part[-1] for part in parts)
        *columns, bad = zip(*parts, strict=True)
        label, dense, category = map(np.concatenate, columns)
        yield Clicks(label, dense, category, sum(bad), block.end)


def _rows(path: Path, text: NDArray[np.uint8], line: int, *, skip_bad: bool) -> list[Part]:
    """Return the rows of whole lines, the first of which has this number, in parts.

    A text with a wrong line is halved until that is alone. Raises InputError for the first one unless ``skip_bad``.
    """
    if (found := _parsed(text)) is not None:
        return [(*found, 0)]
    ends = np.flatnonzero(text == NEWLINE) + 1
    if len(ends) > 1:
        half = len(ends) // 2
        parts = _rows(path, text[: ends[half - 1]], line, skip_bad=skip_bad)
        return parts + _rows(path, text[ends[half - 1] :], line + half, skip_bad=skip_bad)
    if not skip_bad:
        fault = _fault(text.tobytes()[:-1].decode(errors="replace"))
        raise InputError(f"{path}:{line}: {fault}; --skip-bad passes over such lines")
    return [(*_rows(path, text[:0], line, skip_bad=skip_bad)[0][:3], 1)]


def _parsed(text: NDArray[np.uint8]) -> tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.uint32]] | None:
    """Return labels, int8 [n], integers, int32 [n, 13], and words, uint32 [n, 26], of n whole lines.

    Returns None if any line is wrong.
    """
    ends: NDArray[np.int64] = np.flatnonzero((text == TAB) | (text == NEWLINE))
    if len(ends) % FIELDS:
        return None
    starts = np.concatenate([[0], ends + 1])[:-1].reshape(-1, FIELDS)
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
    category = _numbers(text, ends[:, 1 + INTEGERS :], long, 16)
    value = _numbers(text, ends[:, numbers], many, 10)
    if category is None or value is None:
        return None
    dense = np.where(empty, MISSING, np.where(negative, -value, value))
    label = dense[:, 0]
    if ((label != 0) & (label != 1)).any() or (value >= -MISSING).any():
        return None
    return label.astype(np.int8), dense[:, 1:].astype(np.int32), category.astype(np.uint32)


def _numbers(
    text: NDArray[np.uint8], ends: NDArray[np.int64], digits: NDArray[np.int64], base: int
) -> NDArray[np.int64] | None:
    """Return the values of the fields that end there, 0 of empty ones, or None if a byte is no digit of the base."""
    value = np.zeros(ends.shape, np.int64)
    for place in range(int(digits.max(initial=0))):
        digit = DIGITS[text[ends - 1 - place]] * (place < digits)  # index may wrap where there is no digit
        if (digit >= base).any():
            return None
        value += digit * np.int64(base**place)
    return value


def _fault(line: str) -> str:
    """Return a description of the error in a wrong line, for messages."""
    fields = line.rstrip("\r").split("\t")
    if len(fields) != FIELDS:
        found = counted(len(fields), "column")
        return f"has {found}; expected {FIELDS}: a label, {INTEGERS} integers, {WORDS} words, by tabs"
    integer, word = "an integer, or nothing", "a word of 8 hexadecimal digits, or nothing"
    kinds = ["0 or 1", *[integer] * INTEGERS, *[word] * WORDS]
    for column, (field, kind) in enumerate(zip(fields, kinds, strict=True)):
        alone = ["0", *[""] * INTEGERS, *[""] * WORDS]
        alone[column] = field
        if _parsed(np.frombuffer(("\t".join(alone) + "\n").encode(), np.uint8)) is None:
            return f"column {column + 1} is {shown(field)}; expected {kind}"
    return "is wrong"
