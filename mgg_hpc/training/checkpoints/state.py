"""What a checkpoint holds: everything that decides how training goes on.

``state.safetensors``: weights, Adam's moments and steps, the weights chosen so far, and the times of the epochs.
``state.json``: epoch, scores, the length of metrics.csv, the graph's uuid, the resolved job, and what must be the same
for the same bits. ``rows.RANK.*.npy``, of a learned input: the ids of that rank's nodes in the imported numbering, and
their rows, moments and chosen rows; any number of ranks reads those that it needs. Draws are counters: seed and epoch
are their whole state.
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
from ...data.readers.limits import shown
from ...errors import InputError

FACTS, TENSORS = "state.json", "state.safetensors"
IDS = "ids"
LARGEST_FACTS = 64 << 20  # bytes


@dataclass(frozen=True)
class State:
    """One rank's part of a checkpoint, in memory of its own.

    facts: for JSON; rank 0's. tensors: the same on all ranks; rank 0's are written. ids: int64 [n] of this rank's
    nodes, and rows: [n, F] arrays by name; None and empty without a learned input.
    """

    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    ids: NDArray[np.int64] | None
    rows: Mapping[str, NDArray[Any]]

    def files(self, rank: int) -> Iterator[tuple[str, Iterable[Any]]]:
        """Yield the names and the bytes of the files that a rank writes."""
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


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the facts and the tensors of a verified checkpoint. Raises InputError."""
    path = folder / FACTS
    try:
        if path.stat().st_size > LARGEST_FACTS:
            raise ValueError(f"{FACTS} has more than {LARGEST_FACTS >> 20} MiB")
        facts = json.loads(path.read_bytes())
        if not isinstance(facts, dict):
            raise ValueError(f"{FACTS} holds no facts")
        return facts, safetensors.torch.load_file(folder / TENSORS)
    # KeyError, AttributeError: of safetensors, for types that torch has not.
    except (
        OSError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise InputError(
            f"{folder}: cannot be read ({_reason(error)}); remove it to resume from the one before"
        ) from error


def read_rows(folder: Path, names: Iterable[str], ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the rows [n, F] of these nodes, by name, from all ranks' files. Raises InputError if some are missing.

    Files of other types or shapes than the first one's are an error; nothing larger than the files is allocated.
    """
    try:
        found = _found_rows(folder, list(names), ids)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise InputError(f"{folder}: learned rows cannot be read ({_reason(error)})") from error
    return found


def _found_rows(folder: Path, names: list[str], ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    order = np.argsort(ids, kind="stable")
    wanted, seen = ids[order], np.zeros(len(ids), dtype=bool)
    places = []
    for path in sorted(folder.glob(f"rows.*.{IDS}.npy")):
        theirs = npy.load(path)
        if theirs.dtype != np.int64 or theirs.ndim != 1:
            raise InputError(f"{path}: is {theirs.dtype} {list(theirs.shape)}; expected int64 [nodes]")
        place = np.searchsorted(wanted, theirs)
        mine = np.flatnonzero(np.append(wanted, -1)[place] == theirs)
        again = seen[place[mine]].any() or len(np.unique(place[mine])) < len(mine)
        if again:
            raise InputError(f"{path}: has rows of a node that are there already; remove this checkpoint")
        seen[place[mine]] = True
        places.append((path.name.split(".")[1], len(theirs), order[place[mine]], mine))
    if not seen.all():
        raise InputError(
            f"{folder}: has rows of {np.count_nonzero(seen):,} of this rank's {len(ids):,} nodes; "
            "it is of another graph"
        )
    return {name: _gathered(folder, name, places, len(ids)) for name in names}


def _gathered(folder: Path, name: str, places: list[tuple[str, int, Any, Any]], count: int) -> NDArray[Any]:
    """Return ``count`` rows of one name; places: by file, its rank, its rows, and which of them go where."""
    made: NDArray[Any] | None = None
    for rank, rows, to, of in places:
        path = folder / f"rows.{rank}.{name}.npy"
        found = npy.load(path)
        sound = found.ndim > 0 and len(found) == rows and found.dtype.isnative and found.dtype.itemsize <= 8
        if not sound or (made is not None and not _alike(made, found)):
            raise InputError(
                f"{path}: is {found.dtype} {list(found.shape)}; expected {rows} rows as the others have"
            )
        if made is None:
            made = np.empty((count, *found.shape[1:]), found.dtype)
        made[to] = found[of]
    if made is None:
        raise InputError(f"{folder}: has no rows of {name}")
    return made


def _alike(made: NDArray[Any], found: NDArray[Any]) -> bool:
    return made.dtype == found.dtype and made.shape[1:] == found.shape[1:]


def _reason(error: Exception) -> str:
    """Return an error as a few words on one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def copy_into(where: str, given: Mapping[str, Tensor], prefix: str, target: Mapping[str, Tensor]) -> None:
    """Copy tensors whose names begin with a prefix over those of the same name. Raises InputError for other ones."""
    found = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    for name in sorted(found.keys() | target.keys()):
        mine, theirs = (_kind(each.get(name)) for each in (target, found))
        if mine != theirs:
            raise InputError(
                f"{where}: {shown(prefix + name)[1:-1]} is {theirs}, and the job's model has {mine}"
            )
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(found[name])


def _kind(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
