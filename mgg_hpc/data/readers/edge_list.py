"""Edge lists: text, one edge a line, plain or gzip.

``source destination`` or ``source destination weight``, separated by blanks, tabs or commas; nodes are
numbered from 0; lines that start with # or % are comments. Blocks of lines are parsed at once where they
are regular; a block with anything else in it is read line by line, and that reading decides what is an
error and where. Lines have a longest length, gzip unpacks to so many times its size at most, and the edges
fit the machine's memory.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ...errors import InputError
from ..graph import Graph, from_edges
from .limits import check_memory, shown

BLOCK_BYTES = 4 << 20
LONGEST_LINE = 1 << 20  # bytes; a comment may be long
GZIP_RATIO = 250  # the most that text of edges reaches; deflate has 1032 for repetitions
GZIP_FREE = 64 << 20  # bytes that are unpacked before the ratio counts
EDGE_BYTES, NODE_BYTES = 64, 16  # of memory, while edges are sorted
LARGEST_ID = 10**15  # below it, ids have 15 digits at most, and int64 arithmetic is exact
POWERS = 10 ** np.arange(16, dtype=np.int64)
NEWLINE, COMMA = 10, 44


class Edges(NamedTuple):
    """A run of edges: ``sources``, ``destinations`` int64 [k]; ``weight`` float32 [k] with a third column."""

    sources: np.ndarray
    destinations: np.ndarray
    weight: np.ndarray | None


def read_edge_list(
    path: Path,
    *,
    nodes: int | None = None,
    symmetric: bool = False,
    simple: bool = False,
) -> Graph:
    """Read an edge list; ``nodes`` defaults to the largest id plus one.

    ``symmetric`` adds the reverse of each edge and drops duplicates, ``simple`` drops duplicates and self
    loops. Raises InputError naming file and line for a word, a negative id or a missing column.
    """
    runs: list[Edges] = []
    count = 0
    for run in _read(path, LARGEST_ID if nodes is None else nodes):
        runs.append(run)
        count += len(run.sources)
        check_memory(str(path), EDGE_BYTES * count + NODE_BYTES * (nodes or 0))
    if not runs:
        raise InputError(f"{path} holds no edges; expected lines of source and destination")
    sources = np.concatenate([run.sources for run in runs])
    destinations = np.concatenate([run.destinations for run in runs])
    weights = [run.weight for run in runs if run.weight is not None]
    largest = int(max(sources.max(), destinations.max()))
    if nodes is None and largest > 1000 * (len(sources) + 1000):
        raise InputError(
            f"{path} has the node id {largest} but only {len(sources)} edges; "
            "number the nodes from 0 without large gaps"
        )
    return from_edges(
        sources,
        destinations,
        largest + 1 if nodes is None else nodes,
        name=path.name.split(".")[0] or "graph",
        weight=np.concatenate(weights) if weights else None,
        symmetric=symmetric,
        drop_duplicates=simple,
        drop_self_loops=simple,
    )


def _read(path: Path, limit: int) -> Iterator[Edges]:
    """Yield the edges of a file, block by block."""
    columns: int | None = None
    line = 1
    for block in _line_blocks(path):
        found = _parse_block(block, columns)
        if found is None or any(len(ids) and int(ids.max()) >= limit for ids in found[:2]):
            found = _parse_lines(path, block, line, columns, limit)
        if len(found.sources):
            columns = 2 if found.weight is None else 3
            yield found
        line += block.count(b"\n")


def _line_blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes in blocks of whole lines, unpacked if they are gzip."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                yield from _whole_lines(path, raw, file)  # type: ignore[arg-type]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged gzip: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _whole_lines(path: Path, raw: BinaryIO, file: BinaryIO) -> Iterator[bytes]:
    """Yield blocks of whole lines. raw: the file whose bytes ``file`` unpacks."""
    rest, lines, unpacked = b"", 0, 0
    while piece := file.read(BLOCK_BYTES):
        unpacked += len(piece)
        if file is not raw and unpacked > GZIP_FREE + GZIP_RATIO * raw.tell():
            raise InputError(
                f"{path} unpacks to more than {GZIP_RATIO} times its size, which no list of edges does; "
                "unpack it first if it is one"
            )
        end = piece.rfind(b"\n") + 1
        if end:
            block = rest + piece[:end]
            yield block
            lines, rest = lines + block.count(b"\n"), piece[end:]
        else:
            rest += piece
        if len(rest) > LONGEST_LINE:
            raise InputError(
                f"{path}:{lines + 1}: the line is longer than {LONGEST_LINE} bytes; "
                "expected source and destination, and a newline"
            )
    if rest:
        yield rest + b"\n"


def _parse_block(block: bytes, columns: int | None) -> Edges | None:
    """Parse regular lines all at once; None if a line is not plainly two ids (and a weight)."""
    text = np.frombuffer(_without_comments(block), dtype=np.uint8)
    newline = text == NEWLINE
    comma = text == COMMA
    blank = newline | comma | (text == 32) | (text == 9) | (text == 13)
    edge = np.flatnonzero(np.diff(~blank, prepend=False, append=False))
    starts, ends = edge[::2], edge[1::2]
    if not len(starts):
        return _nothing() if not comma.any() else None
    lines = np.cumsum(newline)[starts]  # each word's line
    if columns is None:
        columns = int(np.searchsorted(lines, lines[0], side="right"))
    # NumPy, as Python, reads 1_0 as 10, and takes NUL for the end of a word.
    if columns not in (2, 3) or len(starts) % columns or b"_" in block or b"\0" in block:
        return None
    grid = lines.reshape(-1, columns)
    if (grid[:, 0] != grid[:, -1]).any() or (grid[1:, 0] == grid[:-1, 0]).any():
        return None
    if comma.any() and not _commas_separate(comma, starts, columns):
        return None
    ids = [_whole_numbers(text, starts[k::columns], ends[k::columns]) for k in (0, 1)]
    weight = _decimals(text, starts[2::3], ends[2::3]) if columns == 3 else None
    if ids[0] is None or ids[1] is None or (columns == 3 and weight is None):
        return None
    return Edges(ids[0], ids[1], weight)


def _nothing() -> Edges:
    return Edges(np.empty(0, np.int64), np.empty(0, np.int64), None)


def _without_comments(block: bytes) -> bytes:
    """Blank out comment lines; a line keeps its place."""
    if not any(mark in block for mark in (b"#", b"%")):
        return block
    lines = block.split(b"\n")
    return b"\n".join(b"" if line.lstrip()[:1] in (b"#", b"%") else line for line in lines)


def _commas_separate(comma: np.ndarray, starts: np.ndarray, columns: int) -> bool:
    """Return whether there is exactly one comma between the words of each line, and none elsewhere."""
    before = np.append(np.cumsum(comma)[starts], np.count_nonzero(comma))
    gaps = np.diff(before, prepend=0)
    between = np.arange(len(gaps)) % columns != 0
    return bool((gaps == between).all())


def _whole_numbers(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Return the words text[starts:ends] as int64; None unless all are 1 to 15 digits."""
    lengths = ends - starts
    if lengths.max() > 15:
        return None
    first = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(first, lengths)  # within the word
    digits = text[np.repeat(starts, lengths) + place].astype(np.int64) - 48
    if digits.min() < 0 or digits.max() > 9:
        return None
    return np.add.reduceat(digits * POWERS[np.repeat(lengths, lengths) - 1 - place], first)


