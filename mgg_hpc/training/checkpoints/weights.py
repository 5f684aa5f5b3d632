"""The result of a training on disk: weights as safetensors, learned input rows as .npy. Neither can hold code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
import xxhash
from numpy.typing import NDArray

from ...data import row_files
from ...data.readers import npy
from ...errors import InputError
from ...nn.graph.loading import Part
from ...nn.workspace import as_array
from ..run_folder import CHECKPOINTS, write_whole
from .state import UNREADABLE, check_alike

WEIGHTS = "model.safetensors"  # the weights chosen by train.select
ROWS = "input.npy"  # learned input rows [N, F] of the same epoch, in the user's numbering
DIGEST = "xxh3_128"  # metadata key of the digest of everything else in the file; older files lack it
LEARNED = "input.rows"  # name of a rank's learned rows among the weights


@dataclass(frozen=True)
class Fitted:
    """The graph that a run's weights were trained on, as far as prediction needs it.

    run: name of the run, for messages. uuid: identifies the graph; "" accepts any graph with as many features.
    """

    run: str
    uuid: str
    features: int
    classes: int
    multilabel: bool


def save(comm: Any, folder: Path | None, part: Part, state: Mapping[str, torch.Tensor]) -> None:
    """Write the weights of a model for this graph, and its learned rows if it has any. Collective.

    folder: the run folder on rank 0, None on other ranks.
    """
    if folder is not None:
        about = {"uuid": part.uuid, "features": part.features, "classes": part.classes}
        about["multilabel"] = int(part.multilabel)
        save_weights(folder, {name: value for name, value in state.items() if name != LEARNED}, about)
    if LEARNED in state:
        path = (folder or Path()) / CHECKPOINTS / ROWS
        rows = {"rows": as_array(state[LEARNED].cpu())}
        row_files.write(comm, path, part.slice.ids, rows, part.bounds, {}, mode=0o600)


def save_weights(
    folder: Path, state: Mapping[str, torch.Tensor], about: Mapping[str, object] | None = None
) -> Path:
    """Write a model's parameters into a run folder, and return the file. about: further metadata of the file."""
    path = folder / CHECKPOINTS / WEIGHTS
    tensors = {name: value.contiguous() for name, value in state.items()}
    texts = {name: str(value) for name, value in (about or {}).items()}
    texts[DIGEST] = _digest(tensors, texts)
    write_whole(path, safetensors.torch.save(tensors, texts))
    return path


def _digest(state: Mapping[str, torch.Tensor], texts: Mapping[str, str]) -> str:
    """Return XXH3-128 of contiguous tensors on the host, and of a file's metadata without the digest itself."""
    found = xxhash.xxh3_128()
    for name in sorted(texts.keys() - {DIGEST}):
        found.update(json.dumps([name, texts[name]]).encode())
    for name in sorted(state):
        kind = [name, str(state[name].dtype), list(state[name].shape)]
        found.update(json.dumps(kind).encode())
        found.update(state[name].cpu().reshape(-1).view(torch.uint8).numpy().data)
    return str(found.hexdigest())


def fitted(folder: Path) -> Fitted:
    """Return the facts of a run's graph from its weights file. Raises InputError if it cannot be read."""
    path = folder / CHECKPOINTS / WEIGHTS
    with _reading(path, "no weights", "does not tell what it was trained on"):
        with safetensors.safe_open(path, "pt") as file:
            told = file.metadata() or {}
        features, classes, multilabel = (int(told[name]) for name in ("features", "classes", "multilabel"))
        # A model has weights for each feature and each class, so neither number exceeds the file's size.
        if not (1 <= features <= path.stat().st_size and 1 <= classes <= path.stat().st_size):
            raise ValueError(f"{features} features and {classes} classes")
        return Fitted(folder.name, told["uuid"], features, classes, bool(multilabel))


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Load a run's chosen weights into a model of its settings. Raises InputError if they do not fit."""
    path = folder / CHECKPOINTS / WEIGHTS
    with _reading(path, "no weights", "not a safetensors file"):
        with safetensors.safe_open(path, "pt") as file:
            texts = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        if DIGEST in texts and texts[DIGEST] != _digest(state, texts):
            raise ValueError("its bytes are others than were written")
    check_alike(str(path), state, model.state_dict(), "but graph and job file need")
    model.load_state_dict(state)


def load_state(path: Path, model: torch.nn.Module) -> None:
    """Load a state_dict that was written elsewhere, by safetensors or torch, into a model.

    Only tensors are read from torch's files, never code. Raises InputError if the file is damaged or does not
    fit.
    """
    try:
        if path.suffix == ".safetensors":
            state = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of damaged files: many kinds
        reason = " ".join(str(error).split("\n")[0].split())[:200]
        raise InputError(
            f"{path}: neither safetensors (a name that ends in .safetensors) nor tensors by torch.save ({reason}); "
            "save model.state_dict()"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise InputError(f"{path}: is no dictionary of tensors by name; save model.state_dict()")
    wrong = next((name for name, each in state.items() if not isinstance(each, torch.Tensor)), None)
    if wrong is not None:
        raise InputError(f"{path}: {wrong} is a {type(state[wrong]).__name__}; save model.state_dict() alone")
    needed = model.state_dict()
    found = {name: each.to(needed[name].dtype) if name in needed else each for name, each in state.items()}
    check_alike(str(path), found, needed, "but model.module and model.arguments make")
    model.load_state_dict(found)


def load_rows(folder: Path, ids: NDArray[np.int64], nodes: int, rows: torch.nn.Parameter) -> None:
    """Copy a run's learned input rows of nodes ``ids`` [n] into ``rows`` [n, F].

    nodes: number of nodes of the graph. Raises InputError if the run has no such rows, or they do not fit.
    """
    path, wanted = folder / CHECKPOINTS / ROWS, (nodes, rows.shape[1])
    with _reading(path, "no learned input", "not a NumPy array"):
        found = npy.load(path)
    kind = str(rows.dtype).removeprefix("torch.")
    if found.shape != wanted or found.dtype.name != kind:
        raise InputError(
            f"{path}: is {found.dtype.name} {list(found.shape)}, but graph and job file need {kind} {list(wanted)}"
        )
    with torch.no_grad():
        rows.copy_(torch.from_numpy(found[ids]))


@contextmanager
def _reading(path: Path, absent: str, damaged: str) -> Iterator[None]:
    """Turn errors of reading a run's file into InputError with these reasons."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: {absent}; the run did not finish: go on with it by mgg resume") from error
    except UNREADABLE as error:
        raise InputError(f"{path}: {damaged} ({repr(error)[:200]}); train again") from error


def fit_to(part: Part, fitted: Fitted) -> None:
    """Remove the labels of a graph, for prediction by a model that was trained on it or another graph.

    Raises InputError if the graph has another uuid than ``fitted`` asks for, or another number of features.
    """
    if fitted.uuid and part.uuid != fitted.uuid:
        raise InputError(
            f"{part.path}: is graph {part.uuid}, but {fitted.run} was trained on {fitted.uuid}; put that one back, "
            "name another one by --graph, or train again"
        )
    if part.features != fitted.features:
        raise InputError(
            f"{part.path}: has {part.features} features a node, but {fitted.run} was trained on {fitted.features}; "
            "predict on a graph with the same features, or train on this one"
        )
    part.classes, part.multilabel = fitted.classes, fitted.multilabel
    unlabelled = np.full(len(part.slice.ids), -1)
    part.slice = replace(part.slice, y=unlabelled, train=None, val=None, test=None)
