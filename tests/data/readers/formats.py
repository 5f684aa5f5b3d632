"""Random sound files of every format that an import reads, with their contents; and all that a reader yields."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.io
import scipy.sparse as sp
import zstandard
from pyarrow import parquet

from data.graphs import random_graph, rows_of_edges
from data.readers import ogb_files
from mgg_hpc.data import schema
from mgg_hpc.data.edge_stream import Imported
from mgg_hpc.data.graph import Graph, SparseRows
from mgg_hpc.data.readers.array_edges import open_edge_arrays
from mgg_hpc.data.readers.edge_list import open_edge_list
from mgg_hpc.data.readers.matrix_market import open_matrix_market
from mgg_hpc.data.readers.metis import open_metis
from mgg_hpc.data.readers.node_arrays import node_rows
from mgg_hpc.data.readers.npz import open_npz
from mgg_hpc.data.readers.ogb import open_ogb

Rng = np.random.Generator

PACKINGS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
OGB = ("ogbn_arxiv", "ogbn_products", "ogbn_proteins", "ogbn_papers100M")
SPLITS = ("train", "val", "test")
SEPARATORS = (" ", "\t", ",", ", ", ";", " ;\t", "   ")
WEIGHTS = (
    "0.5", "-2", "1e-3", "+.25", "3.14159265358979", "1E2", "7", "-0", "5.", "1e-40", "00012.5", "16777217",
    "0.1000000014901161193847656251", "340282346638528859811704183484516925440", "+1.17549435e-38",
    "123456789012345678901234",
)  # fmt: skip
NAMES = ("zoë", "New York", "7", "007", "-3", "+3", "-0", "0", "9223372036854775807", "9223372036854775808",
         "-9223372036854775808", "日本", "a-much-longer-name-than-a-word-of-the-machine", "x" * 5000, "1e5",
         "\U0001f600", "12345678", "123456789012345", "1234567890123456", "100000000000000000000")  # fmt: skip


@dataclass
class Sound:
    """A file's bytes, or those of a folder's files by path, and what they say.

    edges: sources and destinations, in the order of the file where ``ordered``; weight and data are theirs. rows:
    datasets of nodes by path; facts: other attributes of what is imported; options: what its reader takes; nodes: their
    number, where edges tell it.
    """

    content: bytes | dict[str, bytes]
    edges: Sequence[Any] = ((), ())
    weight: Sequence[float] | None = None
    data: dict[str, np.ndarray] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    nodes: int | None = None
    ordered: bool = True


def saved(save: Callable[..., None], *arguments: object, **named: object) -> bytes:
    """Return what a function writes to a file."""
    out = io.BytesIO()
    save(out, *arguments, **named)
    return out.getvalue()


# --- texts


def noisy(rng: Rng, lines: Sequence[str], before: Sequence[str]) -> str:
    """Put blanks, empty lines, comments and carriage returns between lines, and no newline at the end."""
    more = zip(rng.choice(before, len(lines)), lines, rng.choice(["", " ", "\r"], len(lines)), strict=True)
    return "\n".join(map("".join, more))


def edge_list(rng: Rng, edges: int) -> Sound:
    separator, first, columns = str(rng.choice(SEPARATORS)), int(rng.integers(2)), int(rng.integers(2, 5))
    ends, weights = rng.integers(10 ** rng.integers(1, 15), size=(2, edges)), rng.choice(WEIGHTS, edges)
    words = [*(ends + first).astype(str), weights, rng.integers(10**9, 2 * 10**9, edges).astype(str)]
    lines = [separator.join(line) for line in zip(*words[:columns], strict=True)]
    before = ["", "", "", " ", "\t", "\n", "   \n ", "\r\n", "# comment 1 2\n", "  % 3\n"]
    text = noisy(rng, lines, before) if rng.random() < 0.5 else "\n".join(lines) + "\n"
    weight = np.array([float(word) for word in weights]).astype(np.float32) if columns > 2 else None
    return Sound(text.encode(), ends, weight, options={"first": first}, facts={"directed": None})


def named_edges(rng: Rng, edges: int, *, numbers: bool | None = None) -> Sound:
    """Nodes are numbered in order of first appearance; ids that are numbers are kept as such."""
    separator, weighted = str(rng.choice(SEPARATORS)), rng.random() < 0.5
    names = [name for name in NAMES if separator.strip() or " " not in name]
    names = [*names, *(f"node/{at}" for at in range(edges // 2))]
    if rng.random() < 0.3 if numbers is None else numbers:
        names = rng.integers(-(10**17), 10**17, edges // 2 + 1).tolist()
    words = [names[at] for at in rng.integers(len(names), size=2 * edges).tolist()]
    rows: dict[Any, int] = {}
    ends = np.array([rows.setdefault(word, len(rows)) for word in words])
    if isinstance(words[0], int):
        kept = {schema.NODE_ID: np.array(list(rows))}
    else:
        texts = [name.encode() for name in rows]
        offsets = np.cumsum([0, *map(len, texts)])
        kept = {schema.NAME_TEXT: np.frombuffer(b"".join(texts), np.uint8), schema.NAME_OFFSETS: offsets}
    weight = rng.normal(size=edges).astype(np.float32)
    columns = [map(str, words[::2]), map(str, words[1::2]), *[map(repr, weight.tolist())] * weighted]
    lines = [separator.join(line) for line in zip(*columns, strict=True)]
    # A later line that begins with # is an edge of a name.
    text = "# a comment\n% another\n" + noisy(rng, lines, ["", "", "\n", "  \n"])
    weight = weight if weighted else None
    return Sound(text.encode(), ends.reshape(-1, 2).T, weight, rows=kept, nodes=len(rows))


def matrix(rng: Rng, edges: int) -> Sound:
    """As SciPy writes and reads it; with entries on the diagonal, too."""
    nodes, field = max(20, int((edges / 0.15) ** 0.5)), str(rng.choice(["real", "integer", "pattern"]))
    symmetry = str(rng.choice(["general", "symmetric"]))
    dense = rng.integers(1, 99, size=(nodes, nodes)) * (rng.random((nodes, nodes)) < 0.15)
    dense = dense if field == "integer" else dense * rng.normal(size=(nodes, nodes))
    dense = dense if symmetry == "general" else np.tril(dense) + np.tril(dense, -1).T
    options = {"field": field, "symmetry": symmetry, "comment": "one\ntwo 3"}
    text = saved(scipy.io.mmwrite, sp.coo_matrix(dense), **options)
    read = scipy.io.mmread(io.BytesIO(text)).tocoo()
    weight = None if field == "pattern" else read.data.astype(np.float32)
    facts = {"directed": None if symmetry == "general" else False}
    return Sound(text, (read.row, read.col), weight, facts=facts, nodes=nodes, ordered=False)


def metis(rng: Rng, edges: int, kind: str = "", more: int = 0) -> Sound:
    """kind: three digits, for sizes, weights of vertices (two), weights of edges. more: entries of the first vertex."""
    kind, nodes = kind or "".join(rng.choice(["0", "1"], 3)), max(30, edges // 2)
    ends = np.unique(np.sort(rng.integers(nodes, size=(edges, 2))), axis=0)
    ends = ends[ends[:, 0] != ends[:, 1]]
    ends = np.concatenate([ends, ends[:, ::-1], np.tile([1, 0], (more, 1))])
    weight = np.array([1 + u * v % 99 for u, v in ends.tolist()])
    order = np.argsort(ends[:, 1], kind="stable")
    ends, weight = ends[order], weight[order]
    rows = [["7"] * (kind[0] == "1") + ["1", "20"] * (kind[1] == "1") for _ in range(nodes)]
    for (source, vertex), value in zip(ends.tolist(), weight.tolist(), strict=True):
        rows[vertex] += [str(source + 1)] + [str(value)] * (kind[2] == "1")
    lines = [f"{nodes} {len(ends) // 2}" + f" {kind}" * (kind != "000") + " 2" * (kind[1] == "1")]
    lines += [str(rng.choice([" ", "\t", "  "])).join(row) for row in rows]
    text = noisy(rng, lines, ["", "", " ", "% 1 2\n", "%" + " 1 2" * 29 + "\n"])
    text += "\n" * (not rows[-1] or rng.random() < 0.5)
    weight = weight.astype(np.float32) if kind[2] == "1" else None
    return Sound(text.encode(), ends.T, weight, nodes=nodes, facts={"directed": None})


# --- arrays


def edge_array(rng: Rng, edges: int) -> Sound:
    kind = str(rng.choice(["i1", "<i2", ">i4", "<i4", "<i8", ">i8", "u1", "<u4", ">u8"]))
    pairs = rng.integers(100, size=(2, max(3, edges))).astype(kind)
    shaped = pairs.T if rng.random() < 0.5 else pairs
    return Sound(saved(np.save, np.array(shaped, order=str(rng.choice(["C", "F"])))), pairs)


def archive(
    path: Path | io.BytesIO, graph: Graph, save: Any = np.savez_compressed, **changed: object
) -> None:
    """Write a graph's arrays under the project's names, or others in their place."""
    arrays = {"indptr": graph.indptr, "indices": graph.indices, "weight": graph.weight, "y": graph.y}
    if isinstance(graph.x, SparseRows):
        arrays |= {f"x_{name}": getattr(graph.x, name) for name in ("indptr", "indices", "data", "shape")}
    else:
        arrays["x"] = graph.x
    arrays |= {f"{name}_mask": getattr(graph, name) for name in SPLITS} | changed
    save(path, **{name: array for name, array in arrays.items() if array is not None})


def own_archive(rng: Rng, edges: int) -> Sound:
    weighted, sparse, multilabel, half, other, plain = rng.random(6) < 0.5
    options = {"weighted": weighted, "sparse": sparse, "multilabel": multilabel, "half": half and not sparse}
    graph = random_graph(rng, edges=edges, symmetric=False, **options)
    flow, kind = rng.normal(size=(edges, 3)), rng.integers(9, size=edges).astype(np.int16)
    more = {"edge/flow": flow, "edge/kind": kind, "node/id": np.arange(40) * 7}
    if other:
        more["indices"] = graph.indices.astype(">u8")
    if other and not sparse:
        more["x"] = np.asfortranarray(graph.x)
    rows = {path: each for path, each in schema.arrays(graph).items() if not path.startswith("graph/")}
    return Sound(
        saved(archive, graph, np.savez if plain else np.savez_compressed, **more),
        (graph.indices, rows_of_edges(graph.indptr)),
        graph.weight,
        {"flow": flow.astype(np.float32), "kind": kind},
        rows | {schema.NODE_ID: more["node/id"]},
        {"multilabel": graph.multilabel, "directed": None},
        nodes=40,
    )


def scipy_archive(rng: Rng, edges: int) -> Sound:
    form, weighted, nodes = str(rng.choice(["csr", "csc", "coo"])), rng.random() < 0.5, max(30, edges // 30)
    found = sp.random_array((nodes, nodes), density=0.2, rng=rng, format=form)
    found.data = rng.integers(1, 9, found.nnz) if weighted else np.ones(found.nnz, bool)
    coo = found.tocoo()
    content = saved(sp.save_npz, found, compressed=rng.random() < 0.5)
    weight, facts = coo.data if weighted else None, {"directed": None}
    return Sound(content, coo.coords, weight, nodes=nodes, facts=facts, ordered=False)


def table(columns: dict[str, object], **options: object) -> bytes:
    """Return a file of Parquet."""
    return saved(lambda out: parquet.write_table(pa.table(columns), out, **{"row_group_size": 17, **options}))


def lines_of(array: np.ndarray, separator: str = ",") -> bytes:
    return saved(np.savetxt, array, "%.17g", separator)


TABLES: dict[str, Callable[[np.ndarray], bytes]] = {
    "npy": partial(saved, np.save),
    "csv": lines_of,
    "csv.gz": lambda array: gzip.compress(lines_of(array)),
    "tsv.zst": lambda array: zstandard.compress(lines_of(array, "\t")),
    "txt": lambda array: lines_of(array, "  "),
    "semicolons.csv": lambda array: lines_of(array, " ; "),
    "parquet": lambda array: table({f"c{at}": each for at, each in enumerate(array.T)}, compression="snappy"),
    "lists.parquet": lambda array: table({"x": array.tolist()}, compression="zstd"),
    "fixed.parquet": lambda array: table(
        {"x": pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])}
    ),
}


def node_files(rng: Rng, edges: int, ending: str) -> Sound:
    """Features, labels and masks from files of their own; those of an archive of SciPy are sparse."""
    nodes, multilabel, dtype = 50, rng.random() < 0.5, str(rng.choice(["float32", "float16"]))
    x = rng.normal(size=(nodes, int(rng.integers(1, 9)))) * 10.0 ** rng.integers(-6, 4)
    x = x.astype(rng.choice([np.float32, np.float64]))
    y = rng.integers(2, size=(nodes, 3)) if multilabel else rng.integers(-1, 7, nodes)
    masks = list(rng.integers(3, size=nodes) == np.arange(3)[:, None])
    arrays = [x, y, *(map(np.flatnonzero, masks) if rng.random() < 0.5 else np.array(masks, int))]
    rows = dict(zip(schema.MASKS, masks, strict=True))
    rows[schema.Y] = y.astype(np.float32) if multilabel else y
    facts = {"multilabel": multilabel, "classes": 3 if multilabel else y.max() + 1}
    sparse = sp.random_array((nodes, 9), density=0.2, rng=rng, format="csr")
    if ending == "npz":
        dtype, facts["sparse_shape"] = "float32", sparse.shape
        values = sparse.indptr.astype(np.int64), sparse.indices, sparse.data.astype(np.float32)
        rows |= zip((schema.X_INDPTR, schema.X_INDICES, schema.X_DATA), values, strict=True)
    else:
        rows[schema.X] = x.astype(dtype)
    content = {}
    for path, array in zip(node_paths(Path(), ending), arrays, strict=True):
        kind = path.name.partition(".")[2]
        shaped = array if kind == "npy" else array.reshape(len(array), -1)
        content[path.name] = saved(sp.save_npz, sparse) if kind == "npz" else TABLES[kind](shaped)
    return Sound(content, rows=rows, facts=facts, options={"dtype": dtype})


def node_paths(folder: Path, ending: str) -> list[Path]:
    """Paths of features, labels and the three masks."""
    other = "npy" if ending == "npz" else ending
    return [folder / f"x.{ending}", *(folder / f"{name}.{other}" for name in ("y", *SPLITS))]


def open_nodes(folder: Path, **options: Any) -> Imported:
    """Return the datasets of nodes, without edges."""
    features, labels, *masks = node_paths(folder, folder.name.partition(".")[2])
    _, rows, fields = node_rows(features=features, labels=labels, masks=masks, **options)
    no_edges = SimpleNamespace(nodes=None, total=0, blocks=lambda *_: iter(()))
    return Imported(folder.name, no_edges, rows, **fields)


def ogb(rng: Rng, edges: int, folder: str) -> Sound:
    """What OGB's loader makes of its files (written again here, after its text)."""
    tasks, binary = 3 if folder == "ogbn_proteins" else 1, folder == "ogbn_papers100M"
    made = ogb_files.drawn(60, edges, 5, 4, unlabelled=tasks == 1, seed=int(rng.integers(2**32)))
    if tasks > 1:
        y = rng.integers(2, size=(60, tasks))
        made.tables["node-label"] = lambda: [y[:7], y[7:]]
    feat, has_feat = rng.normal(size=(edges, 3)).astype(np.float32), rng.random() < 0.5
    if has_feat:
        made.tables["edge-feat"] = lambda: [feat[:50], feat[50:]]
    with tempfile.TemporaryDirectory() as held:
        path = ogb_files.write(Path(held) / folder, made, binary=binary)
        content = {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*.*z")}
    ends, x, y = (np.concatenate(list(made.tables[name]())) for name in ("edge", "node-feat", "node-label"))
    if folder in ("ogbn_products", "ogbn_proteins"):  # read_csv_graph_raw's add_inverse_edge
        ends = np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2)
        feat = np.repeat(feat, 2, axis=0)
    dtype = str(rng.choice(["float32", "float16"]))
    # The digits of a text are rounded once, from what they say: not from float32, which they are the shortest for.
    rows = {schema.X: (x if binary else x.astype(str).astype(float)).astype(dtype)}
    classes = np.nan_to_num(y[:, 0].astype(float), nan=-1).astype(int)
    rows[schema.Y] = y.astype(np.float32) if tasks > 1 else classes
    for path, nodes in zip(schema.MASKS, made.split.values(), strict=True):
        rows[path] = np.isin(np.arange(60), nodes)
    facts = {"multilabel": tasks > 1, "classes": tasks if tasks > 1 else classes.max() + 1}
    data = {"feat": feat} if has_feat else {}
    return Sound(content, ends.T, None, data, rows, facts, {"feature_type": dtype}, nodes=60)


