"""Damaged graph files: changes by HDF5, which leave a sound HDF5 file, and changes of bytes, which it may believe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import h5py
import numpy as np
from damaged.mutants import changed
from damaged.watched import serve

from data.graphs import random_graph
from mgg_hpc.data.hdf5.source import Source, checksum
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import Partition, write

SIZES = (0, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
KINDS = ("sealed", "sealed", "sealed", "edited", "edited", "bytes", "bytes")
Rng = np.random.Generator


class Structure(NamedTuple):
    """Bytes start .. end-1 of a file are HDF5's. checksum: place of theirs, 0 without one."""

    kind: str
    start: int
    end: int
    checksum: int


class Originals:
    """Sound files in a folder, and mutants of them: `make` gives the same mutant for the same seed."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(7)
        graphs = {
            "dense": (random_graph(rng, permuted=True, weighted=True), (1, 2, 4)),
            "sparse": (random_graph(rng, sparse=True, symmetric=False), ()),
            # links in a fractal heap
            "several": (random_graph(rng, multilabel=True, half=True), range(1, 12)),
        }
        self.files = [folder / f"{name}.h5" for name in (*graphs, "other")]
        for path, (graph, parts) in zip(self.files, graphs.values(), strict=False):
            bounds = {count: np.linspace(0, 40, count + 1).astype(np.int64) for count in parts}
            partitions = [Partition(each, "edges", [9] * count) for count, each in bounds.items()]
            write(path, graph, order="rcm", partitions=partitions)
        # As other programs write: format 1.0, texts of variable length, no checksums.
        with h5py.File(self.files[0]) as file, h5py.File(self.files[-1], "w", libver="earliest") as other:
            _copy_old(file, other)
            file.visititems(lambda name, item: _copy_old(item, other, name))
        self._bytes = [path.read_bytes() for path in self.files]
        self._structures = [structures(path) for path in self.files[:-1]]

    def make(self, seed: int, path: Path) -> str:
        """Write the mutant of a seed, and return what was done."""
        rng = np.random.default_rng(seed)
        kind = str(rng.choice(KINDS))
        number = int(rng.integers(len(self.files) - (kind == "sealed")))
        data = bytearray(self._bytes[number])
        if kind == "edited":
            shutil.copyfile(self.files[number], path)
            story = _edited(path, rng)
        else:
            found = self._structures[number] if kind == "sealed" else []
            story = _sealed(data, found, rng) if found else changed(data, rng, near=2048)
            path.write_bytes(data)
        return f"seed {seed}: {self.files[number].stem}, {kind}: {story}"


def _copy_old(item: h5py.HLObject, other: h5py.File, name: str = "/") -> None:
    if isinstance(item, h5py.Dataset):
        other[name] = item[()]
    made = other.require_group(name) if isinstance(item, h5py.Group) else other[name]
    for key, value in item.attrs.items():
        made.attrs[key] = value.decode() if isinstance(value, bytes) else value


# --- structures of HDF5, and their checksums


def structures(path: Path) -> list[Structure]:
    """Return the structures of a file that have a checksum and that reading it meets, in order."""
    found, data, fields = {0: Structure("superblock", 0, 48, 44)}, path.read_bytes(), Source.fields

    def recorded(source: Source, at: int, count: int, what: str, signature: bytes = b"") -> object:
        place = at + count - 4
        if signature == b"FHDB":  # behind the offset in the heap, whose width the heap's header tells
            heap = int.from_bytes(data[at + 5 : at + 13], "little")
            width = -(-int.from_bytes(data[heap + 128 : heap + 130], "little") // 8)
            place = at + 13 + width if data[heap + 9] & 2 else 0
        if signature:
            found[at] = Structure(signature.decode(), at, at + count, place)
        return fields(source, at, count, what, signature)

    with mock.patch.object(Source, "fields", recorded):
        check(path)
    return sorted(found.values(), key=lambda each: each.start)


def seal(data: bytearray, structure: Structure) -> None:
    """Put the checksum of a structure right."""
    at = structure.checksum
    if at:
        behind = bytes(4) + data[at + 4 : structure.end] if structure.kind == "FHDB" else b""
        data[at : at + 4] = checksum(bytes(data[structure.start : at] + behind)).to_bytes(4, "little")


def _sealed(data: bytearray, found: list[Structure], rng: Rng) -> str:
    """Change some fields of one structure, and put its checksum right, as one who means harm does."""
    kind = str(rng.choice(sorted({each.kind for each in found})))
    chosen = [each for each in found if each.kind == kind]
    structure = chosen[int(rng.integers(len(chosen)))]
    # A number that a reader may trip over: a limit, the size of the file, or where something else lies.
    values = [*SIZES, *(each.start for each in found), len(data), *rng.integers(len(data), size=9).tolist()]
    story = []
    last = min(structure.end, structure.start + 400) - (4 if structure.kind != "FHDB" else 0)
    for _ in range(int(rng.integers(1, 4))):
        at, width = int(rng.integers(structure.start + 4, last)), int(rng.choice([1, 1, 1, 2, 4, 8]))
        width = min(width, structure.end - at)
        value = int(rng.choice(24)) if rng.random() < 0.2 else values[int(rng.integers(len(values)))]
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
        story.append(f"byte {at - structure.start} = {value} ({width})")
    if rng.random() < 0.9:
        seal(data, structure)
    return f"{kind} at {structure.start}, {', '.join(story)}"


# --- edits by HDF5: kinds that tests/data/test_header.py names, with any values

ATTRIBUTES = ["format", "version", "name", "uuid", "directed", "classes", "multilabel", "method", "shape",
              "edge_counts"]  # fmt: skip
VALUES = ["", "x", "a/b", "..", "\n", "é" * 300, *SIZES[:11], -1, 1.5, True, np.zeros(3), np.array([40, 6]),
          np.zeros((2, 2), "i8"), h5py.Empty("i4"), np.bytes_(b"\xff\xfe"), np.zeros(7000), np.array([40, 2**62]),
          np.array(["a", "b"], dtype=object), np.zeros((), "V3"), np.array((1, 2.0), "i4,f8")]  # fmt: skip
TYPES = ["<i4", "<i8", ">i8", "<f4", "<f2", "<u8", "S3", "?", "<c8", "V7", "<f8", "i1"]


def _edited(path: Path, rng: Rng) -> str:
    """Put another array, a link to another object, or nothing in the place of one; or another attribute."""
    with h5py.File(path, "r+") as file:
        items: list[str] = []
        file.visit(items.append)
        (name, other), how = (
            rng.choice(items, 2).tolist(),
            str(rng.choice(["attribute", "array", "link", "nothing"])),
        )
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


def check(path: Path) -> None:
    """Read everything in a graph file, as training does, and then prove it sound."""
    with open_graph(path) as opened:
        opened.slice(0, opened.nodes)
        opened.indptr()
        for parts in opened.partitions:
            opened.bounds(parts)
        json.dumps([opened.name, opened.uuid, opened.order])
    verify(path)


if __name__ == "__main__":
    serve(check)
