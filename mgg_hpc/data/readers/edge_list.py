"""Edge lists: text, one edge a line, plain or packed by gzip or zstd.

``source destination``, or ``source destination weight``, separated by blanks and tabs, by commas, or by semicolons.
Lines that start with # or % are comments. All lines have as many columns as the first one; a fourth one, which KONECT
has for times, must be of numbers and is not kept. Blocks of lines are parsed natively where they are regular; a block
with anything else in it is read line by line, and that reading decides what is an error and where.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native, schema
from ..edge_stream import EdgeBlock, Imported, Rows
from .compressed import TextBlock, lines_of, text_blocks, text_size
from .limits import check_memory, shown
from .node_arrays import of_array

LARGEST_ID = 10**15  # below it, ids have 15 digits at most
COLUMNS = ("source", "destination", "weight", "time")
# A word of a first line that names the columns, without marks between its letters.
HEADER = re.compile(
    "(source|src|target)(id)?|(from|to)(node)?(id)?|destination|dst|dest|head|tail|(id|node)[12]"
)
PIECE = 1 << 18  # names that are written at a time


def open_edge_list(
    path: Path,
    *,
    nodes: int | None = None,
    first: int | None = None,
    map_ids: bool = False,
    counted: str = "",
) -> Imported:
    """Open an edge list as a stream of edges; whether it is undirected is for the build to find out.

    Args: nodes: number of nodes. [default: the largest id plus one] first: number of the first node, 0 or 1. [default:
    0] map_ids: ids are any words, and rows are in the order of their first appearance; the words are kept in the file,
    and in memory while it is read: 30 to 60 bytes a node whose id is a whole number, and for any other word 40 to 75
    bytes and up to twice its text; half as much again while the table grows. Names with blanks in them need commas or
    semicolons between the columns, whichever the first line has. counted: where the number of nodes is from, for
    messages.

    Reading raises InputError that names file and line for a word, an id out of range, a missing column, a weight that
    is not finite in single precision, a header, or a bipartite graph of KONECT, whose sides have ids of their own.
    """
    if nodes is not None:
        check_memory(f"{path}: a graph of {nodes} nodes", 8 * nodes)
    if map_ids:
        named = _NamedEdges(path, nodes, counted)
        return Imported(graph_name(path), named, rows=named.rows, directed=None)
    return Imported(graph_name(path), _NumberedEdges(path, nodes, first or 0, counted), directed=None)


def warn_of_one_direction(path: Path) -> None:
    """Print a note on stderr where a file begins as KONECT's undirected graphs do ("% sym"), unless it is a pipe."""
    if path.is_file():
        with closing(text_blocks(path)) as blocks:
            if any(_konect_kind(block.text) == "sym" for block in islice(blocks, 1)):
                note = f"note: {path} lists each undirected edge once; --symmetric adds the reverse"
                print(note, file=sys.stderr)


def _konect_kind(text: NDArray[np.uint8]) -> str:
    """Return the kind of graph in the first line of KONECT's files: sym, asym or bip; "" for any other text."""
    words = text[:200].tobytes().split(b"\n", 1)[0].decode("ascii", errors="replace").split()
    return words[1] if words[:1] == ["%"] and words[1:2] in (["sym"], ["asym"], ["bip"]) else ""


def graph_name(path: Path) -> str:
    """Return the name of a graph in a file."""
    return path.name.split(".")[0] or "graph"