TEXTS: dict[str, Callable[[Rng, int], Sound]] = {
    "list.txt": edge_list,
    "names.txt": named_edges,
    "matrix.mtx": matrix,
    "metis.graph": metis,
}
FORMATS = {
    **TEXTS,
    "edges.npy": edge_array,
    "own.npz": own_archive,
    "scipy.npz": scipy_archive,
    **{f"nodes.{ending}": partial(node_files, ending=ending) for ending in (*TABLES, "npz")},
    **{name: partial(ogb, folder=name) for name in OGB},
}
OPENERS: dict[str, Callable[..., Imported]] = {
    ".txt": open_edge_list,
    ".mtx": open_matrix_market,
    ".graph": open_metis,
    ".npy": open_edge_arrays,
    ".npz": open_npz,
    "": open_ogb,
}


def opened(path: Path, **options: Any) -> Imported:
    """Open a file or a folder, which has the name of its format."""
    if path.name.startswith("nodes."):
        return open_nodes(path, **options)
    names = {"map_ids": True} if path.stem == "names" else {}
    return OPENERS[path.suffix](path, **names, **options)


def write(path: Path, content: Any, packing: str = "plain") -> Path:
    """Write a file, of text, bytes or an array, packed or not; or a folder of them."""
    if isinstance(content, dict):
        path.mkdir(parents=True)
        for name, data in content.items():
            write(path / name, data)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = saved(np.save, content) if isinstance(content, np.ndarray) else content
        path.write_bytes(PACKINGS[packing](content.encode() if isinstance(content, str) else content))
    return path


