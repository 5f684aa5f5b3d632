"""Write arrays with a row for each node, from all ranks into one file, in the user's numbering: HDF5, or .npy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..atomic_write import replacement
from ..hdf5 import created

BLOCK = 1 << 16  # number of rows that are sent at a time

NAMES = ("id", "name")  # arrays that say which node a row is

Arrays = dict[str, NDArray[Any]]


def paths(output: Path, names: list[str]) -> dict[str, Path]:
    """Return the file of each array: ``output`` for HDF5 or a single array; several .npy files have the arrays' names
    before the suffix (out.npy: out.class.npy, out.embedding.1.npy). NAMES lie beside (out.id.npy), and do not count.
    """
    if output.suffix != ".npy":
        return dict.fromkeys(names, output)
    single = sum(name not in NAMES for name in names) == 1
    return {
        name: output if single and name not in NAMES else output.with_suffix(f".{name.replace('/', '.')}.npy")
        for name in names
    }


def write(
    comm: Any,
    output: Path,
    ids: NDArray[np.int64],
    arrays: Arrays,
    bounds: NDArray[np.int64],
    attributes: dict[str, Any],
    *,
    mode: int | None = None,
) -> None:
    """Write arrays [N, ...] whose row ids[i] is this rank's row i, replacing what is there. Collective.

    Arrays are of numbers, or of bytes, which are text in UTF-8 and of one type on all ranks. bounds: int64 [P + 1], the
    rows of each rank. attributes: of an HDF5 file's root. mode: permissions of .npy files.
    [default: as the umask says]
    """
    if comm.rank != 0:
        for first in range(0, len(ids), BLOCK):
            for array in (ids, *arrays.values()):
                comm.Send(_plain(np.ascontiguousarray(array[first : first + BLOCK])), 0)
        return
    nodes = int(bounds[-1])
    with ExitStack() as files:  # the files get their names when all of them are filled
        if output.suffix == ".npy":
            maps = {
                name: files.enter_context(
                    _npy(path, (nodes, *arrays[name].shape[1:]), arrays[name].dtype, mode)
                )
                for name, path in paths(output, list(arrays)).items()
            }
        else:
            maps = files.enter_context(_hdf5(output, nodes, arrays, attributes))
        for name, array in arrays.items():
            maps[name][ids] = array
        for rank in range(1, comm.size):
            left = int(bounds[rank + 1] - bounds[rank])
            for count in (min(BLOCK, left - first) for first in range(0, left, BLOCK)):
                rows = np.empty(count, np.int64)
                comm.Recv(rows, rank)
                for name, array in arrays.items():
                    block = np.empty((count, *array.shape[1:]), array.dtype)
                    comm.Recv(_plain(block), rank)
                    maps[name][rows] = block


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return text as single bytes, since MPI has no type for it; other arrays as they are. No copy is made."""
    return array.view(np.uint8) if array.dtype.kind == "S" else array


@contextmanager
def _hdf5(
    output: Path, nodes: int, arrays: Arrays, attributes: dict[str, Any]
) -> Iterator[dict[str, NDArray[Any]]]:
    size = sum(array.itemsize * int(np.prod(array.shape[1:])) for array in arrays.values()) * nodes
    with replacement(output, force=True, size=size) as temporary:
        offsets = {}
        with created(temporary) as file:
            file.attrs.update(attributes)
            for name, array in arrays.items():
                kind = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                kind.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                space = h5py.h5s.create_simple((nodes, *array.shape[1:]))
                group, _, last = name.rpartition("/")
                within = file.require_group(group or "/")
                dtype = array.dtype if array.dtype.kind != "S" else h5py.string_dtype("utf-8", array.itemsize)
                stored = h5py.h5t.py_create(dtype, logical=True)
                made = h5py.h5d.create(within.id, last.encode(), stored, space, kind)
                offsets[name] = made.get_offset()
        yield {
            name: np.memmap(temporary, array.dtype, "r+", offsets[name], (nodes, *array.shape[1:]))
            for name, array in arrays.items()
        }


@contextmanager
def _npy(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], mode: int | None
) -> Iterator[NDArray[Any]]:
    size = dtype.itemsize * int(np.prod(shape))
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with replacement(path, force=True, size=size, mode=mode) as temporary:
        with temporary.open("r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            offset = file.tell()
            file.truncate(offset + size)  # `replacement` has allocated more
        yield np.memmap(temporary, dtype, "r+", offset, shape)
