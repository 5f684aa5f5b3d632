"""Weights in files: what is saved comes back, and what is damaged or does not fit is refused by name."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from data.graphs import refused

from mgg_hpc.config import ModelSettings
from mgg_hpc.errors import InputError
from mgg_hpc.nn.layers.models import GNN
from mgg_hpc.nn.layers.random import Draws
from mgg_hpc.training.checkpoints import state, weights

NAMES = ["convs.0.bias", "convs.0.lin.weight", "convs.1.bias", "convs.1.lin.weight"]


def model(seed: int, hidden: int = 5) -> GNN:
    return GNN(ModelSettings(hidden=hidden), 7, 3, Draws(seed))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def test_weights_come_back_under_pygs_names_however_they_are_strided(folder):
    saved, other = model(1).state_dict(), model(2)
    saved["convs.0.lin.weight"] = torch.arange(35.0).reshape(7, 5).t()
    assert sorted(saved) == NAMES
    assert weights.save_weights(folder, saved) == folder / "checkpoints" / "model.safetensors"
    weights.load_weights(folder, other)
    assert all(torch.equal(value, saved[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("damage", [lambda b: b[:-4], lambda b: b[:7], lambda b: b"", lambda b: b"\xff"])
def test_a_damaged_file_is_refused(folder, damage):
    path = weights.save_weights(folder, model(1).state_dict())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"model.safetensors: not a safetensors file \(.+\); train again"):
        weights.load_weights(folder, model(1))


def test_a_changed_byte_of_any_tensor_or_text_is_found(folder, rng):
    norm = torch.nn.BatchNorm1d(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), norm, torch.nn.Linear(3, 1)).double()
    about = {"uuid": "ab-cd", "features": 5, "classes": 3, "multilabel": 0}
    path = weights.save_weights(folder, model.state_dict(), about)
    sound = path.read_bytes()
    length = int.from_bytes(sound[:8], "little")
    header = json.loads(sound[8 : 8 + length])
    texts = header.pop("__metadata__")
    assert header.keys() == model.state_dict().keys() and texts.keys() == {*about, weights.DIGEST}
    places = [int(rng.integers(*each["data_offsets"])) + 8 + length for each in header.values()]
    places += [sound.index(f'"{texts[name]}"'.encode()) + 1 for name in texts]
    for place in places:
        data = bytearray(sound)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(InputError, match="other"):
            weights.load_weights(folder, model)
    path.write_bytes(sound)
    weights.load_weights(folder, model)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: model(1, hidden=6).state_dict(), r"convs.0.bias is float32 \[6\], .* float32 \[5\]"),
        (lambda state: model(1).double().state_dict(), r"convs.0.bias is float64 \[5\], .* need float32"),
        (lambda state: state | {"convs.2.bias": torch.zeros(3)}, r"convs.2.bias is float32 .* need nothing"),
        (lambda state: {name: state[name] for name in NAMES[1:]}, r"convs.0.bias is nothing, but"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(folder, change, reason):
    weights.save_weights(folder, change(model(1).state_dict()))
    with pytest.raises(InputError, match=reason):
        weights.load_weights(folder, model(1))


def test_ascending_rows_are_read_by_parts_and_only_these(tmp_path, rng, monkeypatch):
    """Parts of rows of five ranks' files, one without rows, are those that were saved; no whole index is looked up."""
    x = rng.random((2000, 3))
    bounds = [0, *np.sort(rng.integers(0, 2001, 3)).tolist(), 2000, 2000]
    for rank, (low, high) in enumerate(itertools.pairwise(bounds)):
        made = state.State({}, {}, np.arange(low, high), {"x": x[low:high]})
        for name, pieces in made.files(rank):
            (tmp_path / name).write_bytes(b"".join(pieces))
    looked, search = [], np.searchsorted
    monkeypatch.setattr(state.np, "searchsorted", lambda a, v: looked.append(len(v)) or search(a, v))
    for first in range(0, 2000, 130):
        ids = np.arange(first, min(first + 130, 2000))
        found = state.read_rows(tmp_path, ["x"], ids, ascending=True)["x"]
        assert np.array_equal(found, x[ids])
    assert sum(looked) == 2000 + 2 * 5 * 16  # each id once, and both ends of a part in each file
    with refused("has 10 of 20 rows that this rank asks for"):
        state.read_rows(tmp_path, ["x"], np.arange(1990, 2010), ascending=True)
    np.save(tmp_path / "rows.9.ids.npy", np.arange(1000, 1010))
    with refused("has a row that is there already"):
        state.read_rows(tmp_path, ["x"], np.arange(990, 1010), ascending=True)
