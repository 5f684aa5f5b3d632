"""Model weights in files: safetensors, which holds arrays and nothing that runs."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from ..errors import InputError
from .run_folder import CHECKPOINTS, write_whole

WEIGHTS = "model.safetensors"  # the weights that train.select chose


def save_weights(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    """Write a model's parameters to the run's checkpoints and return the path."""
    path = folder / CHECKPOINTS / WEIGHTS
    write_whole(path, safetensors.torch.save({name: value.contiguous() for name, value in state.items()}))
    return path


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Put a run's chosen weights into a model built from its settings. Raises InputError."""
    path = folder / CHECKPOINTS / WEIGHTS
    try:
        state = safetensors.torch.load(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"{path}: no weights; the run did not finish, train again") from error
    except SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file ({error}); train again") from error
    mine = {name: value.shape for name, value in model.state_dict().items()}
    theirs = {name: value.shape for name, value in state.items()}
    for name, shape in mine.items():
        if theirs.get(name) != shape:
            found = list(theirs[name]) if name in theirs else "nothing"
            raise InputError(f"{path}: {name} is {found}, but graph and job file need {list(shape)}")
    model.load_state_dict(state)
