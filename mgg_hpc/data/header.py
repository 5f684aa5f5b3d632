"""Read and check the HDF5 structure of a graph file: attributes, and layout and offset of each dataset.

Files may come from strangers: links, storage and virtual datasets that refer to other files are refused, as are
filters, and a size is used only once the file is known to be long enough. HDF5 compares the checksums of its own
structures. It can still crash or hang on damaged structures with valid checksums (HDF5 2.0.0 crashed on 75 of 24,000
such files and hung on 4), so `check_structure` reads the structure in a child process first.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..errors import InputError, shown
from . import hdf5, schema
from .digest import LARGE_BLOCK
from .schema import Contents, Layout, bounds_path

UINT64 = np.dtype("<u8")
LARGEST_ATTRIBUTE = 1 << 16  # bytes
CHECK_SECONDS = 120  # limit of `check_structure`, which takes less than a second


@dataclass(frozen=True)
class Span:
    """Layout of a dataset and the offset of its bytes, which are contiguous in the file."""

    layout: Layout
    offset: int


@dataclass(frozen=True)
class Header:
    """Everything that is read when a graph file is opened."""

    contents: Contents
    uuid: str
    spans: dict[str, Span]  # by dataset path, digests included
    partitions: dict[int, tuple[str, list[int]]]  # number of parts -> (method, edges of each part)
    order: str  # method that renumbered the rows; empty if they were not renumbered, or it is unknown
    proof: str  # attribute `schema.PROOF`, empty if missing
    block: int  # bytes of a block that has a digest


def open_file(path: Path) -> int:
    """Return a descriptor of a graph file. Raises InputError if it cannot be read."""
    try:
        # Without O_NONBLOCK, opening a named pipe blocks.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except OSError as error:
        raise InputError(f"{path} is not readable ({(error.strerror or str(error)).lower()})") from error
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        found = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
        raise InputError(f"{path} is {found}; expected a graph file (.h5)")
    return descriptor


def read_header(path: Path, descriptor: int) -> Header:
    """Return the header of an open file. Raises InputError if its structure does not follow the schema."""
    same = f"/proc/self/fd/{descriptor}"  # even if another process replaces the path
    try:
        with hdf5.opened(same, "r", locking=False) as file:
            if file.userblock_size:
                raise InputError(f"{path} is not a graph file: it begins with a user block")
            return _header(file, str(path), os.fstat(descriptor).st_size)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:  # raised by h5py
        reason = " ".join(str(error).split())
        if "truncated" in reason:
            reason = "it is truncated; copy or import it again"
        elif "signature" in reason:
            reason = "it is not HDF5"
        raise InputError(f"{path} is not a graph file: {reason[:200]}") from error


def check_structure(path: Path) -> None:
    """Read the structure of a file in a child process. Raises InputError if that crashes or does not end.

    A structure that is refused is no error here: opening the file will raise it.
    """
    folders = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "mgg_hpc.data.header", os.fspath(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    trouble = ""
    try:
        ended = subprocess.run(
            command, env=environment, stderr=subprocess.DEVNULL, timeout=CHECK_SECONDS, check=False
        )
        if ended.returncode < 0:
            trouble = f"crashes on it (signal {-ended.returncode})"
    except subprocess.TimeoutExpired:
        trouble = "does not finish opening it"
    if trouble:
        raise InputError(f"{path} is damaged: the HDF5 library {trouble}; copy or import it again")


def _header(file: h5py.File, where: str, size: int) -> Header:
    found = _attribute(file, where, "format", str, default="")
    if found != schema.FORMAT:
        raise InputError(
            f"{where} is not a graph file: its attribute format is {shown(found)}, not '{schema.FORMAT}'"
        )
    version = _attribute(file, where, "version", int)
    if version not in schema.READABLE:
        raise InputError(
            f"{where} has format version {version}; this program reads versions "
            f"{schema.READABLE[0]} to {schema.READABLE[-1]}: import it again"
        )
    block = _attribute(file, where, schema.DIGEST_BLOCK, int, default=LARGE_BLOCK)
    if not 1 << 12 <= block <= LARGE_BLOCK or block & (block - 1):
        raise InputError(
            f"{where}: the attribute {schema.DIGEST_BLOCK} is {block}; "
            f"expected a power of two from 4,096 to {LARGE_BLOCK:,}"
        )
    partitions = _partitions(file, where)
    datasets: dict[str, Span] = {}
    digests: dict[str, Span] = {}
    edge_data = _edge_data(file, where) if version > 1 else []
    for name in (*schema.DATASETS, *edge_data, *map(bounds_path, partitions)):
        dataset = _child(file, where, name)
        if isinstance(dataset, h5py.Dataset):
            datasets[name] = _span(dataset, where, name, size)
            path, expected = schema.DIGEST + name, digest_layout(datasets[name].layout, block)
            digest = _child(file, where, path)
            if not isinstance(digest, h5py.Dataset):
                raise InputError(f"{where}: /{path} is missing; expected {expected}")
            digests[path] = _span(digest, where, path, size)
            if digests[path].layout != expected:
                raise InputError(f"{where}: /{path} is {digests[path].layout}; expected {expected}")
    x = _child(file, where, schema.X)
    rows, columns = _integers(x, where, "shape", 2) if isinstance(x, h5py.Group) else (0, 0)
    contents = Contents(
        name=_attribute(file, where, "name", str),
        directed=_attribute(file, where, "directed", bool),
        classes=_attribute(file, where, "classes", int),
        multilabel=_attribute(file, where, "multilabel", bool),
        datasets={name: span.layout for name, span in datasets.items()},
        sparse_shape=(rows, columns) if isinstance(x, h5py.Group) else None,
        partitions=tuple(partitions),
        types=_attribute(file, where, "types", str, default=""),
    )
    schema.validate(where, contents)
    renumbering = _child(file, where, schema.PERMUTATION)
    order = "" if renumbering is None else _attribute(renumbering, where, "method", str, default="")
    proof = _attribute(file, where, schema.PROOF, str, default="")
    uuid = _attribute(file, where, "uuid", str)
    return Header(contents, uuid, datasets | digests, partitions, order, proof, block)


def digest_layout(layout: Layout, block: int) -> Layout:
    """Return the layout of the digests of a dataset, one for each ``block`` bytes."""
    return Layout(UINT64, (-(-layout.nbytes // block),))


def _child(group: h5py.Group, where: str, path: str) -> Any:
    """Return the object at a path, or None. Raises InputError for links other than hard links."""
    item = group
    for name in path.split("/"):
        if not isinstance(item, h5py.Group) or not item.id.links.exists(name.encode()):
            return None
        if not isinstance(item.get(name, getlink=True), h5py.HardLink):
            raise InputError(
                f"{where}: {item.name.rstrip('/')}/{name} is a link; a graph file holds its own data"
            )
        item = item[name]
    return item


def _value(item: h5py.HLObject, name: str) -> Any:
    """Return an attribute: text, number, bool or array; None if it is large or of another type."""
    kind = item.attrs.get_id(name)
    if kind.get_storage_size() > LARGEST_ATTRIBUTE or kind.dtype.kind not in "biufSO":
        return None
    value = item.attrs[name]
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return value.item() if isinstance(value, np.generic) else value


def _attribute(item: h5py.HLObject, where: str, name: str, kind: type, default: Any = None) -> Any:
    """Return a scalar attribute of type ``kind`` (str, int or bool). Raises InputError if it is of another type."""
    if name not in item.attrs:
        if default is not None:
            return default
        raise InputError(f"{where}: the attribute {name} is missing from {item.name}")
    value = _value(item, name)
    if type(value) is not kind:
        raise InputError(
            f"{where}: the attribute {name} of {item.name} is {shown(value)}; expected a {kind.__name__}"
        )
    return value


def _span(dataset: h5py.Dataset, where: str, path: str, size: int) -> Span:
    """Return the span of a dataset. Raises InputError unless it is contiguous and within the file."""
    storage = dataset.id.get_create_plist()
    if storage.get_external_count() or dataset.is_virtual:
        raise InputError(f"{where}: /{path} is stored in another file; a graph file holds its own data")
    if storage.get_layout() != h5py.h5d.CONTIGUOUS or storage.get_nfilters():
        raise InputError(f"{where}: /{path} is chunked or compressed; graph files are contiguous")
    if not dataset.shape:
        raise InputError(f"{where}: /{path} has no dimensions; expected an array")
    layout = Layout(dataset.dtype, dataset.shape)
    if layout.nbytes == 0:
        return Span(layout, 0)
    offset, stored = dataset.id.get_offset(), dataset.id.get_type().get_size() * dataset.size
    if offset is None or stored != layout.nbytes or offset + layout.nbytes > size:
        raise InputError(
            f"{where}: /{path} claims {layout}, {layout.nbytes} bytes; the file does not hold them"
        )
    return Span(layout, offset)


def _integers(item: h5py.HLObject, where: str, name: str, count: int) -> list[int]:
    """Return an attribute of this many integers. Raises InputError if it is missing or of another type."""
    value = _value(item, name) if name in item.attrs else None
    if not isinstance(value, np.ndarray) or value.shape != (count,) or value.dtype.kind != "i":
        raise InputError(
            f"{where}: the attribute {name} of {item.name} is {shown(value)}; expected {count} whole numbers"
        )
    return list(map(int, value))


def _edge_data(file: h5py.File, where: str) -> list[str]:
    """Return the paths of the edge data, sorted."""
    group = _child(file, where, schema.EDGE.rstrip("/"))
    names = sorted(group) if isinstance(group, h5py.Group) else []
    schema.check_edge_names(where, names)
    paths = [schema.EDGE + name for name in names]
    for path in paths:
        if not isinstance(_child(file, where, path), h5py.Dataset):
            raise InputError(f"{where}: /{path} is not an array; expected data of edges")
    return paths


def _partitions(file: h5py.File, where: str) -> dict[int, tuple[str, list[int]]]:
    """Return (method, edge counts) of each ``/partition/P``, sorted by the number of parts P."""
    group = _child(file, where, "partition")
    found: dict[int, tuple[str, list[int]]] = {}
    for name in group if isinstance(group, h5py.Group) else ():
        if re.fullmatch(r"[1-9][0-9]{0,9}", name) is None:
            raise InputError(f"{where}: /partition/{shown(name)[1:-1]} is not named by a number of parts")
        part, bounds = (_child(group, where, path) for path in (name, f"{name}/bounds"))
        if not isinstance(bounds, h5py.Dataset):
            raise InputError(f"{where}: /{bounds_path(int(name))} is missing")
        counts = _integers(part, where, "edge_counts", int(name))
        found[int(name)] = _attribute(part, where, "method", str), counts
    return dict(sorted(found.items()))


if __name__ == "__main__":
    read_header(Path(sys.argv[1]), open_file(Path(sys.argv[1])))
