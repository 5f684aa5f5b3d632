"""Damaged files of arrays and of text: `make` gives the same mutant for the same seed; as a module, it reads them."""

from __future__ import annotations

import functools
import gzip
import io
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from data.readers_arrays import ogb_files
from data.readers_text.text_graphs import PACKINGS, listed_edges
from pyarrow import parquet

from damaged.mutants import changed
from damaged.watched import serve
from mgg_hpc.data.readers.edge_arrays import open_edge_arrays
from mgg_hpc.data.readers.edge_list import open_edge_list
from mgg_hpc.data.readers.matrix_market import open_matrix_market
from mgg_hpc.data.readers.metis import open_metis
from mgg_hpc.data.readers.node_arrays import node_rows
from mgg_hpc.data.readers.npz import open_npz
from mgg_hpc.data.readers.ogb import open_ogb

Rng = np.random.Generator

NODES, EDGES = 30, 60


def _npy(rng: Rng) -> bytes:
    edges = rng.integers(NODES, size=(2, EDGES)).astype(rng.choice(["<i4", "<i8", ">i8", "<u4", "u1"]))
    return _saved(
        np.save, edges if rng.random() < 0.5 else np.array(edges.T, order=str(rng.choice(["C", "F"])))
    )


def _saved(save: Callable[..., None], *arguments: object, **named: object) -> bytes:
    out = io.BytesIO()
    save(out, *arguments, **named)
    return out.getvalue()


def _archive(rng: Rng) -> bytes:
    """One of the project's own; some are large enough to be unpacked in several steps."""
    edges = int(rng.choice([EDGES, 4000], p=[0.7, 0.3]))
    destinations = np.sort(rng.integers(NODES, size=edges))
    arrays = {
        "indptr": np.searchsorted(destinations, np.arange(NODES + 1)),
        "indices": rng.integers(NODES, size=edges).astype(np.int32),
        "y": rng.integers(4, size=NODES),
        **{f"{name}_mask": np.arange(NODES) % 3 == at for at, name in enumerate(("train", "val", "test"))},
        "edge/a": rng.normal(size=(edges, 2)).astype(np.float32),
        "node/id": np.arange(NODES),
    }
    if rng.random() < 0.5:
        arrays["x"] = np.array(rng.normal(size=(NODES, 3)), order=str(rng.choice(["C", "F"])))
    else:
        x = sp.random_array((NODES, 5), density=0.3, rng=rng, format="csr")
        arrays |= {f"x_{name}": np.array(getattr(x, name)) for name in ("indptr", "indices", "data", "shape")}
    if rng.random() < 0.5:
        arrays["weight"] = rng.random(edges).astype(np.float32)
    return _saved(np.savez if rng.random() < 0.5 else np.savez_compressed, **arrays)


def _scipy(rng: Rng) -> bytes:
    form = str(rng.choice(["csr", "csc", "coo"]))
    matrix = sp.random_array((NODES, NODES), density=0.1, rng=rng, format=form)
    return _saved(sp.save_npz, matrix, compressed=bool(rng.integers(2)))


def _sparse_features(rng: Rng) -> bytes:
    return _saved(sp.save_npz, sp.random_array((NODES, 9), density=0.3, rng=rng, format="csr"))


def _parquet(rng: Rng) -> bytes:
    columns = {name: rng.normal(size=NODES) for name in "abc"} | {"d": rng.integers(9, size=NODES)}
    if rng.random() < 0.3:
        columns = {"x": rng.normal(size=(NODES, 3)).tolist()}
    sink, packing = pa.BufferOutputStream(), str(rng.choice(["none", "snappy", "gzip", "zstd"]))
    rows = int(rng.choice([7, 100]))
    parquet.write_table(pa.table(columns), sink, row_group_size=rows, compression=packing)
    return sink.getvalue().to_pybytes()


