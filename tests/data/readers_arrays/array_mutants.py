"""Damaged files of arrays: `make` gives the same mutant for the same seed; as a module, a worker that reads them."""

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
from damaged.mutants import changed
from damaged.watched import serve
from pyarrow import parquet

from mgg_hpc.data.readers.edge_arrays import open_edge_arrays
from mgg_hpc.data.readers.node_arrays import node_rows
from mgg_hpc.data.readers.npz import open_npz
from mgg_hpc.data.readers.ogb import open_ogb
from mgg_hpc.data.streams import Imported, Rows

from .ogb_files import drawn, write

Rng = np.random.Generator

NODES, EDGES = 30, 60
SIZES = (
    "0",
    "1",
    "-1",
    "29",
    "31",
    "59",
    "61",
    "2147483648",
    "9" * 15,
    "9" * 18,
    "9" * 19,
    "9" * 30,
    "9" * 5000,
)
WORDS = (
    *(*SIZES, "x", "nan", "inf", "-inf", "1e999", "1e-999", "1_0", "+", ".", ",", ",,", ";", '"', '""', "\n"),
    *(
        "\n\n",
        "\r",
        "\0",
        "\t",
        "(",
        "()",
        "{",
        "'",
        "True",
        "'|O'",
        "'<U9'",
        "'<f8'",
        "'<M8[s]'",
        "fortran_order",
    ),
)


def _npy(rng: Rng) -> bytes:
    out = io.BytesIO()
    edges = rng.integers(NODES, size=(2, EDGES)).astype(rng.choice(["<i4", "<i8", ">i8", "<u4", "u1"]))
    np.save(out, edges if rng.random() < 0.5 else np.array(edges.T, order=str(rng.choice(["C", "F"]))))
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
        arrays |= {
            "x_indptr": x.indptr,
            "x_indices": x.indices,
            "x_data": x.data,
            "x_shape": np.array(x.shape),
        }
    if rng.random() < 0.5:
        arrays["weight"] = rng.random(edges).astype(np.float32)
    return _zipped(rng, arrays)


