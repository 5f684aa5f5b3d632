"""Matrix Market: square sparse matrices as text (.mtx), plain or packed by gzip or zstd.

Boisvert, Pozo, Remington: The Matrix Market Exchange Formats, NISTIR 5935, 1996. An entry (i, j) is the edge i -> j,
and its value the weight. A symmetric matrix gives both directions of each entry off its diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, shown
from ...sizes import counted
from .. import checks
from ..edge_stream import EdgeBlock, Imported
from . import ENTRIES
from .compressed import TextBlock, head_lines, text_blocks, text_size
from .dialect import Dialect
from .edge_list import Edges, LineRules, graph_name
from .limits import check_memory, read_counts

BANNER = "%%MatrixMarket matrix coordinate"
FIELDS = {"pattern": 2, "integer": 3, "unsigned-integer": 3, "real": 3}  # and the columns of their entries
SYMMETRIES = ("general", "symmetric")


def open_matrix_market(path: Path, *, transpose: bool = False) -> Imported:
    """Open a matrix in coordinate format, of a pattern, integers or reals, general or symmetric, as a stream of edges.

    transpose: an entry (i, j) is the edge j -> i. Raises InputError that names file and line for other kinds of
    matrices; reading raises it for entries that are wrong, too few or too many.
    """
    entries = _Entries(path, transpose)
    known = False if entries.symmetric else None
    direction = "" if transpose else ENTRIES
    return Imported(graph_name(path), entries, directed=known, direction=direction, first=1)


class _Entries:
    """The stream of a matrix. Marks are the arguments of `text_blocks` after a block, and the entries so far."""

    nodes: int | None

    def __init__(self, path: Path, transpose: bool) -> None:
        self._transpose = transpose
        self._path, self.where, self.total = path, str(path), text_size(path)
        lines = head_lines(path)
        _, _, banner = next(lines, ({}, 0, ""))
        self._columns, self.symmetric = self._kind(banner)
        head = next((each for each in lines if each[2] and not each[2].startswith("%")), None)
        if head is None:
            raise InputError(f"{path}: the file ends before its sizes; expected rows, columns and entries")
        self._begin, number, line = head
        rows, columns, self._expected = read_counts(f"{path}:{number}", line, ("rows", "columns", "entries"))
        if rows != columns or not rows:
            raise InputError(
                f"{path}:{number}: the matrix is {rows} x {columns}; expected as many columns as rows, and one at least"
            )
        check_memory(f"{path}:{number}: a graph of {rows} nodes", 8 * rows)
        self.nodes = rows
        dialect = Dialect(delimiter=" ", comment="%")
        self._rules = LineRules(self.where, 1, rows, dialect, names=("row", "column", "value"))

    def _kind(self, banner: str) -> tuple[int, bool]:
        """Return the columns of entries, and whether the matrix is symmetric, from the file's first line."""
        where, words = f"{self.where}:1", banner.lower().split()
        if words[:3] != BANNER.lower().split() or len(words) != 5:
            if words[:1] == ["%%matrixmarket"] and len(words) == 5:
                raise InputError(
                    f"{where}: the matrix is {shown(' '.join(words[1:3]))}; expected 'matrix coordinate'"
                )
            raise InputError(
                f"{where}: {shown(banner)} begins no matrix; expected '{BANNER} real general' or alike"
            )
        for word, known in ((words[3], (*FIELDS,)), (words[4], SYMMETRIES)):
            if word not in known:
                raise InputError(f"{where}: the matrix is {shown(word)}; expected {' or '.join(known)}")
        return FIELDS[words[3]], words[4] == "symmetric"

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`."""
        place = dict(mark or self._begin)
        entries = place.pop("entries", 0)
        for block in text_blocks(self._path, **place):
            found, _, rounded = self._rules.parse(block, self._columns)
            if entries + len(found.sources) > self._expected:
                number, _ = self._line(block, self._expected - entries)
                raise InputError(f"{self.where}:{number}: an entry after the last of {self._expected}")
            # The reverse of an entry of a symmetric matrix is implied.
            above = checks.first(found.sources < found.destinations) if self.symmetric else None
            if above is not None:
                number, line = self._line(block, above)
                raise InputError(
                    f"{self.where}:{number}: {shown(line)} is above the diagonal; a symmetric matrix lists the entries "
                    "on and below it, and one that lists both halves is general"
                )
            entries += len(found.sources)
            if len(found.sources):
                at = block.end | {"entries": entries}
                yield EdgeBlock(*self._edges(found), mark=at, rounded={"weight": rounded})
            if progress is not None:
                progress(block.done)
        if entries < self._expected:
            raise InputError(
                f"{self.where}: the file ends after {counted(entries, 'entry', 'entries')}; expected {self._expected}"
            )

    def _line(self, block: TextBlock, entry: int) -> tuple[int, str]:
        """Return number and text of the line of an entry of a block."""
        line = next(islice(self._rules.dialect.lines(block.text, block.line), entry, None))
        return line.number, line.text

    def _edges(self, found: Edges) -> Edges:
        """Return the edges of entries: row to column, or the reverse, and both where the matrix is symmetric."""
        rows, columns, values = found
        if not self.symmetric:
            return Edges(columns, rows, values) if self._transpose else found
        # An entry and its reverse stay next to each other.
        at = np.repeat(np.arange(len(rows)), 1 + (rows != columns))
        back = np.diff(at, prepend=-1) == 0
        return Edges(
            np.where(back, rows[at], columns[at]),
            np.where(back, columns[at], rows[at]),
            None if values is None else values[at],
        )
