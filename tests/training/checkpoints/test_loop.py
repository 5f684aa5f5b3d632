"""A user's loop goes on from the newest checkpoint that is whole, and says which ones it passed over."""

from __future__ import annotations

import pytest
import torch

import mgg_hpc as mgg


def run(folder, last: int):
    """The weights after each epoch, of a model whose epochs add 1, by the numbers of epochs that were run."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    found = {}
    with mgg.checkpointed(model, optimizer, folder, keep=3) as state:
        for epoch in state.epochs(last):
            with torch.no_grad():
                model.weight += 1
            found[epoch] = model.weight.item()
    return found


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, capfd, damaged):
    folder = tmp_path / "state"
    assert run(folder, 3) == {1: 1.0, 2: 2.0, 3: 3.0}
    made = sorted(
        path for path in folder.iterdir() if path.is_dir()
    )  # an epoch may pass while another is saved
    left = [0, *(int(each.name.partition("-")[2]) for each in made[: len(made) - damaged])]
    for each in made[len(made) - damaged :]:
        (tensors,) = each.glob("*.safetensors")
        whole = bytearray(tensors.read_bytes())
        whole[-1] ^= 1
        tensors.write_bytes(whole)
    capfd.readouterr()
    assert run(folder, 4) == {epoch: float(epoch) for epoch in range(left[-1] + 1, 5)}
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mgg: warning: ")]
    assert len(told) == damaged and all(
        any(each.name in line for line in told) for each in made[len(made) - damaged :]
    )