class _NumberedEdges:
    """The stream of an edge list of numbers. Marks: arguments of `text_blocks` after a block, number of columns."""

    def __init__(self, path: Path, nodes: int | None, first: int, counted: str) -> None:
        self._path, self.where, self.nodes, self.total = path, str(path), nodes, text_size(path)
        self._rules = LineRules(self.where, first, LARGEST_ID if nodes is None else nodes, counted=counted)

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`."""
        place = dict(mark or {})
        columns = place.pop("columns", 0)
        for block in text_blocks(self._path, **place):
            columns = columns or self._rules.begin(block)
            if columns:
                found = self._rules.parse(block, columns)
                if len(found.sources):
                    yield EdgeBlock(*found, mark=block.end | {"columns": columns})
            if progress is not None:
                progress(block.done)


class _NamedEdges:
    """The stream of an edge list between names. It has no marks: rows depend on the names of all lines before."""

    def __init__(self, path: Path, nodes: int | None, counted: str) -> None:
        self._path, self.where, self._expected, self._counted = path, str(path), nodes, counted
        self.nodes: int | None = None  # until all were read
        self.total = text_size(path)
        self._rules = LineRules(self.where, 0, LARGEST_ID)
        self._names: Any = None

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`."""
        self._names, self.nodes = native.load().Names(), None
        columns, delimiter = 0, ""
        for block in text_blocks(self._path):
            if not columns:
                columns = self._rules.begin(block, named=True)
                delimiter = self._rules.delimiter_of(block.text)
            if columns:
                found = self._parse(block, columns, delimiter)
                if len(found.sources):
                    yield EdgeBlock(*found)
            if progress is not None:
                progress(block.done)
        self.nodes = len(self._names)
        if self._expected not in (None, self.nodes):
            reason = f", since {self._counted}" if self._counted else ""
            raise InputError(f"{self.where} names {self.nodes} nodes; expected {self._expected}{reason}")

    def rows(self) -> Mapping[str, Rows]:
        """Return the dataset of ids where all names are whole numbers that fit int64; otherwise the two of names.

        The names are read again where another process has read the edges.
        """
        if self.nodes is None:
            for _ in self.blocks():
                pass
        names, count = self._names, len(self._names)
        if names.all_numbers():
            numbers = np.empty(count, np.int64)
            names.fill_numbers(0, numbers)
            return {schema.NODE_ID: of_array(numbers)}
        offsets = np.zeros(count + 1, np.int64)
        names.fill_lengths(0, offsets[1:])
        np.cumsum(offsets, out=offsets)

        def text() -> Iterator[NDArray[np.uint8]]:
            for first in range(0, count, PIECE):
                last = min(first + PIECE, count)
                piece = np.empty(offsets[last] - offsets[first], np.uint8)
                names.fill_text(first, last - first, piece)
                yield piece

        layout = schema.Layout(np.dtype(np.uint8), (int(offsets[-1]),))
        return {schema.NAME_OFFSETS: of_array(offsets), schema.NAME_TEXT: Rows(layout, text)}

    def _parse(self, block: TextBlock, columns: int, delimiter: str) -> Edges:
        edges = Edges.empty(block.lines, weighted=columns > 2)
        count, irregular = native.load().parse_names(
            block.text, columns, delimiter, self._rules.comments, self._names, *edges.arrays()
        )
        if irregular >= 0:
            number = block.line + native.load().count_lines(block.text[:irregular])
            _, line = next(self._rules.lines(block.text[irregular:], number))
            self._refuse(f"{self.where}:{number}", line, columns, delimiter)
        return edges.cut(count)

    def _refuse(self, where: str, line: str, columns: int, delimiter: str) -> NoReturn:
        """Raise InputError for a line that is wrong."""
        words = [word.strip() for word in line.split(delimiter if delimiter != " " else None)]
        self._rules.check_columns(where, words, columns)
        for word in words[:2]:
            if not all(letter.isprintable() and letter != "\ufffd" for letter in word):
                raise InputError(
                    f"{where}: {shown(word)} is not a name; expected UTF-8 without control characters"
                )
        for name, word in zip(COLUMNS[2:], words[2:], strict=False):
            _number(where, name, word)
        raise InputError(f"{where}: {shown(line)} is not an edge; expected names without control characters")


class Edges(NamedTuple):
    """A run of k edges: int64 [k] ids, and float32 [k] weights where there is a third column."""

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    weight: NDArray[np.float32] | None

    @staticmethod
    def empty(count: int, *, weighted: bool) -> Edges:
        """Return uninitialised arrays for so many edges."""
        weight = np.empty(count, np.float32) if weighted else None
        return Edges(np.empty(count, np.int64), np.empty(count, np.int64), weight)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return the arrays as the native module takes them."""
        return (
            self.sources,
            self.destinations,
            np.empty(0, np.float32) if self.weight is None else self.weight,
        )

    def cut(self, count: int) -> Edges:
        """Return the first edges."""
        weight = None if self.weight is None else self.weight[:count]
        return Edges(self.sources[:count], self.destinations[:count], weight)