# --- read as arrays


def edges_of(imported: Imported, mark: object = None) -> SimpleNamespace:
    """Sources, destinations, weight and data of all edges, and the lengths and marks of the blocks."""
    reported: list[int] = []
    blocks = list(imported.edges.blocks(mark, reported.append))
    assert reported == sorted(reported) and (not reported or reported[-1] <= imported.edges.total)
    weighted = bool(blocks) and blocks[0].weight is not None
    names = blocks[0].data if blocks else ()
    return SimpleNamespace(
        sources=np.concatenate([np.zeros(0, np.int64), *(block.sources for block in blocks)]),
        destinations=np.concatenate([np.zeros(0, np.int64), *(block.destinations for block in blocks)]),
        weight=np.concatenate([block.weight for block in blocks]) if weighted else None,
        data={name: np.concatenate([block.data[name] for block in blocks]) for name in names},
        lengths=[len(block) for block in blocks],
        marks=[block.mark for block in blocks],
    )


def lists(imported: Imported) -> tuple[list[int], list[int], list[float] | None]:
    """Sources, destinations and weights of all edges."""
    found = edges_of(imported)
    weights = None if found.weight is None else found.weight.tolist()
    return found.sources.tolist(), found.destinations.tolist(), weights


def rows_of(imported: Imported) -> dict[str, np.ndarray]:
    """The datasets of nodes by path; each is as its layout says."""
    rows = imported.rows() if callable(imported.rows) else imported.rows
    return {path: whole(each) for path, each in rows.items()}


def whole(rows) -> np.ndarray:
    """All of a dataset."""
    found = np.concatenate(list(rows.pieces()))
    assert found.dtype == rows.layout.dtype and found.shape == rows.layout.shape
    return found


def read_all(imported: Imported) -> None:
    edges_of(imported)
    rows_of(imported)


def check_marks(open_: Callable[[], Imported], text: bytes = b"") -> None:
    """From each mark on a stream that is opened again gives what lies behind it; marks of a text know their line."""

    def arrays(found: SimpleNamespace) -> dict[str, np.ndarray | None]:
        return {"u": found.sources, "v": found.destinations, "weight": found.weight, **found.data}

    every = edges_of(open_())
    for mark, behind in zip(every.marks, np.cumsum(every.lengths), strict=True):
        rest = arrays(edges_of(open_(), json.loads(json.dumps(mark))))
        assert len(rest["u"]) == len(every.sources) - behind
        for name, values in arrays(every).items():
            if len(rest["u"]):
                np.testing.assert_equal(rest[name], None if values is None else values[behind:])
        assert not text or mark["line"] == 1 + (text + b"\n")[: mark["offset"]].count(b"\n")
