"""Readers of graphs in other formats, and the table of the formats that `mgg import` reads."""

from __future__ import annotations

from typing import NamedTuple

SPLITS = ("split_per_class", "split_random", "seed")
# Options that add data of nodes to edges.
NODES = ("name", "features", "feature_type", "labels", "masks", *SPLITS)
TEXT = ("delimiter", "decimal", "comment", "header")  # how texts of edges and of nodes are written
EDGES = ("symmetric", "simple", "combine", "memory")  # options of the build of a file
ENTRIES = "entries (i, j) are edges i -> j; --transpose reads them as j -> i"  # of matrices


class Format(NamedTuple):
    """A format of graphs.

    Fields: reader: "MODULE.FUNCTION" of this package, which is called with the path of the source and, by name, the
    options in ``reads``; it returns a `Graph` or an `Imported`. source: the source in the command's help. endings:
    endings of the source's name. takes: further options that the format takes.
    """

    reader: str
    source: str
    endings: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


LISTS = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el", ".wel", ".net")
FORMATS = {
    "digits": Format("digits.read_digits", '"digits"', reads=("seed",)),
    "planetoid": Format(
        "planetoid.open_planetoid",
        '"planetoid" (then FOLDER has the files ind.NAME.*)',
        reads=("name", "download"),
    ),
    "npz": Format(
        "npz.open_npz",
        "an archive (.npz)",
        (".npz",),
        reads=("directed", "split", "transpose", "symmetric"),
        takes=(*NODES, *TEXT, *EDGES),
    ),
    "edges": Format(
        "edge_list.open_edge_list",
        'an edge list (.txt, .csv, .tsv, .edges, .el: "source destination [weight]" a line; plain, .gz or .zst)',
        LISTS,
        reads=("nodes", "first", "map_ids", *TEXT),
        takes=("edge_data", *NODES, *EDGES),
    ),
    "npy": Format(
        "array_edges.open_edge_arrays",
        "an array (.npy: edges [2, E])",
        (".npy",),
        reads=("nodes",),
        takes=("edge_data", *NODES, *TEXT, *EDGES),
    ),
    "mtx": Format(
        "matrix_market.open_matrix_market",
        "a Matrix Market file (.mtx)",
        (".mtx",),
        reads=("transpose",),
        takes=(*NODES, *TEXT, *EDGES),
    ),
    "metis": Format(
        "metis.open_metis", "METIS's .graph", (".graph", ".metis"), takes=(*NODES, *TEXT, *EDGES)
    ),
    "ogb": Format("ogb.open_ogb", "a folder of OGB", reads=("feature_type",), takes=("name", *EDGES)),
}
