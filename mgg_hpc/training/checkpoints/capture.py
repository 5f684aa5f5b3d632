"""Take the state of a training, and give it back to one that begins: the same bits on the same ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import __version__, config
from ...errors import InputError
from ...nn.workspace import as_array
from ...runtime.backends.base import Meter
from ...runtime.backends.native import instruction_set
from ..history import History
from ..job import Job, resolved
from ..metrics import Scores
from ..trainer import Trainer
from . import state
from .folders import Position
from .state import State
from .weights import LEARNED

MODEL, ADAM, CHOSEN, TIMES = "model.", "adam.", "chosen.", "times."
ROWS, CHOSEN_ROWS = "rows", "chosen"  # of a learned input; its moments have the names of `Adam.slots`
_TIMES = ("epoch_ms", "eval_ms", "aggregate_ms")
_MOVED = ("local_bytes", "remote_bytes", "remote_rows", "messages")


def environment(job: Job) -> dict[str, Any]:
    """Return what must be the same for the same bits. Collective."""
    return {
        "ranks": job.comm.size,
        "threads": job.comm.allgather(job.backend.options.threads),
        "backend": job.backend.capabilities.name,
        "instruction set": instruction_set(),
        "torch's instruction set": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "mgg": __version__,
    }


def capture(
    job: Job, trainer: Trainer, history: History, at: Position, metrics_bytes: int, same: Mapping[str, Any]
) -> State:
    """Return a copy of everything that this rank knows at a place, on the host. It waits for what runs.

    metrics_bytes: length of metrics.csv, on rank 0. same: of `environment`.
    """
    moved = history.moved
    facts = {
        "epoch": at.epoch,
        "batch": at.batch,
        "so_far": trainer.under_way() if at.batch else None,
        "metrics_bytes": metrics_bytes,
        "loss": history.loss,
        "best_epoch": history.best_epoch,
        "best": history.best,
        "scores": asdict(history.scores),
        "moved": [getattr(moved, name) for name in _MOVED],
        "graph": job.part.uuid,
        "job": config.dumps(resolved(job)),
        "environment": dict(same),
    }
    tensors, rows = {}, {}
    first = job.comm.rank == 0
    if first:
        tensors = {MODEL + name: _copied(value) for name, value in job.model.state_dict().items()}
        tensors |= {CHOSEN + name: _copied(value) for name, value in history.state.items() if name != LEARNED}
        tensors |= {
            TIMES + name: torch.tensor(getattr(history, name), dtype=torch.float64) for name in _TIMES
        }
    names = _names(job)
    for parameter, slots in trainer.optimizer.slots():
        name = names[id(parameter)]
        for slot, value in slots.items():
            if name == LEARNED and slot != "steps":
                rows[slot] = as_array(_copied(value))
            elif first:
                tensors[f"{ADAM}{slot}.{name}"] = _copied(value)
    if job.learned is not None:
        rows |= {ROWS: as_array(_copied(job.learned)), CHOSEN_ROWS: as_array(_copied(history.state[LEARNED]))}
    ids = None if job.learned is None else job.part.slice.ids
    return State(facts, tensors, ids, rows)


def restore(
    folder: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], job: Job, trainer: Trainer
) -> History:
    """Give a checkpoint's state to a model and an optimiser that have taken no step; returns the history until then.

    facts, tensors: as `state.read` returns them. Raises InputError where the checkpoint is not of this job. Not
    collective, but all ranks call it: learned rows are read by the rank that owns their nodes now.
    """
    names, device = _names(job), job.backend.capabilities.device
    where = str(folder)
    state.copy_into(where, tensors, MODEL, job.model.state_dict())
    slots = {id(parameter): found for parameter, found in trainer.optimizer.slots()}
    adam = {
        f"{slot}.{names[key]}": value
        for key, found in slots.items()
        for slot, value in found.items()
        if names[key] != LEARNED or slot == "steps"
    }
    state.copy_into(where, tensors, ADAM, adam)
    chosen: dict[str, Tensor] = {}
    if facts["best_epoch"]:  # nothing is chosen within the first epoch
        chosen = {name: torch.empty_like(value) for name, value in job.model.state_dict().items()}
        state.copy_into(where, tensors, CHOSEN, chosen)
    if job.learned is not None:
        learned = slots[id(job.learned)]
        targets = {name: learned[name] for name in learned if name != "steps"}
        chosen[LEARNED] = torch.empty_like(job.learned)
        targets |= {ROWS: job.learned, CHOSEN_ROWS: chosen[LEARNED]}
        found = state.read_rows(folder, targets, job.part.slice.ids)
        rows = {name: torch.from_numpy(array).to(device) for name, array in found.items()}
        state.copy_into(where, rows, "", {name: target.detach() for name, target in targets.items()})
    try:
        history = History(
            epoch_ms=tensors[TIMES + "epoch_ms"].tolist(),
            eval_ms=tensors[TIMES + "eval_ms"].tolist(),
            aggregate_ms=tensors[TIMES + "aggregate_ms"].tolist(),
            best_epoch=facts["best_epoch"],
            best=tuple(facts["best"]),
            scores=Scores(**facts["scores"] | {"macro": tuple(facts["scores"]["macro"])}),
            state=chosen,
            loss=facts["loss"],
        )
        moved = Meter(**dict(zip(_MOVED, facts["moved"], strict=False)))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: {state.FACTS} lacks what a checkpoint has ({error!r})") from error
    if facts.get("batch"):
        trainer.go_on(facts["epoch"] + 1, facts["batch"], facts["so_far"])
    if job.comm.rank == 0:  # of rank 0; the next epoch counts anew
        history.moved.add(moved)
    return history


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what of `environment` is another than it was, a phrase each."""
    return [
        f"{name} {_short(now.get(name))} in place of {_short(value)}"
        for name, value in before.items()
        if now.get(name) != value and not (name == "threads" and before.get("ranks") != now.get("ranks"))
    ]


def _short(value: Any) -> str:
    if isinstance(value, list) and len(set(value)) == 1:
        return str(value[0])
    return str(value)


def _names(job: Job) -> dict[int, str]:
    """Return the name of each parameter by its identity."""
    names = {id(parameter): name for name, parameter in job.model.named_parameters()}
    return names if job.learned is None else names | {id(job.learned): LEARNED}


def _copied(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the host."""
    return tensor.detach().to("cpu", copy=True).contiguous()
