"""Graphs as METIS has them (.graph): text, the neighbours of one vertex a line, plain or packed by gzip or zstd.

Karypis: METIS, A Software Package for Partitioning Unstructured Graphs, version 5.1.0, section 4.1.1, 2013. The first
line is ``vertices edges [fmt [ncon]]``; vertices are numbered from 1; each edge is listed by both of its ends. Lines
that begin with % are comments. Sizes and weights of vertices are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, shown
from ...sizes import counted
from .. import native
from ..edge_stream import EdgeBlock, Imported
from .compressed import head_lines, text_blocks, text_size
from .edge_list import Edges, graph_name
from .limits import check_memory, read_counts

MOST_WEIGHTS = 1000  # of a vertex

Position = tuple[int, int, int, bool]  # vertex, words of its line, last neighbour, whether within a comment


def open_metis(path: Path) -> Imported:
    """Open a METIS graph as a stream of edges; whether it is undirected is for the build to find out.

    Raises InputError that names file and line for a first line that is wrong; reading raises it for words that are no
    vertices or weights, and for other numbers of vertices and edges than the first line has.
    """
    return Imported(graph_name(path), _Neighbours(path), directed=None, first=1)


class _Neighbours:
    """The stream of a METIS graph. Marks: arguments of `text_blocks` after a block, edges so far, `Position`."""

    def __init__(self, path: Path) -> None:
        self._path, self.where, self.total = path, str(path), text_size(path)
        head = next((each for each in head_lines(path) if each[2] and not each[2].startswith("%")), None)
        if head is None:
            raise InputError(
                f"{path}: the file has no first line; expected the numbers of vertices and edges"
            )
        self._begin, number, line = head
        where, words = f"{path}:{number}", line.split()
        nodes, self._expected = read_counts(where, " ".join(words[:2]), ("vertices", "edges"))
        kind = words[2].zfill(3) if len(words) > 2 else "000"
        if len(words) > 4 or len(kind) != 3 or set(kind) - set("01"):
            raise InputError(
                f"{where}: {shown(' '.join(words[2:]))} is no format; expected up to three digits 0 or 1, and the "
                "number of weights of a vertex"
            )
        sizes, vertex_weights, self._weighted = (digit == "1" for digit in kind)
        count = int(vertex_weights)
        if len(words) > 3:
            (count,) = read_counts(where, words[3], ("weights of a vertex",))
        if not nodes or count > MOST_WEIGHTS or (count > 0) != vertex_weights:
            raise InputError(
                f"{where}: {nodes} vertices with {count} weights each, and the format {kind}; expected one vertex at "
                f"least, and weights (up to {MOST_WEIGHTS}) where the format's second digit is 1"
            )
        check_memory(f"{where}: a graph of {nodes} vertices", 8 * nodes)
        self.nodes: int | None = nodes
        self._nodes, self._skip = nodes, sizes + count  # skip: words of a line before its neighbours

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`."""
        begin = mark or {**self._begin, "edges": 0, "position": (0, 0, 0, False)}
        edges, line = begin["edges"], begin["line"]
        position: Position = tuple(begin["position"])
        for block in text_blocks(self._path, offset=begin["offset"], line=line, words=True):
            found, position, rounded = self._parse(block.text, block.line, position)
            edges, line = edges + len(found.sources), block.line + block.lines
            if len(found.sources):
                at = block.end | {"edges": edges, "position": position}
                yield EdgeBlock(*found, mark=at, rounded={"weight": rounded})
            if progress is not None:
                progress(block.done)
        if position[1] or position[3]:  # the last line has no newline
            _, position, _ = self._parse(np.full(1, ord("\n"), np.uint8), line, position)
        if position[0] < self._nodes:
            raise InputError(
                f"{self.where}: the file ends after vertex {position[0]}; expected {self._nodes} lines of vertices"
            )
        if edges != 2 * self._expected:
            raise InputError(
                f"{self.where}: the vertices have {counted(edges, 'neighbour')}; expected {2 * self._expected}, two "
                f"for each of {counted(self._expected, 'edge')}"
            )

    def _parse(self, text: NDArray[np.uint8], line: int, position: Position) -> tuple[Edges, Position, int]:
        """Return the edges of a text, the position after it, and the number of rounded weights."""
        edges = Edges.empty(native.load().count_words(text), weighted=self._weighted)
        count, irregular, position, rounded = native.load().parse_adjacency(
            text, position, self._nodes, self._skip, self._weighted, *edges.arrays()
        )
        if irregular >= 0:
            number = line + native.load().count_lines(text[:irregular])
            rest = bytes(text[irregular : irregular + 1000]).decode("utf-8", errors="replace")
            raise InputError(f"{self.where}:{number}: {self._reason(rest, *position[:2])}")
        return edges.cut(count), position, rounded

    def _reason(self, rest: str, vertex: int, words: int) -> str:
        """Return why the word with which a text begins is wrong. words: those before it in the vertex's line."""
        found = re.match(r"[^ \t\r\n]+", rest)  # other blanks of Unicode are letters of a word here
        word, after = shown(found[0]) if found else "", max(words - self._skip, 0)
        if vertex >= self._nodes:
            return f"{word} comes after the last of {self._nodes} vertices"
        if words < self._skip:
            named = f"size or weight {words + 1} of {self._skip} of vertex {vertex + 1}"
        elif self._weighted and after % 2:
            named = f"weight of neighbour {after // 2 + 1} of vertex {vertex + 1}"
        else:
            return f"{word} is not a vertex; expected 1 .. {self._nodes}"
        return (
            f"{word} is not the {named}; expected a number that single precision holds"
            if word
            else f"there is no {named}; expected a number"
        )
