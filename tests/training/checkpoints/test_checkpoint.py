"""Weights in files: what is saved comes back, and what does not fit is refused by name."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from mgg_hpc.config import ModelSettings, PlanSettings
from mgg_hpc.errors import InputError
from mgg_hpc.nn.layers.models import GNN
from mgg_hpc.nn.layers.random import Draws
from mgg_hpc.training.checkpoints import folders, resume, weights

NAMES = ["convs.0.bias", "convs.0.lin.weight", "convs.1.bias", "convs.1.lin.weight"]


def model(seed: int, hidden: int = 5) -> GNN:
    return GNN(ModelSettings(hidden=hidden), 7, 3, Draws(seed))


def without(state: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if key != name}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def test_weights_come_back_under_pygs_names(folder):
    saved = model(1)
    path = weights.save_weights(folder, saved.state_dict())
    assert path == folder / "checkpoints" / "model.safetensors"
    assert sorted(safetensors.torch.load_file(path)) == NAMES
    other = model(2)
    assert not torch.equal(other.convs[0].lin.weight, saved.convs[0].lin.weight)
    weights.load_weights(folder, other)
    for name, value in saved.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_strided_weights_are_saved_as_they_read(folder):
    state = model(1).state_dict()
    state["convs.0.lin.weight"] = torch.arange(35.0).reshape(7, 5).t()
    weights.save_weights(folder, state)
    other = model(2)
    weights.load_weights(folder, other)
    assert torch.equal(other.convs[0].lin.weight, torch.arange(35.0).reshape(7, 5).t())


def test_a_run_without_weights_is_refused(folder):
    with pytest.raises(InputError, match=r"model.safetensors: no weights; the run did not finish"):
        weights.load_weights(folder, model(1))


@pytest.mark.parametrize("damage", [lambda b: b[:-4], lambda b: b[:7], lambda b: b"", lambda b: b"\xff"])
def test_a_damaged_file_is_refused(folder, damage):
    path = weights.save_weights(folder, model(1).state_dict())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"model.safetensors: not a safetensors file \(.+\); train again"):
        weights.load_weights(folder, model(1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: model(1, hidden=6).state_dict(), r"convs.0.bias is float32 \[6\], .* float32 \[5\]"),
        (lambda state: model(1).double().state_dict(), r"convs.0.bias is float64 \[5\], .* need float32"),
        (lambda state: state | {"convs.2.bias": torch.zeros(3)}, r"convs.2.bias is float32 .* need nothing"),
        *((lambda state, name=name: without(state, name), rf"{name} is nothing, but") for name in NAMES),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(folder, change, reason):
    weights.save_weights(folder, change(model(1).state_dict()))
    with pytest.raises(InputError, match=reason):
        weights.load_weights(folder, model(1))


def test_what_is_newer_than_the_last_checkpoint_goes(tmp_path):
    """It was damaged when the run went on from an earlier one; the number that is kept does not count it."""
    for epoch in (2, 4, 9):
        folders.commit(folders.draft(tmp_path, epoch), epoch, {})
    folders.prune(tmp_path, keep=1, newest=folders.Position(4))
    assert [path.name for path in tmp_path.iterdir()] == [folders.name_of(4)]


def test_the_plan_of_a_checkpoint_counts_where_nothing_else_is_asked_for():
    auto = PlanSettings()
    kept, job = PlanSettings("halo", 64, 8, 4), PlanSettings("direct", 128, 8, 2)
    assert resume.plan_of(kept, job, auto) == resume.plan_of(kept, job, job) == kept
    assert resume.plan_of(None, job, job) == auto
    streamed = PlanSettings("direct", memory="2G", scratch="here")
    assert resume.plan_of(None, streamed, streamed) == PlanSettings(memory="2G", scratch="here")
    assert resume.plan_of(streamed, streamed, PlanSettings("direct", memory=7)) == PlanSettings(
        "direct", memory=7
    )
    asked = PlanSettings("get", 128, 8, 2)
    assert resume.plan_of(kept, job, asked) == PlanSettings("get", 64, 8, 4)
