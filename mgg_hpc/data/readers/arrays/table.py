"""Tables of numbers as text: one row a line, plain or packed by gzip or zstd, parsed natively in blocks.

Numbers are separated by commas, semicolons, or blanks and tabs, and all lines have as many as the first. An empty field
between commas or semicolons is NaN, and so is a pair of quotes, which pandas writes where it is alone in a line. The
first line may name the columns, by words that are no numbers. Lines of blanks are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ... import native
from ...edge_stream import Rows
from ...schema import Layout
from ..compressed import text_blocks
from ..limits import shown

ENDINGS = (".csv", ".tsv", ".txt")
FLOAT64 = np.dtype("<f8")
BLANKS = " \t\r"


def open_table(path: Path, rows: int | None = None) -> Rows:
    """Open a table as numbers, float64 [rows, columns]. rows: how many it must have; by default they are counted.

    Raises InputError for a file that cannot be read; passes raise it, with the line, for a row that is wrong, and for a
    table that has other than so many rows.
    """
    header, columns = _first_line(path)
    if rows is None:
        rows = sum(len(piece) for piece in _pieces(path, columns, header))

    def pieces() -> Iterator[NDArray[Any]]:
        count = 0
        for piece in _pieces(path, columns, header):
            count += len(piece)
            if count > rows:
                break
            yield piece
        if count != rows:
            raise InputError(f"{path} has {'more' if count > rows else count} rows; expected {rows}")

    return Rows(Layout(FLOAT64, (rows, columns)), pieces)


def _first_line(path: Path) -> tuple[bool, int]:
    """Return whether the first line names the columns, and their number, 1 without a line."""
    for block in text_blocks(path):
        for _, line in _lines(block.text):
            words = _words(line)
            return not any(map(_is_number, words)) and any(words), len(words)
    return False, 1


def _pieces(path: Path, columns: int, header: bool) -> Iterator[NDArray[np.float64]]:
    """Yield the rows, float64 [k, columns]."""
    for block in text_blocks(path):
        text, line = block.text, block.line
        if header:
            behind = next((end for end, words in _lines(text) if words), None)
            if behind is None:
                continue
            line, header = line + native.load().count_lines(text[:behind]), False
            text = text[behind:]
        rows = min(native.load().count_rows(text), len(text) // columns)
        values = np.empty((rows, columns))
        _, irregular = native.load().parse_table(text, columns, values.reshape(-1))
        if irregular >= 0:
            _refuse(path, text[irregular:], line + native.load().count_lines(text[:irregular]), columns)
        if rows:
            yield values


def _refuse(path: Path, text: NDArray[np.uint8], number: int, columns: int) -> NoReturn:
    """Raise InputError for the line with which a text begins."""
    _, line = next(_lines(text))
    words = _words(line)
    if len(words) != columns:
        raise InputError(f"{path}:{number}: {len(words)} columns; expected {columns}, as in the first line")
    at = next((at for at, word in enumerate(words) if word and not _is_number(word)), 0)
    raise InputError(f"{path}:{number}: {shown(words[at])} in column {at} is not a number")


def _lines(text: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
    """Yield the byte behind each line that is not blank, and the line."""
    begin = 0
    data = text.tobytes()
    while begin < len(data):
        end = data.index(b"\n", begin)
        line = data[begin:end].decode("utf-8", errors="replace").strip(BLANKS)
        begin = end + 1
        if line:
            yield begin, line


def _words(line: str) -> list[str]:
    delimiter = next((each for each in ",;" if each in line), None)
    words = line.split(delimiter) if delimiter else re.split(rf"[{BLANKS}]+", line)
    return [word.strip(BLANKS) for word in words]


def _is_number(word: str) -> bool:
    if word == '""':
        return True
    try:
        float(word if word.isascii() and "_" not in word and word == word.strip() else "")
    except ValueError:
        return False
    return True
