"""Open a graph file's HDF5 structure, check it, and find the offset of each dataset's bytes.

A file is data: nothing in it may point outside of it (external links or storage, virtual datasets, soft
links), and a size is used only after the file is found to be long enough to hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..errors import InputError
from .digest import BLOCK
from .schema import DATASETS, FORMAT, PERMUTATION, VERSION, X_DATA, Contents, Layout, X, bounds_path, validate

DIGEST = "digest"
UINT64 = np.dtype("<u8")


@dataclass(frozen=True)
class Span:
    """Layout of one dataset, whose bytes are contiguous in the file from ``offset`` on."""

    layout: Layout
    offset: int


@dataclass(frozen=True)
class Header:
    """Everything that is read when a graph file is opened. spans, digests: by dataset path."""

    contents: Contents
    uuid: str
    spans: dict[str, Span]
    digests: dict[str, Span]
    partitions: dict[int, tuple[str, list[int]]]  # parts -> (method, edges a part)
    order: str  # method that renumbered the rows; empty if they were not renumbered, or it is unknown


def read_header(path: Path) -> Header:
    """Check the file's structure against the schema. Raises InputError; reads no dataset."""
    try:
        size = path.stat().st_size
        # Graph files are replaced, never changed in place: without locks they also open on file systems
        # that have none.
        with h5py.File(path, "r", locking=False) as file:
            return _header(file, str(path), size)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{path} does not exist") from error
        if isinstance(error, IsADirectoryError) or path.is_dir():
            raise InputError(f"{path} is a folder; expected a graph file (.h5)") from error
        if isinstance(error, PermissionError):
            raise InputError(f"{path} is not readable (permission denied)") from error
        raise InputError(f"{path} is not a graph file: {_reason(error)}") from error
    except (RuntimeError, KeyError, ValueError) as error:  # from damaged structures of HDF5
        raise InputError(f"{path} is not a graph file: damaged HDF5 structure ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "truncated file" in text:
        return "it is truncated; copy or import it again"
    if "signature not found" in text:
        return "it is not HDF5"
    return text


def _header(file: h5py.File, where: str, size: int) -> Header:
    if file.userblock_size:
        raise InputError(f"{where} begins with a user block of {file.userblock_size} bytes; expected none")
    found = _attribute(file, where, "format", str, default="")
    if found != FORMAT:
        raise InputError(f"{where} is not a graph file: its attribute format is '{found}', not '{FORMAT}'")
    version = _attribute(file, where, "version", int)
    if version != VERSION:
        raise InputError(
            f"{where} has format version {version}; this program reads version {VERSION}: import it again"
        )
    partitions = _partitions(file, where)
    spans: dict[str, Span] = {}
    digests: dict[str, Span] = {}
    for name in (*DATASETS, *map(bounds_path, partitions)):
        dataset = _child(file, where, name)
        if isinstance(dataset, h5py.Dataset):
            spans[name] = _span(dataset, where, name, size)
            path = f"{DIGEST}/{name}"
            expected = Layout(UINT64, (-(-spans[name].layout.nbytes // BLOCK),))
            digest = _child(file, where, path)
            if not isinstance(digest, h5py.Dataset):
                raise InputError(f"{where}: /{path} is missing; expected {expected}")
            digests[name] = _span(digest, where, path, size)
            if digests[name].layout != expected:
                raise InputError(f"{where}: /{path} is {digests[name].layout}; expected {expected}")
    sparse = X_DATA in spans or isinstance(_child(file, where, X), h5py.Group)
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
    return Header(contents, _attribute(file, where, "uuid", str), spans, digests, partitions, order)


def _child(group: h5py.Group, where: str, path: str) -> h5py.Group | h5py.Dataset | None:
    """Return the object at a path, None if it is not there. Only hard links are followed."""
    item: Any = group
    walked = ""
    for name in path.split("/"):
        link = item.get(name, getlink=True) if isinstance(item, h5py.Group) else None
        if link is None:
            return None
        walked += f"/{name}"
        if not isinstance(link, h5py.HardLink):
            raise InputError(f"{where}: {walked} is a link; a graph file holds its own data")
        item = item[name]
    return item


def _attribute(item: h5py.HLObject, where: str, name: str, kind: type, default: Any = None) -> Any:
    """Return one scalar attribute, which must be a ``kind`` (str, int or bool)."""
    if name not in item.attrs:
        if default is not None:
            return default
        raise InputError(f"{where}: the attribute {name} is missing from {item.name}")
    try:
        value = item.attrs[name]
    except (OSError, TypeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: the attribute {name} of {item.name} is not readable ({error})") from error
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", errors="replace")
    if type(plain) is not kind:
        raise InputError(
            f"{where}: the attribute {name} of {item.name} is {plain!r}; expected a {kind.__name__}"
        )
    return plain


def _span(dataset: h5py.Dataset, where: str, path: str, size: int) -> Span:
    """Return the span of a dataset. Raises InputError unless it is contiguous and wholly within the file."""
    if dataset.external or dataset.is_virtual:
        raise InputError(f"{where}: /{path} is stored in another file; a graph file holds its own data")
    if dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS:
        raise InputError(f"{where}: /{path} is chunked or compressed; graph files are contiguous")
    if not dataset.shape:
        raise InputError(f"{where}: /{path} has no dimensions; expected an array")
    layout = Layout(dataset.dtype, tuple(int(length) for length in dataset.shape))
    if layout.nbytes == 0:
        return Span(layout, 0)
    offset = dataset.id.get_offset()
    if offset is None or dataset.id.get_storage_size() != layout.nbytes or offset + layout.nbytes > size:
        raise InputError(
            f"{where}: /{path} claims {layout}, {layout.nbytes} bytes; the file does not hold them"
        )
    return Span(layout, int(offset))


def _sparse_shape(file: h5py.File, where: str) -> tuple[int, int]:
    group = _child(file, where, X)
    value = group.attrs.get("shape") if group is not None else None
    if not isinstance(value, np.ndarray) or value.shape != (2,) or value.dtype.kind != "i":
        raise InputError(f"{where}: the attribute shape of /{X} is {value!r}; expected two whole numbers")
    return int(value[0]), int(value[1])


def _partitions(file: h5py.File, where: str) -> dict[int, tuple[str, list[int]]]:
    """Return the method and edge counts of each ``/partition/<P>``, in order of P."""
    group = _child(file, where, "partition")
    found: dict[int, tuple[str, list[int]]] = {}
    for name in group if isinstance(group, h5py.Group) else ():
        if not (name.isascii() and name.isdigit() and str(int(name)) == name and int(name) > 0):
            raise InputError(f"{where}: /partition/{name} is not named by a number of parts")
        part = _child(group, where, name)
        if not isinstance(part, h5py.Group) or not isinstance(_child(part, where, "bounds"), h5py.Dataset):
            raise InputError(f"{where}: /{bounds_path(int(name))} is missing")
        counts = part.attrs.get("edge_counts")
        if not isinstance(counts, np.ndarray) or counts.shape != (int(name),) or counts.dtype.kind != "i":
            raise InputError(f"{where}: the attribute edge_counts of {part.name} is not {name} whole numbers")
        found[int(name)] = _attribute(part, where, "method", str), counts.tolist()
    return dict(sorted(found.items()))
