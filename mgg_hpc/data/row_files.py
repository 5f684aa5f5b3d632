"""Files of arrays with a row for each node (HDF5, .npy, .csv, .parquet), written by all ranks; and names of nodes."""

from __future__ import annotations

import csv
import importlib.util
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..errors import InputError
from . import checks, hdf5, schema
from .atomic_write import replacement
from .store import GraphFile

SUFFIXES = (".h5", ".hdf5", ".npy", ".csv", ".parquet")
BLOCK = 1 << 16  # rows of a message, and of what is written of a table at a time
BLOCK_BYTES = 64 << 20  # as far as rows are not larger
NAMED_ROWS = 1 << 18  # rows whose names are read at a time

NAMES = ("id", "name")  # arrays that say which node a row is

Arrays = dict[str, NDArray[Any]]


def paths(output: Path, names: list[str]) -> dict[str, Path]:
    """Return the file of each array: ``output`` for HDF5, a table, or a single array.

    Several .npy files have the name of the array before the suffix (out.class.npy, out.embedding.1.npy), and so have
    NAMES (out.id.npy), which do not count as arrays. Raises InputError for a suffix that is none of SUFFIXES.
    """
    if output.suffix not in SUFFIXES:
        raise InputError(
            f"{output}: its name must end in one of {', '.join(SUFFIXES)}, which says what to write"
        )
    if output.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(
            f"{output}: Parquet needs pyarrow, which is not installed; pip install 'mgg-hpc[parquet]'"
        )
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
    of_nodes: Collection[str] = (),
    labels: Sequence[object] | None = None,
) -> None:
    """Write arrays of all ranks, replacing files that exist. Collective.

    The columns of a table (.csv, .parquet) are id, the name or the number of a node, and those of the arrays: class,
    probability_0, probability_1 and so on.

    Args:
        comm: communicator of P ranks; rank 0 writes.
        ids: int64 [n], the row in the file of each of this rank's rows.
        arrays: this rank's rows by name, [n, ...]: numbers, or text as UTF-8 bytes of one length on all ranks.
        bounds: int64 [P + 1], the rows of each rank.
        attributes: attributes of the root of an HDF5 file.
        mode: permissions of .npy files. [default: by the umask]
        of_nodes: arrays whose values are numbers of nodes, -1 for none. Tables have the nodes' names in their place, if
            there are any.
        labels: what follows the names of a table's columns of an array [n, k]. [default: 0 .. k - 1]
    """
    step = _step(arrays)
    if comm.rank != 0:
        for first in range(0, len(ids), step):
            for array in (ids, *arrays.values()):
                comm.Send(_plain(np.ascontiguousarray(array[first : first + step])), 0)
        return
    nodes = int(bounds[-1])
    with ExitStack() as files:  # files are renamed once all of them are written
        if output.suffix == ".npy":
            maps = {
                name: files.enter_context(
                    _npy(path, (nodes, *arrays[name].shape[1:]), arrays[name].dtype, mode)
                )
                for name, path in paths(output, list(arrays)).items()
            }
        elif output.suffix in (".csv", ".parquet"):
            maps = files.enter_context(_table(output, nodes, arrays, of_nodes, labels))
        else:
            maps = files.enter_context(_hdf5(output, nodes, arrays, attributes))
        for name, array in arrays.items():
            maps[name][ids] = array
        for rank in range(1, comm.size):
            left = int(bounds[rank + 1] - bounds[rank])
            for count in (min(step, left - first) for first in range(0, left, step)):
                rows = np.empty(count, np.int64)
                comm.Recv(rows, rank)
                for name, array in arrays.items():
                    block = np.empty((count, *array.shape[1:]), array.dtype)
                    comm.Recv(_plain(block), rank)
                    maps[name][rows] = block


