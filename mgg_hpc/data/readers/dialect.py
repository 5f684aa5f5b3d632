"""How the lines of a text file are divided into words: delimiter, decimal mark, quotes, comments and a header.

A file has one delimiter, which is found in its first lines unless it is given. Quotes are those of CSV (RFC 4180): a
word that begins with " ends with the next single one, and "" stands for one within it. Names end with their line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, shown
from .compressed import TextBlock, lines_of

BLANKS = " \t\r"
DELIMITERS = ",;\t|"  # characters that are tried, before blanks
# Names of delimiters on a command line.
NAMES = {"tab": "\t", "\\t": "\t", "blank": " ", "blanks": " ", "space": " "}
LINES = 100  # in which a delimiter is looked for
QUOTED = re.compile('"([^"]*(?:""[^"]*)*)"')
BLANK, RUN = re.compile(f"[{BLANKS}]"), re.compile(f"[{BLANKS}]+")
MISSING = ("na", "n/a", "null", "none", "nil", "missing", "-", "?", ".")

Words = list[str]


class TextLine(NamedTuple):
    """A line: its number, the bytes of its text where it begins and after it, and the text without padding."""

    number: int
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Dialect:
    """Format of the lines of a text.

    Fields: delimiter: text between words, " " for any blanks and tabs; "" if it is to be found. decimal: "." or ",".
    comment: text with which comments begin, "" for no comments. [default: # and %] leading: comments end with the
    first other line. header: True if the first line names the columns, False if it does not; None if that was not said.
    """

    delimiter: str = ""
    decimal: str = "."
    comment: str | None = None
    leading: bool = False
    header: bool | None = None

    @classmethod
    def given(
        cls, delimiter: str | None, decimal: str | None, comment: str | None, header: bool | None
    ) -> Dialect:
        """Return the dialect of a command's options. Raises InputError for those that exclude each other."""
        found = cls(NAMES.get(delimiter or "", delimiter or ""), decimal or ".", comment, header=header)
        same = found.delimiter == found.decimal != ","  # commas may be both where numbers are quoted
        if set(found.delimiter) & set('"\n\r') or same or delimiter == "":
            raise InputError(
                f"--delimiter {shown(delimiter)} with --decimal {found.decimal}; expected two marks"
            )
        if comment is not None and not comment.isprintable():
            raise InputError(f"--comment {shown(comment)}; expected characters that can be printed")
        return found

    @property
    def comments(self) -> list[str]:
        """Texts with which comments begin."""
        return ["#", "%"] if self.comment is None else [self.comment] if self.comment else []

    @property
    def native(self) -> bool:
        """Whether the native parsers know the format."""
        return len(self.delimiter) == 1 and self.delimiter.isascii() and self.decimal == "."

    @property
    def padding(self) -> str:
        """Characters around words that are no part of them."""
        return BLANKS.replace(self.delimiter, "") if self.delimiter == "\t" else BLANKS

    def lines(
        self, text: NDArray[np.uint8], number: int, left_out: list[int] | None = None
    ) -> Iterator[TextLine]:
        """Yield each line that is neither blank nor a comment, the first of which has this number.

        left_out: takes the numbers of comments.
        """
        comments, start = tuple(self.comments), 0
        for at, end, whole in lines_of(text, number):
            line = whole.strip(self.padding)
            if line.strip(BLANKS) and not line.startswith(comments):
                comments = () if self.leading else comments
                yield TextLine(at, start, end, line)
            elif left_out is not None and line.startswith(comments):
                left_out.append(at)
            start = end

    def first_lines(self, block: TextBlock) -> tuple[list[TextLine], int]:
        """Return the first LINES lines that are neither blank nor comments, and the number of comments above them."""
        left_out: list[int] = []
        lines = list(islice(self.lines(block.text, block.line, left_out), LINES))
        return lines, sum(not lines or at < lines[0].number for at in left_out)

    def words(self, where: str, line: str) -> Words:
        """Return the words of a line. Raises InputError for a quote that is not closed or is followed by more."""
        delimiter, padding = self.delimiter, self.padding
        if '"' not in line:
            if delimiter == " ":
                return RUN.split(line)
            return [word.strip(padding) for word in line.split(delimiter)]
        found: Words = []
        at = 0
        while True:
            while at < len(line) and line[at] in padding:
                at += 1
            if line.startswith('"', at):
                quoted = QUOTED.match(line, at)
                at = end = quoted.end() if quoted else at
                while delimiter != " " and at < len(line) and line[at] in padding:
                    at += 1
                closed = (
                    at == len(line) or line[at] in BLANKS
                    if delimiter == " "
                    else line.startswith(delimiter, at)
                )
                if quoted is None or not (closed or at == len(line)):
                    raise InputError(
                        f"{where}: {shown(line[end - 1 :] if quoted else line[at:])}: a quote that is not closed, or "
                        'that more follows; expected quotes as in CSV, where "" stands for one in a word'
                    )
                found.append(quoted[1].replace('""', '"'))
            else:
                gap = BLANK.search(line, at) if delimiter == " " else None
                end = line.find(delimiter, at) if delimiter != " " else gap.start() if gap else -1
                end = len(line) if end < 0 else end
                found.append(line[at:end].rstrip(padding))
                at = end
            if at == len(line):
                return found
            at += len(delimiter)

    def point(self, word: str) -> str:
        """Return a number as Python writes it, "" for one with a point where the decimal mark is a comma."""
        return word if self.decimal == "." else "" if "." in word else word.replace(",", ".")

    def is_number(self, word: str) -> bool:
        """Return whether a word is a number, NaN and infinity included."""
        return number(self.point(word)) is not None

    def found(self, where: str, lines: Sequence[str], fits: Callable[[Dialect, Words], bool]) -> Dialect:
        """Return the dialect with the delimiter that divides most of the first lines into words that fit.

        fits: whether words are those of a line. Raises InputError if several do, and for decimal commas.
        """
        if self.delimiter == self.decimal and "," in "".join(lines) and not self._quotes_decimals(lines):
            raise InputError(
                f"{where}: {shown(lines[0])}: commas are delimiters and decimal marks; expected "
                "numbers in quotes"
            )
        if self.delimiter or not lines:
            return self if self.delimiter else replace(self, delimiter=" ")
        best = self._best(lines, fits)
        if not best and self.decimal == "." and any(replace(self, decimal=",")._best(lines, fits)):
            raise InputError(
                f"{where}: {shown(lines[0])} has decimal commas; expected points, or --decimal ,"
            )
        within = _has_bars_within(lines)
        if not best:
            marks = DELIMITERS.replace("|", "") if within else DELIMITERS
            best = [each for each in marks if each in lines[0] and self._divides(each, lines)] or [" "]
        elif within and best == ["|"]:
            best.append(" ")
        if len(best) > 1:
            raise InputError(
                f"{where}: {shown(lines[0])} may be divided by {' or '.join(map(shown, best))}; --delimiter says "
                "which, as in --delimiter ';', and --decimal , that commas are decimal"
            )
        return replace(self, delimiter=best[0])

    def _divides(self, delimiter: str, lines: Sequence[str]) -> bool:
        """Return whether a delimiter is not the decimal mark, or decimals are in quotes."""
        return delimiter != self.decimal or self._quotes_decimals(lines)

    def _quotes_decimals(self, lines: Sequence[str]) -> bool:
        return any(self.is_number(word) and "," in word for line in lines for word in QUOTED.findall(line))

    def _best(self, lines: Sequence[str], fits: Callable[[Dialect, Words], bool]) -> list[str]:
        """Return the delimiters that divide most lines alike, without those that give the same words as another."""
        found: dict[str, list[Words]] = {}
        for delimiter in (*DELIMITERS, " "):
            each = replace(self, delimiter=delimiter)
            rows = [attempt(each, line) for line in lines]
            if self._divides(delimiter, lines) and fits(each, rows[0]):
                alike = [row for row in rows if len(row) == len(rows[0]) and fits(each, row)]
                if alike not in found.values():
                    found[delimiter] = alike
        most = max(map(len, found.values()), default=0)
        found = {delimiter: rows for delimiter, rows in found.items() if len(rows) == most}
        numbered = [
            delimiter
            for delimiter, rows in found.items()
            if all(self.is_number(word) for row in rows for word in row[:2])
        ]
        return numbered if len(numbered) == 1 else list(found)


def _has_bars_within(lines: Sequence[str]) -> bool:
    """Return whether the first two words between blanks of each line have bars inside, as sp|P12345 of UniProt."""
    words = [RUN.split(line)[:2] for line in lines]
    return all(len(pair) == 2 and all("|" in word.strip("|") for word in pair) for pair in words)


def attempt(dialect: Dialect, line: str) -> Words:
    """Return the words of a line; none where its quotes are wrong."""
    try:
        return dialect.words("", line)
    except InputError:
        return []


def number(word: str) -> float | None:
    """Return the number that a word is to Python's float(), without its blanks and marks between digits; else None."""
    try:
        return float(word if word.isascii() and "_" not in word and word == word.strip() else "")
    except ValueError:
        return None


def is_numbered(words: Words) -> bool:
    """Return whether words are 0, 1, 2, ..., as pandas names columns without names."""
    return words == [str(at) for at in range(len(words))]


def check_header(where: str, words: Words) -> None:
    """Raise InputError for a header that leaves a column without a name, as pandas does above its index."""
    if "" in words:
        raise InputError(
            f"{where}: the header has no name for column {words.index('')}; expected a name for each: pandas writes "
            "its index there, but not with index=False"
        )


def after(block: TextBlock, at: int, number: int) -> TextBlock:
    """Return the rest of a block from a byte on, which begins line ``number``."""
    lines = block.lines - (number - block.line)
    return replace(block, text=block.text[at:], offset=block.offset + at, line=number, lines=lines)
