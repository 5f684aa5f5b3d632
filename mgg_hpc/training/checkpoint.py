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
    mine, theirs = _kinds(model.state_dict()), _kinds(state)
    for name in sorted(mine.keys() | theirs.keys()):
        found, needed = theirs.get(name, "nothing"), mine.get(name, "nothing")
        if found != needed:
            raise InputError(f"{path}: {name} is {found}, but graph and job file need {needed}")
    model.load_state_dict(state)


def _kinds(state: dict[str, torch.Tensor]) -> dict[str, str]:
    """Types and shapes by name, as "float32 [16, 64]"."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        for name, value in state.items()
    }
