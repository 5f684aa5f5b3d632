"""Text files of random graphs, with what they say, and all that a reader makes of one."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard

from mgg_hpc.data.streams import EdgeBlock, Imported

PACKINGS = {"plain": lambda data: data, "gzip": gzip.compress, "zstd": zstandard.compress}
WEIGHTS = (
    "0.5", "-2", "1e-3", "+.25", "3.14159265358979", "1E2", "7", "-0", "5.", "1e-400", "00012.5", "16777217",
    "0.1000000014901161193847656251", "340282346638528859811704183484516925440", "+1.17549435e-38",
    "123456789012345678901234",
)  # fmt: skip


class Listed(NamedTuple):
    """A list of edges: text, and what its lines say."""

    text: str
    sources: list[int]
    destinations: list[int]
    weights: list[np.float32]


def listed_edges(
    rng: np.random.Generator,
    edges: int,
    *,
    columns: int = 2,
    separator: str = " ",
    noise: bool = False,
    first: int = 0,
) -> Listed:
    """Draw a list of edges between 30 nodes. noise: blanks, empty lines, comments, CRLF, and no newline at the end."""
    found, lines = Listed("", [], [], []), []
    for source, destination in rng.integers(30, size=(edges, 2)).tolist():
        words = [str(source + first), str(destination + first)]
        if columns > 2:
            words.append(str(rng.choice(WEIGHTS)))
            found.weights.append(np.float32(float(words[2])))
        if columns > 3:
            words.append(str(rng.integers(10**9, 2 * 10**9)))
        line = separator.join(words)
        if noise:
            line = rng.choice(["", " ", "\t"]) + line + rng.choice(["", " ", "\r"])
            lines += [rng.choice(["", "   ", "\r", "# comment 1 2", "  % 3"])] * (rng.random() < 0.2)
        lines.append(line)
        found.sources.append(source)
        found.destinations.append(destination)
    return found._replace(text="\n".join(lines) + ("" if noise else "\n"))


def blocks_of(imported: Imported, mark: Any = None) -> list[EdgeBlock]:
    """Return copies of all blocks of edges."""
    return list(imported.edges.blocks(mark))


def joined(blocks: list[EdgeBlock]) -> tuple[list[int], list[int], list[float] | None]:
    """Return sources, destinations and weights of blocks."""
    sources = np.concatenate([np.empty(0, np.int64), *(block.sources for block in blocks)])
    destinations = np.concatenate([np.empty(0, np.int64), *(block.destinations for block in blocks)])
    if not blocks or blocks[0].weight is None:
        return sources.tolist(), destinations.tolist(), None
    return (
        sources.tolist(),
        destinations.tolist(),
        np.concatenate([block.weight for block in blocks]).tolist(),
    )


def check_marks(open_: Callable[[], Imported], blocks: list[EdgeBlock], text: str | bytes) -> None:
    """Check that a stream goes on behind each block with the blocks that followed it, and knows its line."""
    data = text.encode() if isinstance(text, str) else text
    for at, block in enumerate(blocks):
        assert joined(blocks_of(open_(), block.mark)) == joined(blocks[at + 1 :])
        assert block.mark["line"] == 1 + (data + b"\n")[: block.mark["offset"]].count(b"\n")


def write(path: Path, text: str | bytes, packing: str = "plain") -> Path:
    """Write a text file, packed or not."""
    path.write_bytes(PACKINGS[packing](text.encode() if isinstance(text, str) else text))
    return path