def _columns(rng: Rng) -> bytes:
    rows = rng.normal(size=(NODES, 4)).round(3).tolist()
    separator = str(rng.choice([",", ";", " ", "\t"]))
    lines = ["a,b,c,d"] * bool(rng.integers(2)) + [separator.join(map(str, row)) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def _lengths(rng: Rng) -> tuple[int, int]:
    """Draw a number of edges, and how often they are listed; some texts are of several parts, which threads parse."""
    return int(rng.choice([5, 40, 300])), int(rng.choice([1, 1, 1, 1, 100]))


def _list(rng: Rng) -> bytes:
    (edges, times), separator = _lengths(rng), str(rng.choice([" ", "\t", ",", ";"]))
    listed = listed_edges(rng, edges, columns=int(rng.integers(2, 5)), separator=separator, noise=True)
    return "\n".join([listed.text] * times).encode()


def _matrix(rng: Rng) -> bytes:
    (edges, times), field, symmetry = (
        _lengths(rng),
        *map(rng.choice, (["pattern", "real"], ["general", "symmetric"])),
    )
    listed = listed_edges(rng, edges, columns=2 if field == "pattern" else 3, first=1)
    head = f"%%MatrixMarket matrix coordinate {field} {symmetry}\n% c\n30 30 {edges * times}\n"
    return (head + listed.text * times).encode()


def _metis(rng: Rng) -> bytes:
    edges, weighted = int(np.prod(_lengths(rng))), bool(rng.integers(2))
    rows: list[list[str]] = [[] for _ in range(NODES)]
    for u, v in rng.integers(NODES, size=(edges, 2)).tolist():
        for one, other in ((u, v), (v, u)):
            rows[one] += [str(other + 1)] + ["3"] * weighted
    return ("\n".join([f"{NODES} {edges} {int(weighted)}", "% c", *map(" ".join, rows)]) + "\n").encode()


ARRAYS: dict[str, Callable[[Rng], bytes]] = {
    "edges.npy": _npy,
    "own.npz": _archive,
    "scipy.npz": _scipy,
    "features.npz": _sparse_features,
    "features.csv": _columns,
    "features.csv.gz": _columns,
    "features.parquet": _parquet,
}
TEXTS = dict.fromkeys(("plain.txt", "gzip.txt", "zstd.txt", "names.txt"), _list)
TEXTS |= {"matrix.mtx": _matrix, "metis.graph": _metis}
FOLDERS = ("ogb_text", "ogb_binary")


def make(format_: str, seed: int, path: Path) -> str:
    """Write the mutant of a seed to a file, or for OGB's formats to a folder, and return what was done."""
    rng = np.random.default_rng(seed)
    if format_ in FOLDERS:
        files = dict(_dataset(format_ == "ogb_binary", int(rng.integers(4))))
        name = sorted(files)[int(rng.integers(len(files)))]
        files[name], story = _mutant(files[name], rng, name)
        for each, data in files.items():
            (path / each).parent.mkdir(parents=True, exist_ok=True)
            (path / each).write_bytes(data)
        return f"seed {seed}: {name}: {story}"
    data, story = _mutant((ARRAYS | TEXTS)[format_](rng), rng, format_)
    path.write_bytes(data)
    return f"seed {seed}: {story}"


@functools.cache
def _dataset(binary: bool, number: int) -> dict[str, bytes]:
    """Return the files of a sound dataset of OGB by their paths: with labels for all nodes or not, and so on."""
    made = ogb_files.drawn(NODES, EDGES, 3, 4, unlabelled=number % 2 == 1, seed=number)
    made.further.clear()
    if number > 1:
        made.edge_feat = lambda: [np.ones((EDGES, 2), np.float32)]
    with tempfile.TemporaryDirectory() as held:
        folder = ogb_files.write(Path(held) / "some", made, binary=binary)
        files = (each for each in folder.rglob("*") if each.is_file())
        return {str(each.relative_to(folder)): each.read_bytes() for each in files}


def _mutant(data: bytes, rng: Rng, name: str) -> tuple[bytes, str]:
    """Change a file's bytes, or what is packed in it, or the arrays of an archive."""
    if name.endswith(".npz") and rng.random() < 0.7:
        return _changed_member(data, rng)
    pack = gzip.compress if name.endswith(".gz") else PACKINGS.get(name.partition(".")[0])
    if pack is None:
        outer = bytearray(data)
        return outer, changed(outer, rng)
    inner = bytearray(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    story = changed(inner, rng) if rng.random() < 0.6 else "as it was"
    outer = bytearray(pack(bytes(inner)))
    if story == "as it was" or rng.random() < 0.2:
        story += "; packed: " + changed(outer, rng)
    return outer, story


def _changed_member(data: bytes, rng: Rng) -> tuple[bytes, str]:
    """Change one array of an archive, and pack it again with a checksum that is right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: bytearray(archive.read(name)) for name in archive.namelist()}
    name, other = (str(rng.choice(sorted(members))) for _ in range(2))
    how = str(rng.choice(["bytes", "bytes", "bytes", "header", "values", "gone", "other name", "swapped"]))
    story = f"{how} of {name}"
    if how == "bytes":
        story += ": " + changed(members[name], rng)
    elif how == "header":
        head = bytearray(members[name][:128])
        story += ": " + changed(head, rng)
        members[name][:128] = head
    elif how == "values":
        at = int(rng.integers(128, max(129, len(members[name]))))
        members[name][at : at + 8] = bytes(rng.integers(256, size=len(members[name][at : at + 8])).tolist())
    elif how == "gone":
        del members[name]
    elif how == "other name":
        members[other] = members.pop(name)
    else:
        members[name], members[other] = members[other], members[name]
    out = io.BytesIO()
    packing = zipfile.ZIP_DEFLATED if rng.integers(2) else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", packing) as archive:
        for each, content in members.items():
            archive.writestr(each, bytes(content))
    return out.getvalue(), story


OPENED: dict[str, Callable] = {".npy": open_edge_arrays, ".npz": open_npz, ".mtx": open_matrix_market}
OPENED |= {".graph": open_metis, "": open_ogb, ".txt": open_edge_list}


def check(path: Path) -> None:
    """Read everything in a file or folder, as an import does."""
    warnings.simplefilter("ignore")
    if path.name.startswith("features"):
        rows = node_rows(features=path)[1]
    else:
        names = {"ids": "names"} if path.stem == "names" else {}
        imported = OPENED[path.suffix](path, **names)
        limit = imported.edges.nodes or (10**15 if path.name in TEXTS else 2**63)
        for block in imported.edges.blocks():
            for ids in (block.sources, block.destinations):
                assert len(ids) and ids.min() >= 0
                if ids.max() >= limit:  # which the build refuses, of arrays
                    assert imported.edges.where and path.name not in TEXTS
            assert block.weight is None or path.name not in TEXTS or np.isfinite(block.weight).all()
            assert all(len(values) == len(block) for values in block.data.values())
        rows = imported.rows() if callable(imported.rows) else imported.rows
    for each in rows.values():
        count = 0
        for piece in each.pieces():
            assert piece.dtype == each.layout.dtype and piece.shape[1:] == each.layout.shape[1:]
            count += len(piece)
        assert count == each.layout.shape[0]


if __name__ == "__main__":
    serve(check)
