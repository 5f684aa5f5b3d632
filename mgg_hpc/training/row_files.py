"""Write arrays with a row for each node, from all ranks into one file, in the user's numbering: HDF5, or .npy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..data.atomic_write import check_output, replacement

BLOCK = 1 << 16  # number of rows that are sent at a time

Arrays = dict[str, NDArray[Any]]


def paths(output: Path, names: list[str]) -> dict[str, Path]:
    """Return the file of each array: ``output`` for HDF5 or a single array; several .npy files have the arrays' names
    before the suffix (out.npy: out.class.npy, out.embedding.1.npy).
    """
    if output.suffix != ".npy" or len(names) == 1:
        return dict.fromkeys(names, output)
    return {name: output.with_suffix(f".{name.replace('/', '.')}.npy") for name in names}


def check(output: Path, names: list[str], *, force: bool) -> None:
    """Raise InputError if one of the files cannot be written, or exists already (unless ``force``)."""
    for path in dict.fromkeys(paths(output, names).values()):
        check_output(path, force=force)


def write(
    comm: Any,
    output: Path,
    ids: NDArray[np.int64],
    arrays: Arrays,
    bounds: NDArray[np.int64],
    attributes: dict[str, Any],
) -> None:
    """Write arrays [N, ...] whose row ids[i] is this rank's row i, replacing what is there. Collective.

    bounds: int64 [P + 1], the rows of each rank. attributes: of an HDF5 file's root.
    """
    if comm.rank != 0:
        for first in range(0, len(ids), BLOCK):
            for array in (ids, *arrays.values()):
                comm.Send(np.ascontiguousarray(array[first : first + BLOCK]), 0)
        return
    with ExitStack() as files:
        maps = _maps(files, output, int(bounds[-1]), arrays, attributes)
        for rows, blocks in _blocks(comm, ids, arrays, bounds):
            for name, block in blocks.items():
                maps[name][rows] = block


def _maps(
    files: ExitStack, output: Path, nodes: int, arrays: Arrays, attributes: dict[str, Any]
) -> dict[str, Any]:
    """Return arrays over the contents of new files, which get their names when ``files`` is closed."""
    if output.suffix != ".npy":
        return files.enter_context(_hdf5(output, nodes, arrays, attributes))
    return {
        name: files.enter_context(_npy(path, (nodes, *arrays[name].shape[1:]), arrays[name].dtype))
        for name, path in paths(output, list(arrays)).items()
    }


@contextmanager
def _hdf5(
    output: Path, nodes: int, arrays: Arrays, attributes: dict[str, Any]
) -> Iterator[dict[str, NDArray[Any]]]:
    size = sum(array.itemsize * int(np.prod(array.shape[1:])) for array in arrays.values()) * nodes
    with replacement(output, force=True, size=size) as temporary:
        offsets = {}
        with h5py.File(temporary, "w") as file:
            file.attrs.update(attributes)
            for name, array in arrays.items():
                kind = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                kind.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                space = h5py.h5s.create_simple((nodes, *array.shape[1:]))
                group, _, last = name.rpartition("/")
                within = file.require_group(group or "/")
                made = h5py.h5d.create(within.id, last.encode(), h5py.h5t.py_create(array.dtype), space, kind)
                offsets[name] = made.get_offset()
        yield {
            name: np.memmap(temporary, array.dtype, "r+", offsets[name], (nodes, *array.shape[1:]))
            for name, array in arrays.items()
        }


@contextmanager
def _npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    size = dtype.itemsize * int(np.prod(shape))
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with replacement(path, force=True, size=size) as temporary:
        with temporary.open("r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            offset = file.tell()
            file.truncate(offset + size)  # `replacement` has allocated more
        yield np.memmap(temporary, dtype, "r+", offset, shape)


def _blocks(
    comm: Any, ids: NDArray[np.int64], arrays: Arrays, bounds: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], Arrays]]:
    """Yield (ids, values of each array) of all ranks' rows, a block at a time, on rank 0."""
    yield ids, arrays
    for rank in range(1, comm.size):
        rows = int(bounds[rank + 1] - bounds[rank])
        for first in range(0, rows, BLOCK):
            count = min(BLOCK, rows - first)
            received = {name: np.empty((count, *a.shape[1:]), a.dtype) for name, a in arrays.items()}
            block_ids = np.empty(count, np.int64)
            for array in (block_ids, *received.values()):
                comm.Recv(array, rank)
            yield block_ids, received