def _step(arrays: Arrays) -> int:
    """Return the number of rows of a message, and of what is written of a table at a time."""
    widest = max((_row_bytes(array) for array in arrays.values()), default=1)
    return max(1, min(BLOCK, BLOCK_BYTES // max(1, widest)))


def _row_bytes(array: NDArray[Any]) -> int:
    return array.itemsize * int(np.prod(array.shape[1:]))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of text as single bytes, since MPI has no type for it; other arrays unchanged."""
    return array.view(np.uint8) if array.dtype.kind == "S" else array


@contextmanager
def _hdf5(
    output: Path, nodes: int, arrays: Arrays, attributes: dict[str, Any]
) -> Iterator[dict[str, NDArray[Any]]]:
    size = sum(map(_row_bytes, arrays.values())) * nodes
    with replacement(output, force=True, size=size) as temporary:
        offsets = {}
        with hdf5.opened(temporary, "w") as file:
            file.attrs.update(attributes)
            for name, array in arrays.items():
                dtype = array.dtype if array.dtype.kind != "S" else h5py.string_dtype("utf-8", array.itemsize)
                offsets[name] = hdf5.create_dataset(file, name, dtype, (nodes, *array.shape[1:]))
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


@contextmanager
def _table(
    output: Path, nodes: int, arrays: Arrays, of_nodes: Collection[str], labels: Sequence[object] | None
) -> Iterator[dict[str, NDArray[Any]]]:
    """Collect rows in files without a name, and write them as a table."""
    with ExitStack() as files:
        maps: Arrays = {}
        for name, array in arrays.items():
            held = files.enter_context(tempfile.TemporaryFile(dir=output.parent))
            maps[name] = np.memmap(held, array.dtype, "w+", shape=(nodes, *array.shape[1:]))
        yield maps
        step = _step(arrays)
        cuts = ((first, min(first + step, nodes)) for first in range(0, nodes, step))
        blocks = (_columns(maps, *cut, of_nodes, labels) for cut in cuts)
        with replacement(output, force=True, size=0) as temporary:
            (_write_csv if output.suffix == ".csv" else _write_parquet)(temporary, blocks)


def _write_csv(path: Path, blocks: Iterator[dict[str, NDArray[Any]]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        for number, columns in enumerate(blocks):
            if number == 0:
                lines.writerow(columns)
            lines.writerows(zip(*(column.tolist() for column in map(_short, columns.values())), strict=True))


def _short(column: NDArray[Any]) -> NDArray[Any]:
    """Return float32 as the text with the fewest digits that is read as the same number; other columns unchanged."""
    return column.astype(str) if column.dtype == np.float32 else column


def _write_parquet(path: Path, blocks: Iterator[dict[str, NDArray[Any]]]) -> None:
    import pyarrow
    from pyarrow import parquet

    with ExitStack() as files:
        writer = None
        for columns in blocks:
            table = pyarrow.table({name: np.ascontiguousarray(column) for name, column in columns.items()})
            writer = writer or files.enter_context(parquet.ParquetWriter(path, table.schema))
            writer.write_table(table)


def _columns(
    maps: Arrays, first: int, last: int, of_nodes: Collection[str], labels: Sequence[object] | None
) -> Arrays:
    """Return rows first .. last - 1 of arrays as columns by name."""
    names = next((maps[name] for name in NAMES if name in maps), None)
    columns: Arrays = {"id": np.arange(first, last) if names is None else _decoded(names[first:last])}
    for name, array in maps.items():
        rows, prefix = array[first:last], name.replace("/", ".")
        if name in of_nodes and names is not None:
            rows = np.where(
                rows < 0, "" if names.dtype.kind == "S" else -1, _decoded(names[np.maximum(rows, 0)])
            )
        if rows.ndim == 1 and name not in NAMES:
            columns[prefix] = rows
        elif rows.ndim == 2:
            ends = range(rows.shape[1]) if labels is None else labels
            columns |= {f"{prefix}_{end}": rows[:, column] for column, end in enumerate(ends)}
    return columns


def _decoded(names: NDArray[Any]) -> NDArray[Any]:
    """Return UTF-8 bytes as text; numbers unchanged."""
    return np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names


# --- names of nodes


def kind_of_names(held: schema.Contents) -> str:
    """Return "id" if a graph file has users' integers for its rows, "name" if it has words, else an empty text."""
    if schema.NODE_ID in held.datasets:
        return "id"
    return "name" if schema.NAME_TEXT in held.datasets else ""


def longest_name(opened: GraphFile, lo: int, hi: int) -> int:
    """Return the bytes of the longest name of rows lo .. hi-1; 0 if they have none, or integers."""
    if kind_of_names(opened.contents) != "name":
        return 0
    offsets = (_offsets(opened, row, min(row + NAMED_ROWS, hi)) for row in range(lo, hi, NAMED_ROWS))
    return max((int(np.diff(each).max(initial=0)) for each in offsets), default=0)


def read_names(
    opened: GraphFile, lo: int, hi: int, width: int = 0
) -> NDArray[np.int64] | NDArray[np.bytes_] | None:
    """Return the names of rows lo .. hi-1: int64 [n], or UTF-8 bytes [n] of one length; None without names.

    width: this length. [default: of the longest] Raises InputError for names that are not UTF-8, and for a block whose
    digest differs.
    """
    kind = kind_of_names(opened.contents)
    if kind == "id":
        with opened.compared():
            return opened.checked(schema.NODE_ID, lo, hi)
    if not kind:
        return None
    width = width or max(1, longest_name(opened, lo, hi))
    found = np.zeros((hi - lo, width), np.uint8)
    for row, offsets, text in _texts(opened, lo, hi):
        shift = np.arange(row - lo, row - lo + len(offsets) - 1) * width - offsets[:-1]
        at = np.repeat(shift, np.diff(offsets)) + np.arange(offsets[0], offsets[-1])
        found.reshape(-1)[at] = text
    return found.view(f"S{width}").reshape(-1)


def rows_of_names(opened: GraphFile, names: Sequence[Any]) -> dict[Any, int]:
    """Return the rows of nodes by their names, integers or UTF-8 bytes, as far as there are such nodes."""
    found: dict[Any, int] = {}
    if kind_of_names(opened.contents) == "id":
        for low in range(0, opened.nodes, NAMED_ROWS):
            ids = read_names(opened, low, min(low + NAMED_ROWS, opened.nodes))
            assert ids is not None
            found |= {int(ids[at]): low + int(at) for at in np.flatnonzero(np.isin(ids, names))}
        return found
    for low, offsets, text in _texts(opened, 0, opened.nodes):
        for name in names:
            rows = np.flatnonzero(np.diff(offsets) == len(name))
            if name and len(rows):
                alike = sliding_window_view(text, len(name))[offsets[rows] - offsets[0]]
                rows = rows[(alike == np.frombuffer(name, np.uint8)).all(axis=1)]
            if len(rows):
                found[name] = low + int(rows[0])
    return found


def _offsets(opened: GraphFile, lo: int, hi: int) -> NDArray[np.int64]:
    """Return where the names of rows lo .. hi-1 begin in the text, and the end."""
    total = opened.contents.datasets[schema.NAME_TEXT].shape[0]
    with opened.compared():
        offsets = opened.checked(schema.NAME_OFFSETS, lo, hi + 1)
        checks.offsets(opened.where, schema.NAME_OFFSETS, offsets, row=lo, rows=opened.nodes, total=total)
    return offsets


def _texts(opened: GraphFile, lo: int, hi: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint8]]]:
    """Yield first row, `_offsets` and text of the names of rows lo .. hi-1, in blocks of bounded size."""
    while lo < hi:
        offsets = _offsets(opened, lo, min(lo + NAMED_ROWS, hi))
        rows = max(1, int(np.searchsorted(offsets, offsets[0] + BLOCK_BYTES, side="right")) - 1)
        offsets = offsets[: rows + 1]
        with opened.compared():
            text = opened.checked(schema.NAME_TEXT, int(offsets[0]), int(offsets[-1]))
            checks.names(opened.where, offsets, text, lo)
        yield lo, offsets, text
        lo += rows
