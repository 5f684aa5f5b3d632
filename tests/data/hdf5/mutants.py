"""Damaged graph files: changes by HDF5, which leave a sound HDF5 file, and changes of bytes, which it may believe."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from damaged.mutants import changed
from damaged.watched import serve

from data.graphs import random_graph
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import Partition, write

from .structures import Structure, seal, structures

SIZES = (0, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
KINDS = ("sealed", "sealed", "sealed", "edited", "edited", "bytes", "bytes")
TEXTS = ("", "x", "a/b", "..", "\n", "é" * 300, "9" * 5000)
Rng = np.random.Generator


class Originals:
    """Sound files in a folder, and mutants of them: `make` gives the same mutant for the same seed."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(7)
        self.files: list[Path] = []
        bounds = [Partition(_bounds(parts), "edges", [9] * parts) for parts in (1, 2, 4)]
        many = [Partition(_bounds(parts), "edges", [9] * parts) for parts in range(1, 12)]
        for name, graph, parts in [
            ("dense", random_graph(rng, permuted=True, weighted=True), bounds),
            ("sparse", random_graph(rng, sparse=True, symmetric=False), []),
            ("several", random_graph(rng, multilabel=True, half=True), many),  # links in a fractal heap
        ]:
            path = folder / f"{name}.h5"
            write(path, graph, order="rcm", partitions=parts)
            self.files.append(path)
        other = (
            folder / "other.h5"
        )  # as other programs write: format 1.0, texts of variable length, no checksums
        with h5py.File(self.files[0]) as file, h5py.File(other, "w", libver="earliest") as copy:
            _copy_old(file, copy)
        self.files.append(other)
        self._bytes = [path.read_bytes() for path in self.files]
        self._structures = [structures(data) for data in self._bytes[:-1]]

    def make(self, seed: int, path: Path) -> str:
        """Write the mutant of a seed, and return what was done."""
        rng = np.random.default_rng(seed)
        kind = str(rng.choice(KINDS))
        number = int(rng.integers(len(self.files) - (kind == "sealed")))
        data = bytearray(self._bytes[number])
        if kind == "edited":
            shutil.copyfile(self.files[number], path)
            story = _edited(path, rng)
        elif kind == "sealed":
            story = _sealed(data, self._structures[number], rng)
            path.write_bytes(data)
        else:
            story = changed(data, rng, near=2048)
            path.write_bytes(data)
        return f"seed {seed}: {self.files[number].stem}, {kind}: {story}"


def _bounds(parts: int) -> np.ndarray:
    return np.linspace(0, 40, parts + 1).astype(np.int64)


def _copy_old(file: h5py.Group, copy: h5py.Group) -> None:
    for name, value in file.attrs.items():
        copy.attrs[name] = value.decode() if isinstance(value, bytes) else value
    for name, item in file.items():
        if isinstance(item, h5py.Group):
            _copy_old(item, copy.create_group(name))
        else:
            copy[name] = item[()]
            for key, value in item.attrs.items():
                copy[name].attrs[key] = value


def _sealed(data: bytearray, found: list[Structure], rng: Rng) -> str:
    """Change some fields of one structure, and put its checksum right, as one who means harm does."""
    kinds = sorted({each.kind for each in found})
    kind = str(rng.choice(kinds))
    chosen = [each for each in found if each.kind == kind]
    structure = chosen[int(rng.integers(len(chosen)))]
    story = []
    for _ in range(int(rng.integers(1, 4))):
        at, width = int(rng.choice(structure.fields)), int(rng.choice([1, 1, 1, 2, 4, 8]))
        width = min(width, structure.end - at)
        value = _value(rng, data, found, width)
        data[at : at + width] = value.to_bytes(width, "little")
        story.append(f"byte {at - structure.start} = {value} ({width})")
    if rng.random() < 0.9:
        seal(data, structure)
    return f"{kind} at {structure.start}, {', '.join(story)}"


def _value(rng: Rng, data: bytearray, found: list[Structure], width: int) -> int:
    """Return a number that a reader may trip over: a limit, the size of the file, or where something else lies."""
    places = [found[int(rng.integers(len(found)))].start, len(data), int(rng.integers(len(data)))]
    choices = [*SIZES, *places, int(rng.integers(256)), int(rng.integers(24))]
    return choices[int(rng.integers(len(choices)))] % (1 << 8 * width)


def _edited(path: Path, rng: Rng) -> str:
    """Change a file by HDF5 itself."""
    with h5py.File(path, "r+") as file:
        items: list[str] = []
        file.visit(items.append)
        name = str(rng.choice(items))
        edit = EDITS[int(rng.integers(len(EDITS)))]
        story = f"{edit.__name__} {name}"
        try:
            edit(file, name, rng, items)
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError) as error:
            return f"{story} ({error})"
    return story