def _zipped(rng: Rng, arrays: dict[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(out, **arrays)
    return out.getvalue()


def _scipy(rng: Rng) -> bytes:
    out = io.BytesIO()
    form = str(rng.choice(["csr", "csc", "coo"]))
    matrix = sp.random_array((NODES, NODES), density=0.1, rng=rng, format=form)
    sp.save_npz(out, matrix, compressed=bool(rng.integers(2)))
    return out.getvalue()


def _sparse_features(rng: Rng) -> bytes:
    out = io.BytesIO()
    sp.save_npz(out, sp.random_array((NODES, 9), density=0.3, rng=rng, format="csr"))
    return out.getvalue()


def _parquet(rng: Rng) -> bytes:
    columns = {name: rng.normal(size=NODES) for name in "abc"}
    columns["d"] = rng.integers(9, size=NODES)
    if rng.random() < 0.3:
        columns = {"x": rng.normal(size=(NODES, 3)).tolist()}
    sink = pa.BufferOutputStream()
    packing = str(rng.choice(["none", "snappy", "gzip", "zstd"]))
    parquet.write_table(
        pa.table(columns), sink, row_group_size=int(rng.choice([7, 100])), compression=packing
    )
    return sink.getvalue().to_pybytes()


def _text(rng: Rng) -> bytes:
    rows = rng.normal(size=(NODES, 4)).round(3).tolist()
    separator = str(rng.choice([",", ";", " ", "\t"]))
    return (
        "a,b,c,d\n" * bool(rng.integers(2)) + "".join(separator.join(map(str, row)) + "\n" for row in rows)
    ).encode()


MAKERS: dict[str, Callable[[Rng], bytes]] = {
    "edges.npy": _npy,
    "own.npz": _archive,
    "scipy.npz": _scipy,
    "features.npz": _sparse_features,
    "features.csv": _text,
    "features.csv.gz": _text,
    "features.parquet": _parquet,
}
FORMATS = (*MAKERS, "ogb_text", "ogb_binary")


def make(format_: str, seed: int, path: Path) -> str:
    """Write the mutant of a seed to a file, or for OGB's formats to a folder, and return what was done."""
    rng = np.random.default_rng(seed)
    if format_ in MAKERS:
        data, story = _changed_file(MAKERS[format_](rng), rng, format_)
        path.write_bytes(data)
        return f"seed {seed}: {format_}: {story}"
    files = dict(_dataset(format_ == "ogb_binary", int(rng.integers(4))))
    name = sorted(files)[int(rng.integers(len(files)))]
    files[name], story = _changed_file(files[name], rng, name)
    for each, data in files.items():
        (path / each).parent.mkdir(parents=True, exist_ok=True)
        (path / each).write_bytes(data)
    return f"seed {seed}: {format_}: {name}: {story}"


@functools.cache
def _dataset(binary: bool, number: int) -> dict[str, bytes]:
    """Return the files of a sound dataset of OGB by their paths: with labels for all nodes or not, and so on."""
    made = drawn(NODES, EDGES, 3, 4, unlabelled=number % 2 == 1, seed=number)
    made.further.clear()
    if number > 1:
        made.edge_feat = lambda: [np.ones((EDGES, 2), np.float32)]
    with tempfile.TemporaryDirectory() as held:
        folder = write(Path(held) / "some", made, binary=binary)
        return {
            str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()
        }


def _changed_file(data: bytes, rng: Rng, name: str) -> tuple[bytes, str]:
    """Change a file's bytes, or what is packed in it, or the arrays of an archive."""
    packed = rng.random() < 0.3
    if name.endswith(".gz"):
        inner = bytearray(data if data[:2] != b"\x1f\x8b" else gzip.decompress(data))
        story = "text as it was" if packed else _changed(inner, rng)
        outer = bytearray(gzip.compress(bytes(inner), 1))
        if packed:
            story += "; packed: " + _changed(outer, rng)
        return bytes(outer), story
    if name.endswith(".npz") and not packed:
        return _changed_member(data, rng)
    outer = bytearray(data)
    story = _changed(outer, rng)
    return bytes(outer), story


def _changed_member(data: bytes, rng: Rng) -> tuple[bytes, str]:
    """Change one array of an archive, and pack it again with a checksum that is right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: bytearray(archive.read(name)) for name in archive.namelist()}
    name = str(rng.choice(sorted(members)))
    how = str(rng.choice(["bytes", "bytes", "bytes", "header", "values", "gone", "other name", "swapped"]))
    story = f"{how} of {name}"
    other = str(rng.choice(sorted(members)))
    if how == "bytes":
        story += ": " + _changed(members[name], rng)
    elif how == "header":
        head = bytearray(members[name][:128])
        story += ": " + _changed(head, rng)
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
    with zipfile.ZipFile(
        out, "w", zipfile.ZIP_DEFLATED if rng.integers(2) else zipfile.ZIP_STORED
    ) as archive:
        for each, content in members.items():
            archive.writestr(each, bytes(content))
    return out.getvalue(), story


def _changed(data: bytearray, rng: Rng) -> str:
    return changed(data, rng, WORDS, near=128)


def check(path: Path) -> None:
    """Read everything in a file or folder, as an import does."""
    warnings.simplefilter("ignore")
    if path.name.startswith("features"):
        _, rows, _ = node_rows(features=path)
        _check_rows(rows)
        return
    if path.name.startswith("ogb"):
        imported = open_ogb(path)
    else:
        imported = open_edge_arrays(path) if path.suffix == ".npy" else open_npz(path)
    _check_edges(imported)
    assert not callable(imported.rows)
    _check_rows(imported.rows)


def _check_edges(imported: Imported) -> None:
    limit = 2**63 if imported.edges.nodes is None else imported.edges.nodes
    for block in imported.edges.blocks():
        for ids in (block.sources, block.destinations):
            assert len(ids) and ids.min() >= 0
            if ids.max() >= limit:  # which the build refuses
                assert imported.edges.where
        assert all(len(values) == len(block) for values in block.data.values())


def _check_rows(rows: dict[str, Rows]) -> None:
    for each in rows.values():
        count = 0
        for piece in each.pieces():
            assert piece.dtype == each.layout.dtype and piece.shape[1:] == each.layout.shape[1:]
            count += len(piece)
        assert count == each.layout.shape[0]


if __name__ == "__main__":
    serve(check)
