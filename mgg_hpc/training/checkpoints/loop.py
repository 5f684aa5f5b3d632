"""Checkpoints for a user's own training loop: `checkpointed`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...config import CheckpointSettings
from ...errors import InputError
from ...nn.layers.random import DRAWS, Dropout
from ...nn.workspace import as_array
from ...runtime import mpi, signals
from . import folders, state
from .folders import Position
from .saver import Saver
from .state import State, on_host

MODEL, OPTIMIZER = "model.", "optimizer."
DRAWN, DRAWN_ON_GPU = "torch's random state", "torch's random state on the GPU"  # uint8 [ranks, bytes]
Number = bool | int | float | None


class checkpointed:  # noqa: N801 - it is used as a function
    """Save a training loop's state as it runs, and continue where an earlier run stopped::

        with mgg.checkpointed(model, optimizer, "run", every=10) as state:
            for epoch in state.epochs(200):
                ...

    Saved are the model's parameters and buffers, the optimiser's state, the state of each rank's random generators of
    torch, the number of draws of each dropout, and ``state.extra``. When the program is run again, it continues after
    the last saved epoch, with the same bits on as many ranks; on another number of ranks all generators get rank 0's
    state. SIGTERM, SIGUSR1 and SIGINT save the current epoch and end the program with exit code 3.

    Collective. Raises InputError for a checkpoint of another model.

    Args:
        model: equal on all ranks.
        optimizer: of the model's parameters and of ``rows``.
        folder: of the checkpoints; rank 0 makes it.
        every: number of epochs between checkpoints; 0 for none.
        minutes: time between checkpoints; 0 for none.
        keep: number of the newest checkpoints that are kept.
        rows: parameters [n, F] by name, outside the model, with a row for each of this rank's nodes. They can be
            restored on any number of ranks.
        ids: int64 [n], the ids of these nodes (`DistGraph.ids`).
        comm: an mpi4py communicator. [default: all ranks]

    Attributes:
        epoch: the last complete epoch.
        extra: a dictionary of further values to save: numbers, texts and lists.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        folder: str | Path,
        *,
        every: int = 1,
        minutes: float = 0.0,
        keep: int = 2,
        rows: Mapping[str, torch.nn.Parameter] | None = None,
        ids: Any = None,
        comm: Any = None,
    ) -> None:
        self.epoch, self.extra = 0, dict[str, Any]()
        self._model, self._optimizer, self._folder = model, optimizer, Path(folder)
        world = mpi.world()  # an uncaught error on any rank ends all of them
        self._comm = comm or world
        self._rows, self._ids = dict(rows or {}), None if ids is None else np.asarray(ids, dtype=np.int64)
        if self._rows and self._ids is None:
            raise ValueError("checkpointed: rows need the ids of this rank's nodes (ids=graph.ids)")
        self._settings = CheckpointSettings(every_epochs=every, every_minutes=minutes, keep=keep)
        self._saver: Saver | None = None

    def __enter__(self) -> checkpointed:
        signals.listen()
        comm = self._comm
        with mpi.agree(comm):
            found = None
            if comm.rank == 0:
                folders.make(self._folder)
                found = folders.newest(self._folder)
        found = comm.bcast(found, root=0)
        if found is not None:
            with mpi.agree(comm):
                self._restore(found.folder)
            self.epoch = found.at.epoch
        self._saver = Saver(
            comm,
            self._settings,
            self._folder if comm.rank == 0 else None,
            all_write=bool(self._rows),
            newest=Position(self.epoch),
            command="the same command",
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._saver is not None:
            self._saver.finish()

    def epochs(self, last: int) -> Iterator[int]:
        """Yield the number of each remaining epoch up to ``last``; after an epoch, save the state if it is due.
        Collective.
        """
        if self._saver is None:
            raise RuntimeError("checkpointed: epochs() is for the inside of its with statement")
        for epoch in range(self.epoch + 1, last + 1):
            yield epoch
            self.epoch = epoch
            if self._saver.wants(Position(epoch), last=epoch == last):
                self._saver.save(Position(epoch), self._capture(epoch))

    def _capture(self, epoch: int) -> State:
        generators = self._comm.gather(_generators(), root=0)
        tensors = {}
        if generators is not None:
            tensors = {MODEL + name: on_host(value) for name, value in self._model.state_dict().items()}
            for name in set.intersection(*map(set, generators)):
                tensors[name] = torch.stack([torch.from_numpy(each[name]) for each in generators])
        rows = {name: as_array(on_host(parameter)) for name, parameter in self._rows.items()}
        numbers: dict[str, dict[str, Number]] = {}
        for place, parameter in enumerate(self._parameters()):
            name = self._name_of_rows(parameter)
            for slot, value in self._optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor):
                    numbers.setdefault(str(place), {})[slot] = value
                elif name and value.shape == parameter.shape:
                    rows[f"{name}.{slot}"] = as_array(on_host(value))
                elif self._comm.rank == 0:
                    tensors[f"{OPTIMIZER}{place}.{slot}"] = on_host(value)
        groups = self._optimizer.param_groups
        facts = {
            "epoch": epoch,
            "groups": [{key: value for key, value in group.items() if key != "params"} for group in groups],
            "numbers": numbers,
            "dropout": {name: module.draws.epoch for name, module in self._dropouts()},
            "extra": self.extra,
        }
        try:
            # A copy, since the loop changes its own while a thread writes.
            facts = json.loads(json.dumps(facts))
        except TypeError as error:
            raise TypeError(
                f"checkpointed: {error}; state.extra and groups of the optimizer hold numbers, texts and lists"
            ) from error
        return State(facts, tensors, self._ids if self._rows else None, rows)

    def _restore(self, folder: Path) -> None:
        facts, tensors = state.read(folder)
        model = {MODEL + name: value for name, value in self._model.state_dict().items()}
        state.copy_into(str(folder), tensors, MODEL, model)
        names = [name for path in folder.glob("rows.0.*.npy") if (name := path.name[7:-4]) != state.IDS]
        rows: dict[str, Any] = {}
        if self._rows and self._ids is not None:
            rows = state.read_rows(folder, names, self._ids)
            given = {name: torch.from_numpy(rows[name]) for name in self._rows if name in rows}
            state.copy_into(str(folder), given, "", {name: own.detach() for name, own in self._rows.items()})
        try:
            slots = {
                place: self._slots(place, parameter, tensors, rows) | facts["numbers"].get(str(place), {})
                for place, parameter in enumerate(self._parameters())
            }
            groups = self._optimizer.state_dict()["param_groups"]
            if len(groups) != len(facts["groups"]):
                raise InputError(f"{folder}: is of another optimiser, with {len(facts['groups'])} groups")
            groups = [mine | theirs for mine, theirs in zip(groups, facts["groups"], strict=True)]
            self._optimizer.load_state_dict({"state": slots, "param_groups": groups})
            for name, module in self._dropouts():
                module.draws.begin(facts["dropout"][name])
            self._restore_generators(tensors)
            self.extra = facts["extra"]
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(f"{folder}: is not of this model and optimiser ({error!r})") from error

    def _restore_generators(self, tensors: Mapping[str, Tensor]) -> None:
        states = {name: tensors[name] for name in (DRAWN, DRAWN_ON_GPU) if name in tensors or name == DRAWN}
        for name, every in states.items():  # older checkpoints have rank 0's only
            same = every.dim() > 1 and len(every) == self._comm.size
            mine = every if every.dim() == 1 else every[self._comm.rank if same else 0].clone()
            if name == DRAWN:
                torch.set_rng_state(mine)
            elif torch.cuda.is_available():
                torch.cuda.set_rng_state(mine)

    def _slots(
        self, place: int, parameter: Tensor, tensors: Mapping[str, Tensor], rows: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the optimiser's tensors of one parameter from a checkpoint. place: the parameter's index."""
        prefix, name = f"{OPTIMIZER}{place}.", self._name_of_rows(parameter)
        found = {slot.removeprefix(prefix): each for slot, each in tensors.items() if slot.startswith(prefix)}
        if name:
            found |= {
                slot.removeprefix(f"{name}."): torch.from_numpy(each).to(parameter.device)
                for slot, each in rows.items()
                if slot.startswith(f"{name}.")
            }
        return found

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _name_of_rows(self, parameter: Tensor) -> str:
        return next((name for name, rows in self._rows.items() if rows is parameter), "")

    def _dropouts(self) -> Iterator[tuple[str, Dropout]]:
        """Yield the modules that count their own draws, with their names."""
        for name, module in self._model.named_modules():
            own = vars(module).get(DRAWS, module)
            if isinstance(own, Dropout) and own.counts:
                yield name, own


def _generators() -> dict[str, Any]:
    """Return the states of this rank's random generators of torch, uint8 arrays by name."""
    found = {DRAWN: torch.get_rng_state().numpy()}
    if torch.cuda.is_initialized():
        found[DRAWN_ON_GPU] = torch.cuda.get_rng_state().numpy()
    return found