@dataclass(frozen=True)
class LineRules:
    """Format of the lines of an edge list.

    Fields: where: the file. first, limit: ids are first .. first + limit - 1. delimiters: commas and semicolons
    separate words, too. comments: characters that begin comments. names: names of the columns. counted: where the limit
    is from, for messages.
    """

    where: str
    first: int
    limit: int
    delimiters: bool = True
    comments: str = "#%"
    names: tuple[str, ...] = COLUMNS
    counted: str = ""

    def begin(self, block: TextBlock, *, named: bool = False) -> int:
        """Return the number of columns of the first edge, which is in this block; 0 where there is none yet.

        named: ids may be any words. Raises InputError for a first line that is a header, and for bipartite
        graphs of KONECT.
        """
        if block.line == 1 and _konect_kind(block.text) == "bip":
            raise InputError(
                f"{self.where}:1: '% bip' is a bipartite graph, both sides of which have ids of their own; number the "
                "second side after the first, and remove this line"
            )
        for number, line in self.lines(block.text, block.line):
            where, words = f"{self.where}:{number}", self._words(line)
            columns = min(max(len(words), 2), len(self.names))
            if named:
                ends = {re.sub("[^a-z0-9]", "", word.lower()) for word in words[:2]}
                if len(ends) == 2 and all(map(HEADER.fullmatch, ends)):
                    raise InputError(f"{where}: {shown(line)} is a header; headers need a # in front")
            elif re.search("[A-Za-z]", line):
                try:
                    self._edge(where, line, columns)
                except InputError as error:
                    raise InputError(f"{error}; headers need a # in front") from None
            return columns
        return 0

    def delimiter_of(self, text: NDArray[np.uint8]) -> str:
        """Return the separator of the words of a text's first edge: a comma, a semicolon, or a blank for blanks."""
        for _, line in self.lines(text, 0):
            return next((each for each in ",;" if each in line), " ")
        return " "

    def parse(self, block: TextBlock, columns: int) -> Edges:
        """Return the edges of a block. Raises InputError that names file and line of the first that is wrong."""
        edges = Edges.empty(block.lines, weighted=columns > 2)
        count, irregular = native.load().parse_edges(
            block.text, columns, self.first, self.limit, self.delimiters, self.comments, *edges.arrays()
        )
        if irregular >= 0:
            count = 0
            for number, line in self.lines(block.text, block.line):
                source, destination, weight = self._edge(f"{self.where}:{number}", line, columns)
                edges.sources[count], edges.destinations[count] = source, destination
                if edges.weight is not None:
                    edges.weight[count] = weight
                count += 1
        return edges.cut(count)

    def lines(self, text: NDArray[np.uint8], number: int) -> Iterator[tuple[int, str]]:
        """Yield number and text of each line that is neither empty nor a comment."""
        for at, _, whole in lines_of(text, number):
            line = whole.strip()
            if line and line[0] not in self.comments:
                yield at, line

    def _words(self, line: str) -> list[str]:
        for delimiter in ",;" if self.delimiters else "":
            if delimiter in line:
                return [word.strip() for word in line.split(delimiter)]
        return line.split()

    def check_columns(self, where: str, words: list[str], columns: int) -> None:
        """Raise InputError unless a line has so many words."""
        if len(words) != columns or "" in words:
            have = len([word for word in words if word])
            names = self.names[:columns]
            named = f"{', '.join(names[:-1])} and {names[-1]}" if columns > 2 else ", ".join(names)
            quotes = "; quotes are not read" if any(word[:1] in ('"', "'") for word in words if word) else ""
            raise InputError(f"{where}: {have} columns; expected {columns}: {named}{quotes}")

    def _edge(self, where: str, line: str, columns: int) -> tuple[int, int, float]:
        """Return source, destination and weight (1 without one) of a line. Raises InputError where it is wrong."""
        words = self._words(line)
        self.check_columns(where, words, columns)
        source, destination = self._node(where, words[0]), self._node(where, words[1])
        numbers = [_number(where, name, word) for name, word in zip(self.names[2:], words[2:], strict=False)]
        return source, destination, numbers[0] if numbers else 1.0

    def _node(self, where: str, word: str) -> int:
        """Return the row of a node id."""
        if not (word.isascii() and word.lstrip("+-").isdigit() and len(word) - len(word.lstrip("+-")) <= 1):
            quotes = "; quotes are not read" if word[0] in ('"', "'") else ""
            raise InputError(f"{where}: {shown(word)} is not a node id; expected a whole number{quotes}")
        expected = f"expected {self.first} .. {self.first + self.limit - 1}"
        if self.counted:
            expected += f", since {self.counted}"
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
