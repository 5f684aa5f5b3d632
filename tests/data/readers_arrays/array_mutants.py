"""Damaged arrays, archives, tables and OGB folders: the same mutant for the same seed. As a module, it reads them."""

from __future__ import annotations

import gzip
import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from data.hdf5.watched import serve
from data.readers_arrays.ogb_files import drawn
from data.readers_arrays.ogb_files import write as write_ogb
from data.readers_text.text_mutants import Rng, changed
from mgg_hpc.data.readers.edge_arrays import open_edge_arrays
from mgg_hpc.data.readers.node_arrays import node_rows
from mgg_hpc.data.readers.npz import open_npz
from mgg_hpc.data.readers.ogb import open_ogb
from mgg_hpc.data.streams import EdgeStream, Rows

NODES, EDGES = 30, 80
FORMATS = (
    "edges.npy",
    "own.npz",
    "scipy.npz",
    "text.ogb",
    "binary.ogb",
    "features.csv",
    "features.csv.gz",
    "features.parquet",
    "features.npz",
)


def make(format_: str, seed: int, path: Path) -> str:
    """Write the mutant of a seed, a file or a folder, and return what was done."""
    rng = np.random.default_rng(seed)
    if format_.endswith(".ogb"):
        return f"seed {seed}: {format_}: {_folder(format_.startswith('binary'), path, rng)}"
    _original(format_, path, rng)
    return f"seed {seed}: {format_}: {_damaged(path, rng)}"


def _original(format_: str, path: Path, rng: Rng) -> None:
    """Write a sound file."""
    x = rng.normal(size=(NODES, 4)).astype(np.float32)
    save = np.savez if rng.integers(2) else np.savez_compressed
    if format_ == "edges.npy":
        np.save(path, np.asarray(rng.integers(NODES, size=(2, EDGES)), order=str(rng.choice(["C", "F"]))))
    elif format_ == "own.npz":
        indptr = np.sort(np.append(rng.integers(EDGES, size=NODES - 1), [0, EDGES]))
        masks = {
            f"{name}_mask": np.arange(NODES) % 3 == part for part, name in enumerate(("train", "val", "test"))
        }
        more = {
            "edge/kind": rng.integers(9, size=EDGES),
            "node/id": rng.permutation(NODES),
            "y": np.arange(NODES),
        }
        save(path, indptr=indptr, indices=rng.integers(NODES, size=EDGES), x=x, **masks, **more)
    elif format_ in ("scipy.npz", "features.npz"):
        form = str(rng.choice(["csr", "csc", "coo"])) if format_ == "scipy.npz" else "csr"
        matrix = sp.random_array((NODES, NODES), density=0.2, format=form, rng=rng)
        sp.save_npz(path, matrix, compressed=bool(rng.integers(2)))
    elif format_ == "features.parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        packing = str(rng.choice(["none", "snappy", "zstd"]))
        pq.write_table(pa.table({f"f{i}": x[:, i] for i in range(4)}), path, compression=packing)
    else:
        text = io.StringIO()
        np.savetxt(text, x, delimiter=",", header="a,b,c,d" if rng.integers(2) else "", comments="")
        data = text.getvalue().encode()
        path.write_bytes(gzip.compress(data) if format_.endswith(".gz") else data)


def _folder(binary: bool, path: Path, rng: Rng) -> str:
    """Write a dataset of OGB, one of whose files is damaged."""
    shutil.rmtree(path, ignore_errors=True)
    write_ogb(path, drawn(NODES, EDGES, 3, 4, unlabelled=bool(rng.integers(2))), binary=binary)
    files = sorted(each for each in path.rglob("*") if each.is_file() and each.stem != "node_year.csv")
    chosen = files[int(rng.integers(len(files)))]
    if rng.random() < 0.05:
        chosen.unlink()
        return f"{chosen.name} is gone"
    return f"{chosen.name}: {_damaged(chosen, rng)}"


def _damaged(path: Path, rng: Rng) -> str:
    """Change the bytes of a file, or those of what is packed in it, which is packed again."""
    inner = rng.random() < 0.6
    if path.suffix == ".gz" and inner:
        data = bytearray(gzip.decompress(path.read_bytes()))
        story = changed(data, rng)
        path.write_bytes(gzip.compress(bytes(data)))
        return f"unpacked: {story}"
    if path.suffix == ".npz" and inner:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: bytearray(archive.read(info)) for info in archive.infolist()}
        name = str(rng.choice(sorted(members)))
        story = changed(members[name], rng)
        packing = zipfile.ZIP_DEFLATED if rng.integers(2) else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "w", packing) as archive:
            for member, data in members.items():
                archive.writestr(member, bytes(data))
        return f"{name}: {story}"
    data = bytearray(path.read_bytes())
    story = changed(data, rng)
    path.write_bytes(data)
    return story


def check(path: Path) -> None:
    """Read everything in a file or folder, as an import does."""
    if path.name.startswith("features"):
        nodes, rows, _ = node_rows(features=path)
        assert nodes
        _check_rows(rows)
        return
    if path.suffix == ".ogb":
        imported = open_ogb(path)
    else:
        imported = open_edge_arrays(path) if path.suffix == ".npy" else open_npz(path)
    _check_edges(imported.edges)
    _check_rows(imported.rows() if callable(imported.rows) else dict(imported.rows))


def _check_edges(stream: EdgeStream) -> None:
    for block in stream.blocks():
        ids = np.concatenate([np.asarray(block.sources, np.int64), np.asarray(block.destinations, np.int64)])
        assert ids.min(initial=0) >= 0
        for values in block.data.values():
            assert len(values) == len(block)


def _check_rows(rows: dict[str, Rows]) -> None:
    for each in rows.values():
        assert sum(len(piece) for piece in each.pieces()) == each.layout.shape[0]


if __name__ == "__main__":
    serve(check)
