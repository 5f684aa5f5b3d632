"""Edge lists: text, one edge a line, plain or packed by gzip or zstd.

``source destination``, or ``source destination weight``, separated by blanks and tabs, by commas, or by semicolons.
Lines that start with # or % are comments. All lines have as many columns as the first one; a fourth one, which KONECT
has for times, must be of numbers and is not kept. Blocks of lines are parsed natively where they are regular; a block
with anything else in it is read line by line, and that reading decides what is an error and where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native
from ..streams import EdgeBlock, Imported
from .compressed import TextBlock, text_blocks, text_size
from .limits import shown

LARGEST_ID = 10**15  # below it, ids have 15 digits at most
COLUMNS = ("source", "destination", "weight", "time")


def open_edge_list(path: Path, *, nodes: int | None = None, first: int = 0, ids: str = "numbers") -> Imported:
    """Open an edge list as a stream of edges.

    nodes: their number, by default the largest id plus one. first: the number of the first node, 0 or 1. ids:
    "numbers". Reading raises InputError that names file and line for a word, an id out of range, a missing column, or
    a weight that is not finite in single precision.
    """
    return Imported(graph_name(path), _EdgeList(path, nodes, first))


def graph_name(path: Path) -> str:
    """Return the name of a graph in a file."""
    return path.name.split(".")[0] or "graph"


class _EdgeList:
    """The stream of an edge list. Marks hold the place behind a block, and the number of columns."""

    def __init__(self, path: Path, nodes: int | None, first: int) -> None:
        self._path, self.where, self.nodes = path, str(path), nodes
        self.total = text_size(path)
        self._rules = LineRules(self.where, first, LARGEST_ID if nodes is None else nodes)

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream` has it."""
        place = mark or {"offset": 0, "line": 1, "columns": 0}
        columns = place["columns"]
        for block in text_blocks(self._path, offset=place["offset"], line=place["line"]):
            columns = columns or self._rules.columns_of(block.text)
            if columns:
                found = self._rules.parse(block, columns)
                behind = {"offset": block.offset + len(block.text), "line": block.line + block.lines}
                if len(found.sources):
                    yield EdgeBlock(*found, mark=behind | {"columns": columns})
            if progress is not None:
                progress(block.done)


class Edges(NamedTuple):
    """A run of edges: ``sources``, ``destinations`` int64 [k]; ``weight`` float32 [k] with a third column."""

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    weight: NDArray[np.float32] | None


@dataclass(frozen=True)
class LineRules:
    """What lines of edges look like. where: the file. first, limit: ids are first .. first + limit - 1.

    delimiters: whether commas and semicolons separate words, too. comments: characters that begin comments.
    """

    where: str
    first: int
    limit: int
    delimiters: bool = True
    comments: str = "#%"

    def columns_of(self, text: NDArray[np.uint8]) -> int:
        """Return the number of columns of the first edge in a text, between 2 and 4; 0 if it has none."""
        for _, line in self._lines(text, 0):
            return min(max(len(self._words(line)), 2), len(COLUMNS))
        return 0

    def parse(self, block: TextBlock, columns: int) -> Edges:
        """Return the edges of a block. Raises InputError that names file and line of the first that is wrong."""
        weighted = columns > 2
        sources, destinations = np.empty(block.lines, np.int64), np.empty(block.lines, np.int64)
        weight = np.empty(block.lines if weighted else 0, np.float32)
        count, irregular = native.load().parse_edges(
            block.text,
            columns,
            self.first,
            self.limit,
            self.delimiters,
            self.comments,
            sources,
            destinations,
            weight,
        )
        if irregular >= 0:
            count = 0
            for number, line in self._lines(block.text, block.line):
                found = self._edge(f"{self.where}:{number}", line, columns)
                sources[count], destinations[count] = found[:2]
                if weighted:
                    weight[count] = found[2]
                count += 1
        return Edges(sources[:count], destinations[:count], weight[:count] if weighted else None)

    def _lines(self, text: NDArray[np.uint8], number: int) -> Iterator[tuple[int, str]]:
        """Yield number and text of each line that is neither empty nor a comment."""
        begin, data = 0, text.tobytes()
        while begin < len(data):
            end = data.index(b"\n", begin)
            line = data[begin:end].decode("utf-8", errors="replace").strip()
            if line and line[0] not in self.comments:
                yield number, line
            begin, number = end + 1, number + 1

    def _words(self, line: str) -> list[str]:
        for delimiter in ",;" if self.delimiters else "":
            if delimiter in line:
                return [word.strip() for word in line.split(delimiter)]
        return line.split()

    def _edge(self, where: str, line: str, columns: int) -> tuple[int, int, float]:
        """Return source, destination and weight (1 without one) of a line. Raises InputError where it is wrong."""
        words = self._words(line)
        if len(words) != columns or "" in words:
            have = len([word for word in words if word])
            named = (
                ", ".join(COLUMNS[: columns - 1]) + f"{' and' if columns > 2 else ','} {COLUMNS[columns - 1]}"
            )
            raise InputError(f"{where}: {have} columns; expected {columns}: {named}")
        source, destination = self._node(where, words[0]), self._node(where, words[1])
        numbers = [_number(where, name, word) for name, word in zip(COLUMNS[2:], words[2:], strict=False)]
        return source, destination, numbers[0] if numbers else 1.0

    def _node(self, where: str, word: str) -> int:
        """Return the row of a node id."""
        if not (word.isascii() and word.lstrip("+-").isdigit() and len(word) - len(word.lstrip("+-")) <= 1):
            raise InputError(f"{where}: {shown(word)} is not a node id; expected a whole number")
        expected = f"expected {self.first} .. {self.first + self.limit - 1}"
        if len(word) > 400:  # beyond any number, and beyond what int() converts
            raise InputError(f"{where}: a node id of {len(word)} digits is too large; {expected}")
        node = int(word)
        if node < 0:
            raise InputError(
                f"{where}: the node id {shown(node)} is negative; nodes are numbered from {self.first}"
            )
        if node < self.first:
            raise InputError(f"{where}: the node id {node} is too small; {expected}")
        if node - self.first >= self.limit:
            raise InputError(f"{where}: the node id {shown(node)} is too large; {expected}")
        return node - self.first


def _number(where: str, name: str, word: str) -> float:
    """Return the number in a column."""
    try:
        value = float(word if word.isascii() and "_" not in word else "")
    except ValueError:
        raise InputError(f"{where}: {shown(word)} is not a {name}; expected a number") from None
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value)):
            raise InputError(f"{where}: the {name} {shown(word)[1:-1]} is not finite in single precision")
    return value