def _shape(file: h5py.File, name: str, rng: Rng, items: list[str]) -> None:
    """Another shape or type, with data or with none."""
    kind = str(rng.choice(["<i4", "<i8", ">i8", "<f4", "<f2", "<u8", "S3", "?", "<c8", "V7", "<f8", "i1"]))
    shape = tuple(int(rng.choice([0, 1, 5, 39, 40, 41, 42])) for _ in range(int(rng.integers(4))))
    del file[name]
    if rng.random() < 0.3:
        space = h5py.h5s.create_simple(
            tuple(int(rng.choice(SIZES[:11])) for _ in range(int(rng.integers(1, 4))))
        )
        h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype(kind)), space)
    else:
        file.create_dataset(name, data=np.zeros(shape, kind))


def _values(file: h5py.File, name: str, rng: Rng, items: list[str]) -> None:
    """Other values of the same type."""
    item = file[name]
    if isinstance(item, h5py.Dataset) and item.size:
        flat = item[()].reshape(-1).copy()
        raw = flat.view(np.uint8)
        raw[rng.integers(len(raw), size=3)] = rng.integers(256, size=3)
        item[...] = flat.reshape(item.shape)


def _attribute(file: h5py.File, name: str, rng: Rng, items: list[str]) -> None:
    """Another attribute: text, a number, an array, nothing, a reference, or a large one."""
    at = file if rng.random() < 0.7 else file[name]
    names = ["format", "version", "name", "uuid", "directed", "classes", "multilabel", "method", "shape",
             "edge_counts"]  # fmt: skip
    values = [*TEXTS[:-1], *SIZES[:11], -1, 1.5, True, np.zeros(3), np.array([40, 6]), np.zeros((2, 2), "i8"),
              h5py.Empty("i4"), file.ref, np.bytes_(b"\xff\xfe"), np.zeros(7000), np.array([40, 2**62]),
              np.array(["a", "b"], dtype=object), np.zeros((), "V3"), np.array((1, 2.0), "i4,f8")]  # fmt: skip
    at.attrs[str(rng.choice(names))] = values[int(rng.integers(len(values)))]


def _link(file: h5py.File, name: str, rng: Rng, items: list[str]) -> None:
    """A link to elsewhere, to nothing, or in a circle."""
    links = [h5py.SoftLink("/" + str(rng.choice(items))), h5py.SoftLink(f"/{name}"), h5py.SoftLink("/none"),
             h5py.ExternalLink("other.h5", "/" + name), h5py.ExternalLink("/dev/zero", "/x"),
             file["/"], file[str(rng.choice(items))]]  # fmt: skip
    link = links[int(rng.integers(len(links)))]
    del file[name]
    file[name] = link


def _moved(file: h5py.File, name: str, rng: Rng, items: list[str]) -> None:
    """Another name, or another's place."""
    names = [*items, "partition/0", "partition/-1", "partition/04", "partition/4/bounds", f"partition/{10**30}",
             "partition/" + "9" * 5000, "graph/x\n", "partition/\u0664"]  # fmt: skip
    target = str(names[int(rng.integers(len(names)))])
    if target in file and target != name:
        del file[target]
    file.move(name, target)


def _removed(file: h5py.File, name: str, rng: Rng, items: list[str]) -> None:
    """Nothing where something was."""
    del file[name]


def _stored(file: h5py.File, name: str, rng: Rng, items: list[str]) -> None:
    """The same, chunked, compressed, virtual, in another file, or as a type of its own."""
    data = file[name][()] if isinstance(file[name], h5py.Dataset) else np.zeros((40, 6), np.float32)
    del file[name]
    how = int(rng.integers(6))
    if how == 0:
        file.create_dataset(name, data=data, chunks=True, compression="gzip", fletcher32=True)
    elif how == 1:
        layout = h5py.VirtualLayout(data.shape, data.dtype)
        layout[...] = h5py.VirtualSource("other.h5", name, data.shape)
        file.create_virtual_dataset(name, layout)
    elif how == 2:
        file.create_dataset(name, data.shape, data.dtype, external=[("/etc/passwd", 0, data.nbytes)])
    elif how == 3:
        file[name] = np.dtype("i4,f8")
    elif how == 4:
        file.create_dataset(name, data=np.array(["text"] * 40, dtype=object))
    else:
        unknown_filter(file, name, data)


def unknown_filter(file: h5py.Group, name: str, data: np.ndarray) -> None:
    """Store an array in one chunk that says that it went through a filter which HDF5 has not."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk(data.shape or (1,))
    plan.set_filter(32123, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple(data.shape or (1,))
    made = h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(data.dtype), space, plan)
    made.write_direct_chunk((0,) * max(1, data.ndim), data.tobytes())


EDITS: tuple[Callable[[h5py.File, str, Rng, list[str]], None], ...] = (
    _shape, _values, _attribute, _attribute, _link, _moved, _removed, _stored,
)  # fmt: skip


def spans(path: Path) -> list[tuple[str, int, int]]:
    """Return the name, offset and length of everything in a graph file that is data: datasets and digests."""
    with open_graph(path) as opened:
        found = [(name, span.offset, span.layout.nbytes) for name, span in opened.spans().items()]
    return [each for each in found if each[2]]


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
