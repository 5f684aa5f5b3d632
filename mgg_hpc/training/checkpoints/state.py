"""Content of a checkpoint: everything that decides how a training continues.

- ``state.safetensors``: weights, Adam's moments and step counts, the best weights so far, and the times of all epochs.
- ``state.json``: epoch, scores, length of metrics.csv, the graph's uuid, the resolved job, and the environment that
  must be equal for equal bits.
- ``rows.RANK.*.npy``, for learned input rows and rows of embeddings only: the ids of that rank's rows (of nodes, in the
  imported numbering), the rows, and what goes with them, as moments. Any number of ranks can read these files; each
  takes its own rows.

Random draws are functions of seed and epoch, so they need no further state.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from ...data.digest import byte_slices
from ...data.readers import npy
from ...errors import InputError, shown

FACTS, TENSORS = "state.json", "state.safetensors"
IDS = "ids"
LARGEST_FACTS = 64 << 20  # bytes
# Exceptions of reading damaged files; safetensors raises KeyError and AttributeError for types that torch lacks.
UNREADABLE = (
    SafetensorError,
    OSError,
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
    EOFError,
    RecursionError,
)


@dataclass(frozen=True)
class State:
    """One rank's part of a checkpoint, in memory of its own.

    facts: content of state.json, written by rank 0. tensors: equal on all ranks, written by rank 0. ids: int64 [n] of
    this rank's rows, and rows: [n, F] arrays by name; None and empty without such rows.
    """

    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    ids: NDArray[np.int64] | None
    rows: Mapping[str, NDArray[Any]]

    def files(self, rank: int) -> Iterator[tuple[str, Iterable[Any]]]:
        """Yield name and content of each file that a rank writes."""
        if rank == 0:
            yield FACTS, [json.dumps(self.facts, indent=1).encode()]
            yield TENSORS, [safetensors.torch.save(dict(self.tensors))]
        if self.ids is not None:
            for name, array in {IDS: self.ids, **self.rows}.items():
                yield f"rows.{rank}.{name}.npy", _npy(array)


def _npy(array: NDArray[Any]) -> Iterator[Any]:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    yield header.getvalue()
    yield from byte_slices(array)


def on_host(tensor: Tensor) -> Tensor:
    """Return a contiguous copy in the host's memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the content of state.json and the tensors of a verified checkpoint. Raises InputError."""
    path = folder / FACTS
    try:
        if path.stat().st_size > LARGEST_FACTS:
            raise ValueError(f"{FACTS} has more than {LARGEST_FACTS >> 20} MiB")
        facts = json.loads(path.read_bytes())
        if not isinstance(facts, dict):
            raise ValueError(f"{FACTS} holds no facts")
        return facts, safetensors.torch.load_file(folder / TENSORS)
    except UNREADABLE as error:
        reason = f"cannot be read ({_reason(error)}); remove it to resume from the one before"
        raise InputError(f"{folder}: {reason}") from error


def read_rows(
    folder: Path, names: Iterable[str], ids: NDArray[np.int64], *, ascending: bool = False
) -> dict[str, NDArray[Any]]:
    """Return the rows [n, F] of ``ids`` by name, from the files of all ranks.

    ascending: whether ids ascend, here and in each file, so that only those near ``ids`` are read. Raises InputError if
    an id is missing or occurs twice, or files differ in type or width. Nothing larger than the files is allocated.
    """
    order = np.argsort(ids, kind="stable")
    wanted, seen = ids[order], np.zeros(len(ids), dtype=bool)
    parts = []  # of each rank's files: the rank, number of rows, which rows of the result, which rows of the file
    try:
        for path in sorted(folder.glob(f"rows.*.{IDS}.npy")):
            theirs = npy.load(path)
            if theirs.dtype != np.int64 or theirs.ndim != 1:
                raise InputError(f"{path}: is {theirs.dtype} {list(theirs.shape)}; expected int64 [rows]")
            low, high = 0, len(theirs)
            if ascending and len(ids):
                low, high = np.searchsorted(theirs, [ids[0], ids[-1] + 1])
            near = theirs[low:high]
            at = np.searchsorted(wanted, near)
            mine = np.flatnonzero(np.append(wanted, -1)[at] == near)
            if seen[at[mine]].any() or len(np.unique(at[mine])) < len(mine):
                raise InputError(f"{path}: has a row that is there already; remove this checkpoint")
            seen[at[mine]] = True
            parts.append((path.name.split(".")[1], len(theirs), order[at[mine]], low + mine))
        if not seen.all():
            raise InputError(
                f"{folder}: has {np.count_nonzero(seen):,} of {len(ids):,} rows that this rank asks for; "
                "it is of other data"
            )
        return {name: _gathered(folder, name, parts, len(ids)) for name in names}
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise InputError(f"{folder}: rows cannot be read ({_reason(error)})") from error


def _gathered(folder: Path, name: str, parts: list[tuple[str, int, Any, Any]], count: int) -> NDArray[Any]:
    """Return ``count`` rows of one name, from the parts that `read_rows` has found."""
    made: NDArray[Any] | None = None
    for rank, rows, to, source in parts:
        path = folder / f"rows.{rank}.{name}.npy"
        found = npy.load(path)
        sound = found.ndim > 0 and len(found) == rows and found.dtype.isnative and found.dtype.itemsize <= 8
        if sound and made is None:
            made = np.empty((count, *found.shape[1:]), found.dtype)
        if not sound or made is None or (made.dtype, made.shape[1:]) != (found.dtype, found.shape[1:]):
            kind = f"{found.dtype} {list(found.shape)}"
            raise InputError(f"{path}: is {kind}; expected {rows} rows as the others have")
        made[to] = found[source]
    if made is None:
        raise InputError(f"{folder}: has no rows of {name}")
    return made


def _reason(error: Exception) -> str:
    """Return an error as a few words on one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def copy_into(
    where: str, given: Mapping[str, Tensor], prefixes: str | tuple[str, ...], targets: Mapping[str, Tensor]
) -> None:
    """Copy the tensors whose names begin with one of the prefixes into the targets of the same names.

    Raises InputError, beginning with ``where``, unless names, types and shapes are equal.
    """
    found = {name: value for name, value in given.items() if name.startswith(prefixes)}
    check_alike(where, found, targets, "and the job's model has")
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(found[name])


def check_alike(where: str, found: Mapping[str, Tensor], needed: Mapping[str, Tensor], but: str) -> None:
    """Raise InputError, "WHERE: NAME is KIND, BUT KIND", for a tensor of another type or shape, or a missing one."""
    for name in sorted(found.keys() | needed.keys()):
        theirs, mine = _kind(found.get(name)), _kind(needed.get(name))
        if theirs != mine:
            raise InputError(f"{where}: {shown(name)[1:-1]} is {theirs}, {but} {mine}")


def _kind(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
