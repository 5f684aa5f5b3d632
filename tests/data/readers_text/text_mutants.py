"""Damaged text files of graphs: `make` gives the same mutant for the same seed. Run as a module, it reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from damaged.mutants import changed
from damaged.watched import serve

from mgg_hpc.data.readers.edge_list import open_edge_list
from mgg_hpc.data.readers.matrix_market import open_matrix_market
from mgg_hpc.data.readers.metis import open_metis

from .text_graphs import PACKINGS, listed_edges

FORMATS = ("plain.txt", "gzip.txt", "zstd.txt", "names.txt", "matrix.mtx", "metis.graph")
WORDS = (
    *(
        "-1",
        "0",
        "x",
        "1e999",
        "nan",
        "inf",
        "1e-400",
        "9" * 15,
        "9" * 16,
        "9" * 25,
        "9" * 5000,
        "0x1",
        "+5",
        "1_0",
        ".",
    ),
    *(
        ",",
        ";",
        "#",
        "%",
        "\r",
        "\0",
        "\n",
        "\n\n",
        " ",
        "\t",
        "\x0b",
        "\ufffd",
        "\u0663",
        "\udcff",
        "%%MatrixMarket",
    ),
)
Rng = np.random.Generator


def make(format_: str, seed: int, path: Path) -> str:
    """Write the mutant of a seed, and return what was done: to the text, to packed bytes, or to both."""
    rng = np.random.default_rng(seed)
    data = bytearray(_original(format_, rng).encode())
    packing = format_.partition(".")[0]
    packed = packing in ("gzip", "zstd")
    story = changed(data, rng, WORDS, near=200) if not packed or rng.random() < 0.5 else "text as it was"
    if packed:
        data = bytearray(PACKINGS[packing](bytes(data)))
        if story == "text as it was" or rng.random() < 0.2:
            story += "; packed: " + changed(data, rng, WORDS, near=200)
    path.write_bytes(data)
    return f"seed {seed}: {format_}: {story}"


def _original(format_: str, rng: Rng) -> str:
    """Draw a sound file; some are of several parts, which threads parse."""
    edges, times = int(rng.choice([5, 40, 300])), int(rng.choice([1, 1, 1, 1, 100]))
    if format_ == "matrix.mtx":
        field, symmetry = rng.choice(["pattern", "real"]), rng.choice(["general", "symmetric"])
        listed = listed_edges(rng, edges, columns=2 if field == "pattern" else 3, first=1)
        head = f"%%MatrixMarket matrix coordinate {field} {symmetry}\n% c\n30 30 {edges * times}\n"
        return head + listed.text * times
    if format_ == "metis.graph":
        return _metis(rng, edges * times)
    separator = str(rng.choice([" ", "\t", ",", ";"]))
    listed = listed_edges(rng, edges, columns=int(rng.integers(2, 5)), separator=separator, noise=True)
    return "\n".join([listed.text] * times)


def _metis(rng: Rng, edges: int) -> str:
    """Draw a graph, with weights of edges or not."""
    weighted = bool(rng.integers(2))
    rows: list[list[str]] = [[] for _ in range(30)]
    for u, v in rng.integers(30, size=(edges, 2)).tolist():
        for one, other in ((u, v), (v, u)):
            rows[one] += [str(other + 1)] + ["3"] * weighted
    return "\n".join([f"30 {edges} {int(weighted)}", "% c", *map(" ".join, rows)]) + "\n"


def check(path: Path) -> None:
    """Read everything in a file, as an import does."""
    if path.suffix == ".mtx":
        imported = open_matrix_market(path)
    elif path.suffix == ".graph":
        imported = open_metis(path)
    else:
        imported = open_edge_list(path, ids="names" if path.stem == "names" else "numbers")
    limit = 10**15 if imported.edges.nodes is None else imported.edges.nodes
    for block in imported.edges.blocks():
        for ids in (block.sources, block.destinations):
            assert len(ids) and ids.min() >= 0 and ids.max() < limit
        assert block.weight is None or np.isfinite(block.weight).all()
    rows = imported.rows() if callable(imported.rows) else imported.rows
    for each in rows.values():
        assert sum(len(piece) for piece in each.pieces()) == each.layout.shape[0]


if __name__ == "__main__":
    serve(check)
