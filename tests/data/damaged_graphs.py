"""Damaged graph files: bytes changed at random, and objects replaced by HDF5; and a process that reads them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import xxhash
from damaged.mutants import changed
from damaged.watched import serve

from data.graphs import random_graph, write_with
from mgg_hpc.data import schema
from mgg_hpc.data.row_files import read_names
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import Partition, write

SIZES = (0, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
ATTRIBUTES = ["format", "version", "name", "uuid", "directed", "classes", "multilabel", "method", "shape",
              "edge_counts"]  # fmt: skip
VALUES = ["", "x", "a/b", "..", "\n", "é" * 300, *SIZES, -1, 1.5, True, np.zeros(3), np.array([40, 6]),
          np.zeros((2, 2), "i8"), h5py.Empty("i4"), np.bytes_(b"\xff\xfe"), np.zeros(7000), np.array([40, 2**62]),
          np.array(["a", "b"], dtype=object), np.zeros((), "V3"), np.array((1, 2.0), "i4,f8")]  # fmt: skip
TYPES = ["<i4", "<i8", ">i8", "<f4", "<f2", "<u8", "S3", "?", "<c8", "V7", "<f8", "i1"]


class Originals:
    """Sound files in a folder: three that `write` made, and one as other programs write it, without checksums.

    files: their paths. ``bits``, ``bytes`` and ``edits`` write a mutant to a path and return what was changed.
    """

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(7)
        self.files = [folder / f"{name}.h5" for name in ("dense", "sparse", "several", "other")]
        parts = (1, 2, 4), range(1, 12)  # links to the latter are in a fractal heap
        dense = random_graph(rng, permuted=True, weighted=True)
        several = random_graph(rng, multilabel=True, half=True)
        for path, graph, counts in zip(self.files[:3:2], (dense, several), parts, strict=True):
            bounds = {count: np.linspace(0, 40, count + 1).astype(np.int64) for count in counts}
            partitions = [Partition(each, "edges", [9] * count) for count, each in bounds.items()]
            write(path, graph, order="rcm", partitions=partitions)
        sparse = random_graph(rng, sparse=True, symmetric=False)
        edge = {"flow": np.ones((sparse.edges, 2), np.float32), "kind": sparse.indices.copy()}
        names = {
            schema.NAME_OFFSETS: np.arange(41) * 2,
            schema.NAME_TEXT: np.frombuffer(b"xy" * 40, np.uint8),
        }
        write_with(self.files[1], replace(sparse, edge=edge), names)
        with h5py.File(self.files[0]) as file, h5py.File(self.files[-1], "w", libver="earliest") as other:
            _copy_old(file, other)
            file.visititems(lambda name, item: _copy_old(item, other, name))
        self._contents = [path.read_bytes() for path in self.files]

    def bits(self, rng: np.random.Generator, original: int, path: Path) -> str:
        """Flip one bit anywhere."""
        data = bytearray(self._contents[original])
        at, bit = int(rng.integers(len(data))), int(rng.integers(8))
        data[at] ^= 1 << bit
        path.write_bytes(data)
        return f"bit {bit} of byte {at}"

    def bytes(self, rng: np.random.Generator, original: int, path: Path) -> str:
        """Flip, insert, delete or repeat bytes; rather near the beginning, where structures are."""
        data = bytearray(self._contents[original])
        story = changed(data, rng, near=2048)
        path.write_bytes(data)
        return story

    def edits(self, rng: np.random.Generator, original: int, path: Path) -> str:
        """Replace an object by another array, a link to another object, or nothing; or change an attribute."""
        shutil.copyfile(self.files[original], path)
        with h5py.File(path, "r+") as file:
            items: list[str] = []
            file.visit(items.append)
            name, other = rng.choice(items, 2).tolist()
            how = str(rng.choice(["attribute", "array", "link", "nothing"]))
            if how == "attribute":
                item = file if rng.random() < 0.7 else file[name]
                item.attrs[str(rng.choice(ATTRIBUTES))] = VALUES[int(rng.integers(len(VALUES)))]
                return f"{how} of {name}"
            shape = rng.choice([0, 1, 5, 39, 40, 41, 42], size=rng.integers(4))
            put = {"array": np.zeros(shape, str(rng.choice(TYPES))), "link": file[other]}
            del file[name]
            if how in put:
                file[name] = put[how]
        return f"{how} at {name}"


def _copy_old(item: h5py.HLObject, other: h5py.File, name: str = "/") -> None:
    if isinstance(item, h5py.Dataset):
        other[name] = item[()]
    made = other.require_group(name) if isinstance(item, h5py.Group) else other[name]
    for key, value in item.attrs.items():
        made.attrs[key] = value.decode() if isinstance(value, bytes) else value


def read_all(path: Path) -> str:
    """Read everything in a graph file, as training does, prove it sound, and return a digest of what it says."""
    found = xxhash.xxh3_64()
    with open_graph(path) as opened:
        rows = vars(opened.slice(0, opened.nodes))
        if opened.sparse:
            rows |= vars(rows.pop("x"))
        rows |= rows.pop("edge")
        arrays = [opened.indptr(), *rows.values(), *(opened.bounds(parts) for parts in opened.partitions)]
        arrays.append(read_names(opened, 0, opened.nodes))
        facts = [opened.name, opened.uuid, opened.order, opened.directed, opened.classes]
        found.update(json.dumps([*facts, list(opened.partitions.items())]).encode())
        for array in arrays:
            found.update(array.tobytes() if isinstance(array, np.ndarray) else repr(array).encode())
    verify(path)
    return found.hexdigest()


if __name__ == "__main__":
    serve(read_all)
