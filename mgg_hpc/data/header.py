"""Read a graph file's HDF5 structure, check it, and find the offset of each dataset's bytes.

A file is data: nothing in it may point outside of it (external links or storage, virtual datasets, soft
links), nothing in it goes through a filter, and a size is used only after the file is found to be long enough
to hold it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .digest import LARGE_BLOCK
from .hdf5.objects import Object
from .hdf5.source import DamagedError, Source
from .readers.limits import shown
from .schema import (
    DATASETS,
    DIGEST_BLOCK,
    EDGE,
    FORMAT,
    PERMUTATION,
    PROOF,
    READABLE,
    X_DATA,
    Contents,
    Layout,
    X,
    bounds_path,
    check_edge_names,
    validate,
)

DIGEST = "digest"
UINT64 = np.dtype("<u8")


@dataclass(frozen=True)
class Span:
    """Layout of one dataset, whose bytes are contiguous in the file from ``offset`` on."""

    layout: Layout
    offset: int


@dataclass(frozen=True)
class Header:
    """Everything that is read when a graph file is opened. spans, digests: by dataset path.

    block: bytes of the blocks that digests are of.
    """

    contents: Contents
    uuid: str
    spans: dict[str, Span]
    digests: dict[str, Span]
    partitions: dict[int, tuple[str, list[int]]]  # parts -> (method, edges a part)
    order: str  # method that renumbered the rows; empty if they were not renumbered, or it is unknown
    proof: str  # `schema.PROOF` of the file, empty without
    block: int


def open_file(path: Path) -> int:
    """Return a descriptor of a graph file. Raises InputError if it cannot be read."""
    try:
        # Without O_NONBLOCK a pipe in the file's place has this wait for ever.
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
    """Check the structure of an open file against the schema. Raises InputError; reads no dataset."""
    try:
        source = Source(descriptor)
        return _header(Object(source, source.root, "/"), str(path), source.size)
    except DamagedError as error:
        raise InputError(f"{path} is not a graph file: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _header(file: Object, where: str, size: int) -> Header:
    found = _attribute(file, where, "format", str, default="")
    if found != FORMAT:
        raise InputError(
            f"{where} is not a graph file: its attribute format is {shown(found)}, not '{FORMAT}'"
        )
    version = _attribute(file, where, "version", int)
    if version not in READABLE:
        raise InputError(
            f"{where} has format version {version}; this program reads versions {READABLE[0]} to {READABLE[-1]}: "
            "import it again"
        )
    block = _block(file, where)
    partitions = _partitions(file, where)
    spans: dict[str, Span] = {}
    digests: dict[str, Span] = {}
    edge_data = _edge_data(file, where) if version > 1 else []
    for name in (*DATASETS, *edge_data, *map(bounds_path, partitions)):
        dataset = _child(file, where, name)
        if dataset is not None and dataset.is_dataset:
            spans[name] = _span(dataset, where, name, size)
            path = f"{DIGEST}/{name}"
            expected = Layout(UINT64, (-(-spans[name].layout.nbytes // block),))
            digest = _child(file, where, path)
            if digest is None or not digest.is_dataset:
                raise InputError(f"{where}: /{path} is missing; expected {expected}")
            digests[name] = _span(digest, where, path, size)
            if digests[name].layout != expected:
                raise InputError(f"{where}: /{path} is {digests[name].layout}; expected {expected}")
    x = _child(file, where, X)
    sparse = X_DATA in spans or (x is not None and x.is_group)
    contents = Contents(
        name=_attribute(file, where, "name", str),
        directed=_attribute(file, where, "directed", bool),
        classes=_attribute(file, where, "classes", int),
        multilabel=_attribute(file, where, "multilabel", bool),
        datasets={name: span.layout for name, span in spans.items()},
        sparse_shape=_sparse_shape(file, where) if sparse else None,
        partitions=tuple(partitions),
    )
    validate(where, contents)
    renumbering = _child(file, where, PERMUTATION)
    order = "" if renumbering is None else _attribute(renumbering, where, "method", str, default="")
    proof = _attribute(file, where, PROOF, str, default="")
    uuid = _attribute(file, where, "uuid", str)
    return Header(contents, uuid, spans, digests, partitions, order, proof, block)


def _block(file: Object, where: str) -> int:
    """Return the bytes of the blocks that digests are of."""
    block: int = _attribute(file, where, DIGEST_BLOCK, int, default=LARGE_BLOCK)
    if not 1 << 12 <= block <= LARGE_BLOCK or block & (block - 1):
        raise InputError(
            f"{where}: the attribute {DIGEST_BLOCK} is {block}; expected a power of two from 4,096 to {LARGE_BLOCK:,}"
        )
    return block


def _child(group: Object, where: str, path: str) -> Object | None:
    """Return the object at a path, None if it is not there. Only hard links are followed."""
    item = group
    for name in path.split("/"):
        if name not in item.links:
            return None
        if item.links[name] is None:
            walked = f"{item.path.rstrip('/')}/{name}"
            raise InputError(f"{where}: {walked} is a link; a graph file holds its own data")
        item = item.child(name)
    return item


def _attribute(item: Object, where: str, name: str, kind: type, default: Any = None) -> Any:
    """Return one scalar attribute, which must be a ``kind`` (str, int or bool)."""
    if name not in item.attributes:
        if default is not None:
            return default
        raise InputError(f"{where}: the attribute {name} is missing from {item.path}")
    value = item.attributes[name]
    if type(value) is not kind:
        raise InputError(
            f"{where}: the attribute {name} of {item.path} is {shown(value)}; expected a {kind.__name__}"
        )
    return value


def _span(dataset: Object, where: str, path: str, size: int) -> Span:
    """Return the span of a dataset. Raises InputError unless it is contiguous and wholly within the file."""
    storage, shape, kind = dataset.storage, dataset.shape, dataset.type
    if storage.kind in ("external", "virtual"):
        raise InputError(f"{where}: /{path} is stored in another file; a graph file holds its own data")
    if storage.kind != "contiguous" or storage.filters:
        raise InputError(f"{where}: /{path} is chunked or compressed; graph files are contiguous")
    if not shape:
        raise InputError(f"{where}: /{path} has no dimensions; expected an array")
    layout = Layout(kind.dtype, shape)
    if layout.nbytes == 0:
        return Span(layout, 0)
    offset, stored = storage.offset, layout.nbytes if storage.nbytes is None else storage.nbytes
    if offset is None or stored != layout.nbytes or offset + layout.nbytes > size:
        raise InputError(
            f"{where}: /{path} claims {layout}, {layout.nbytes} bytes; the file does not hold them"
        )
    return Span(layout, offset)


def _sparse_shape(file: Object, where: str) -> tuple[int, int]:
    group = _child(file, where, X)
    value = group.attributes.get("shape") if group is not None else None
    if not isinstance(value, np.ndarray) or value.shape != (2,) or value.dtype.kind != "i":
        raise InputError(
            f"{where}: the attribute shape of /{X} is {shown(value)}; expected two whole numbers"
        )
    return int(value[0]), int(value[1])


def _edge_data(file: Object, where: str) -> list[str]:
    """Return the path of each ``/edge/NAME``, in order of names."""
    group = _child(file, where, EDGE.rstrip("/"))
    names = sorted(group.links) if group is not None else []
    check_edge_names(where, names)
    paths = [EDGE + name for name in names]
    for path in paths:
        held = _child(file, where, path)
        if held is None or not held.is_dataset:
            raise InputError(f"{where}: /{path} is not an array; expected data of edges")
    return paths


def _partitions(file: Object, where: str) -> dict[int, tuple[str, list[int]]]:
    """Return the method and edge counts of each ``/partition/<P>``, in order of P."""
    group = _child(file, where, "partition")
    found: dict[int, tuple[str, list[int]]] = {}
    for name in group.links if group is not None else ():
        if re.fullmatch(r"[1-9][0-9]{0,9}", name) is None:
            raise InputError(f"{where}: /partition/{shown(name)[1:-1]} is not named by a number of parts")
        part = _child(group, where, name) if group is not None else None
        bounds = _child(part, where, "bounds") if part is not None and part.is_group else None
        if part is None or bounds is None or not bounds.is_dataset:
            raise InputError(f"{where}: /{bounds_path(int(name))} is missing")
        counts = part.attributes.get("edge_counts")
        if not isinstance(counts, np.ndarray) or counts.shape != (int(name),) or counts.dtype.kind != "i":
            raise InputError(f"{where}: the attribute edge_counts of {part.path} is not {name} whole numbers")
        found[int(name)] = _attribute(part, where, "method", str), counts.tolist()
    return dict(sorted(found.items()))
