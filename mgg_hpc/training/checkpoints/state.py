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
from ...errors import InputError

FACTS, TENSORS = "state.json", "state.safetensors"
IDS = "ids"


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
    try:
        facts = json.loads((folder / FACTS).read_bytes())
        return facts, safetensors.torch.load_file(folder / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"{folder}: cannot be read ({error}); remove it to resume from the one before"
        ) from error


def read_rows(folder: Path, names: Iterable[str], ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the rows [n, F] of these nodes, by name, from all ranks' files. Raises InputError if some are missing."""
    names = list(names)
    made: dict[str, NDArray[Any]] = {}
    order = np.argsort(ids, kind="stable")
    wanted, filled = ids[order], 0
    try:
        for path in sorted(folder.glob(f"rows.*.{IDS}.npy")):
            rank = path.name.split(".")[1]
            theirs = np.load(path, mmap_mode="r", allow_pickle=False)
            place = np.searchsorted(wanted, theirs)
            mine = np.flatnonzero(np.append(wanted, -1)[place] == theirs)
            filled += len(mine)
            for name in names:
                rows = np.load(folder / f"rows.{rank}.{name}.npy", mmap_mode="r", allow_pickle=False)
                if name not in made:
                    made[name] = np.empty((len(ids), *rows.shape[1:]), rows.dtype)
                made[name][order[place[mine]]] = rows[mine]
    except (OSError, ValueError, IndexError, EOFError) as error:
        raise InputError(f"{folder}: learned rows cannot be read ({error})") from error
    if filled != len(ids):
        raise InputError(
            f"{folder}: has rows of {filled:,} of this rank's {len(ids):,} nodes; it is of another graph"
        )
    return made


def copy_into(where: str, given: Mapping[str, Tensor], prefix: str, target: Mapping[str, Tensor]) -> None:
    """Copy tensors whose names begin with a prefix over those of the same name. Raises InputError for other ones."""
    found = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    for name in sorted(found.keys() | target.keys()):
        mine, theirs = (_kind(each.get(name)) for each in (target, found))
        if mine != theirs:
            raise InputError(f"{where}: {prefix}{name} is {theirs}, and the job's model has {mine}")
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(found[name])


def _kind(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