def _decimals(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Return the words text[starts:ends] as float32; None unless all are finite numbers of at most 31 characters."""
    width = int((ends - starts).max())
    if width > 31:
        return None
    place = starts[:, None] + np.arange(width)
    inside = place < ends[:, None]
    words = np.where(inside, text[np.minimum(place, len(text) - 1)], 0).astype(np.uint8)
    try:
        with np.errstate(over="ignore"):
            values = words.view(f"S{width}").ravel().astype(np.float64).astype(np.float32)
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _parse_lines(path: Path, block: bytes, first_line: int, columns: int | None, limit: int) -> Edges:
    """Parse line by line; raises InputError naming file and line of the first that is wrong."""
    rows = []
    for number, raw in enumerate(block.split(b"\n"), start=first_line):
        line = raw.decode("utf-8", errors="replace").strip()
        if not line or line[0] in "#%":
            continue
        where = f"{path}:{number}"
        words = [word.strip() for word in line.split(",")] if "," in line else line.split()
        columns = columns or min(max(len(words), 2), 3)
        if len(words) != columns or "" in words:
            have = len([word for word in words if word])
            named = "source, destination" + (" and weight" if columns == 3 else "")
            raise InputError(f"{where}: {have} columns; expected {columns}: {named}")
        rows.append((_node(where, words[0], limit), _node(where, words[1], limit), _weight(where, words[2:])))
    if not rows:
        return _nothing()
    sources, destinations, weight = zip(*rows, strict=True)
    return Edges(
        np.array(sources, dtype=np.int64),
        np.array(destinations, dtype=np.int64),
        np.array(weight, dtype=np.float32) if columns == 3 else None,
    )


def _node(where: str, word: str, limit: int) -> int:
    if not (word.isascii() and word.lstrip("+-").isdigit() and len(word) - len(word.lstrip("+-")) <= 1):
        raise InputError(f"{where}: {shown(word)} is not a node id; expected a whole number")
    if len(word) > 400:  # beyond any number, and beyond what int() converts
        raise InputError(f"{where}: a node id of {len(word)} digits is too large; expected 0 .. {limit - 1}")
    node = int(word)
    if node < 0:
        raise InputError(f"{where}: the node id {shown(node)} is negative; nodes are numbered from 0")
    if node >= limit:
        raise InputError(f"{where}: the node id {shown(node)} is too large; expected 0 .. {limit - 1}")
    return node


def _weight(where: str, words: list[str]) -> float:
    """Return the weight in the third column; 1 without one."""
    try:
        weight = float(words[0] if words[0].isascii() and "_" not in words[0] else "") if words else 1.0
    except ValueError:
        raise InputError(f"{where}: {shown(words[0])} is not a weight; expected a number") from None
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(weight)):
            raise InputError(f"{where}: the weight {shown(words[0])[1:-1]} is not finite in single precision")
    return weight
