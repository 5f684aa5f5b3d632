"""Matrix Market: square sparse matrices as text (.mtx), plain or packed by gzip or zstd.

Boisvert, Pozo, Remington: The Matrix Market Exchange Formats, NISTIR 5935, 1996. Row i lists the sources of node i's
in-edges: an entry (i, j) is the edge j -> i, and its value the weight. A symmetric matrix gives both directions of each
entry off its diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from .. import checks
from ..edge_stream import EdgeBlock, Imported
from .compressed import TextBlock, text_blocks, text_lines, text_size
from .edge_list import Edges, LineRules, graph_name
from .limits import check_memory, read_counts, shown

BANNER = "%%MatrixMarket matrix coordinate"
FIELDS = {"pattern": 2, "integer": 3, "real": 3}  # and the columns of their entries
SYMMETRIES = ("general", "symmetric")


def open_matrix_market(path: Path) -> Imported:
    """Open a matrix in coordinate format, of a pattern, integers or reals, general or symmetric, as a stream of edges.

    Raises InputError that names file and line for other kinds of matrices; reading raises it for entries that are
    wrong, too few or too many.
    """
    matrix = _read_head(path)
    stream = _Entries(path, matrix)
    return Imported(graph_name(path), stream, directed=False if matrix.symmetric else None)


@dataclass(frozen=True)
class _Matrix:
    """Header of a Matrix Market file. offset, line: where the entries begin."""

    nodes: int
    entries: int
    columns: int
    symmetric: bool
    offset: int
    line: int


def _read_head(path: Path) -> _Matrix:
    """Read the first line and the line of sizes."""
    lines = text_lines(path)
    _, _, first = next(lines, (0, 0, ""))
    words = first.lower().split()
    if words[:3] != BANNER.lower().split() or len(words) != 5:
        if words[:1] == ["%%matrixmarket"] and len(words) == 5:
            raise InputError(
                f"{path}:1: the matrix is {shown(' '.join(words[1:3]))}; expected 'matrix coordinate'"
            )
        raise InputError(
            f"{path}:1: {shown(first)} begins no matrix; expected '{BANNER} real general' or alike"
        )
    for word, known in ((words[3], (*FIELDS,)), (words[4], SYMMETRIES)):
        if word not in known:
            raise InputError(f"{path}:1: the matrix is {shown(word)}; expected {' or '.join(known)}")
    number = 1
    for number, behind, line in lines:
        if not line or line.startswith("%"):
            continue
        rows, columns, entries = read_counts(f"{path}:{number}", line, ("rows", "columns", "entries"))
        if rows != columns or not rows:
            raise InputError(
                f"{path}:{number}: the matrix is {rows} x {columns}; expected as many columns as rows, and one at least"
            )
        check_memory(f"{path}:{number}: a graph of {rows} nodes", 8 * rows)
        return _Matrix(rows, entries, FIELDS[words[3]], words[4] == "symmetric", behind, number + 1)
    raise InputError(f"{path}:{number}: the file ends before its sizes; expected rows, columns and entries")


class _Entries:
    """The stream of a matrix. Marks hold the place behind a block, and the entries so far."""

    def __init__(self, path: Path, matrix: _Matrix) -> None:
        self._path, self._matrix = path, matrix
        self.where, self.total = str(path), text_size(path)
        self.nodes: int | None = matrix.nodes
        self._rules = LineRules(
            self.where, 1, matrix.nodes, delimiters=False, comments="%", names=("row", "column", "value")
        )

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream` has it."""
        matrix = self._matrix
        place = mark or {"offset": matrix.offset, "line": matrix.line, "entries": 0}
        entries = place["entries"]
        for block in text_blocks(self._path, offset=place["offset"], line=place["line"]):
            found = self._rules.parse(block, matrix.columns)
            if entries + len(found.sources) > matrix.entries:
                extra = matrix.entries - entries
                number, _ = next(islice(self._rules.lines(block.text, block.line), extra, None))
                raise InputError(f"{self.where}:{number}: an entry behind the last of {matrix.entries}")
            self._check_below(found, block)
            entries += len(found.sources)
            behind = {"offset": block.offset + len(block.text), "line": block.line + block.lines}
            if len(found.sources):
                yield EdgeBlock(*self._edges(found), mark=behind | {"entries": entries})
            if progress is not None:
                progress(block.done)
        if entries < matrix.entries:
            raise InputError(
                f"{self.where}: the file ends behind {entries} entries; expected {matrix.entries}"
            )

    def _check_below(self, found: Edges, block: TextBlock) -> None:
        """Raise InputError for an entry of a symmetric matrix that is above its diagonal: its reverse is implied."""
        above = checks.first(found.sources < found.destinations) if self._matrix.symmetric else None
        if above is not None:
            number, line = next(islice(self._rules.lines(block.text, block.line), above, None))
            raise InputError(
                f"{self.where}:{number}: {shown(line)} is above the diagonal; a symmetric matrix lists the entries on "
                "and below it, and one that lists both halves is general"
            )

    def _edges(self, found: Edges) -> Edges:
        """Return the edges of entries: column to row, and back where the matrix is symmetric."""
        rows, columns, values = found
        if not self._matrix.symmetric:
            return Edges(columns, rows, values)
        at = np.repeat(
            np.arange(len(rows)), 1 + (rows != columns)
        )  # an entry and its reverse stay side by side
        back = np.diff(at, prepend=-1) == 0
        return Edges(
            np.where(back, rows[at], columns[at]),
            np.where(back, columns[at], rows[at]),
            None if values is None else values[at],
        )
