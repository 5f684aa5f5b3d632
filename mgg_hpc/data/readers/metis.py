"""Graphs as METIS has them (.graph): text, the neighbours of one vertex a line, plain or packed by gzip or zstd.

Karypis: METIS, A Software Package for Partitioning Unstructured Graphs, version 5.1.0, section 4.1.1, 2013. The first
line is ``vertices edges [fmt [ncon]]``; vertices are numbered from 1; each edge is listed by both of its ends. Lines
that begin with % are comments. Sizes and weights of vertices are passed over; those of edges are the weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native
from ..edge_stream import EdgeBlock, Imported
from .compressed import text_blocks, text_lines, text_size
from .edge_list import Edges, graph_name
from .limits import check_memory, read_counts, shown

MOST_WEIGHTS = 1000  # of a vertex

Place = tuple[int, int, int, bool]  # vertex, words of its line, last neighbour, whether within a comment


def open_metis(path: Path) -> Imported:
    """Open a METIS graph as a stream of edges; whether it is undirected is for the build to find out.

    Raises InputError that names file and line for a first line that is wrong; reading raises it for words that are no
    vertices or weights, and for other numbers of vertices and edges than the first line has.
    """
    return Imported(graph_name(path), _Neighbours(path, _read_head(path)), directed=None)


@dataclass(frozen=True)
class _Head:
    """Header of a METIS file. skip: numbers of a vertex before its neighbours. offset, line: where vertices begin."""

    nodes: int
    edges: int
    skip: int
    weighted: bool
    offset: int
    line: int


def _read_head(path: Path) -> _Head:
    for number, behind, line in text_lines(path):
        if not line or line.startswith("%"):
            continue
        where, words = f"{path}:{number}", line.split()
        nodes, edges = read_counts(where, " ".join(words[:2]), ("vertices", "edges"))
        kind = words[2].zfill(3) if len(words) > 2 else "000"
        if len(words) > 4 or len(kind) != 3 or set(kind) - set("01"):
            raise InputError(
                f"{where}: {shown(' '.join(words[2:]))} is no format; expected up to three digits 0 or 1, and the "
                "number of weights of a vertex"
            )
        sizes, vertex_weights, edge_weights = (digit == "1" for digit in kind)
        count = (
            read_counts(where, words[3], ("weights of a vertex",))[0]
            if len(words) > 3
            else int(vertex_weights)
        )
        if not nodes or count > MOST_WEIGHTS or (count > 0) != vertex_weights:
            raise InputError(
                f"{where}: {nodes} vertices with {count} weights each, and the format {kind}; expected one vertex at "
                f"least, and weights (up to {MOST_WEIGHTS}) where the format's second digit is 1"
            )
        check_memory(f"{where}: a graph of {nodes} vertices", 8 * nodes)
        return _Head(nodes, edges, sizes + count, edge_weights, behind, number + 1)
    raise InputError(f"{path}: the file has no first line; expected the numbers of vertices and edges")


class _Neighbours:
    """The stream of a METIS graph. Marks hold the place behind a block: of the file, the vertex, and the line."""

    def __init__(self, path: Path, head: _Head) -> None:
        self._path, self._head = path, head
        self.where, self.total = str(path), text_size(path)
        self.nodes: int | None = head.nodes

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream` has it."""
        head = self._head
        begin = {"offset": head.offset, "line": head.line, "edges": 0, "place": (0, 0, 0, False)}
        mark = mark or begin
        edges, line = mark["edges"], mark["line"]
        place: Place = tuple(mark["place"])
        for block in text_blocks(self._path, offset=mark["offset"], line=line, words=True):
            found, place = self._parse(block.text, block.line, place)
            edges, line = edges + len(found.sources), block.line + block.lines
            behind = {"offset": block.offset + len(block.text), "line": line, "edges": edges, "place": place}
            if len(found.sources):
                yield EdgeBlock(*found, mark=behind)
            if progress is not None:
                progress(block.done)
        if place[1] or place[3]:  # the last line has no newline
            _, place = self._parse(np.full(1, ord("\n"), np.uint8), line, place)
        if place[0] < head.nodes:
            raise InputError(
                f"{self.where}: the file ends behind vertex {place[0]}; expected {head.nodes} lines of vertices"
            )
        if edges != 2 * head.edges:
            raise InputError(
                f"{self.where}: the vertices have {edges} neighbours; expected {2 * head.edges}, two for each of "
                f"{head.edges} edges"
            )

    def _parse(self, text: NDArray[np.uint8], line: int, place: Place) -> tuple[Edges, Place]:
        """Return the edges of a text, and the place behind it."""
        head = self._head
        edges = Edges.empty(native.load().count_words(text), weighted=head.weighted)
        count, irregular, place = native.load().parse_adjacency(
            text, place, head.nodes, head.skip, head.weighted, *edges.arrays()
        )
        if irregular >= 0:
            number = line + native.load().count_lines(text[:irregular])
            word = bytes(text[irregular : irregular + 1000]).decode("utf-8", errors="replace")
            raise InputError(f"{self.where}:{number}: {self._reason(word, place)}")
        return edges.cut(count), place

    def _reason(self, rest: str, place: Place) -> str:
        """Return why the next word is wrong. rest: the text from there on. place: where it is."""
        head, (vertex, words) = self._head, place[:2]
        found = re.match(r"[^ \t\r\n]+", rest)  # other blanks of Unicode are letters of a word here
        word = shown(found[0]) if found else ""
        behind = max(words - head.skip, 0)
        if vertex >= head.nodes:
            return f"{word} is behind the last of {head.nodes} vertices"
        if words < head.skip:
            named = f"size or weight {words + 1} of {head.skip} of vertex {vertex + 1}"
        elif head.weighted and behind % 2:
            named = f"weight of neighbour {behind // 2 + 1} of vertex {vertex + 1}"
        else:
            return f"{word} is not a vertex; expected 1 .. {head.nodes}"
        return (
            f"{word} is not the {named}; expected a number"
            if word
            else f"there is no {named}; expected a number"
        )
