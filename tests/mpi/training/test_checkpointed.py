"""`checkpointed`: a loop of one's own that is stopped goes on with the same bits, on as many ranks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from jobs import blocks
from mpi4py import MPI
from torture.launched import assert_same

import mgg_hpc as mgg
from mgg_hpc.errors import InputError, StoppedBySignal
from mgg_hpc.runtime import mpi, signals
from mgg_hpc.training.checkpoints.loop import checkpointed

pytestmark = pytest.mark.mpi

EPOCHS = 9
OPTIMIZERS = {
    "adam": lambda given: torch.optim.Adam(given, lr=0.01),
    "momentum": lambda given: torch.optim.SGD(given, lr=0.05, momentum=0.9),
}


class Net(torch.nn.Module):
    """Two layers with dropout that counts its own draws, torch's, which draws as many as a rank has rows, and a batch
    norm.
    """

    def __init__(self, graph: mgg.DistGraph):
        super().__init__()
        self.first = mgg.nn.SAGEConv(5, 8)
        self.norm = mgg.nn.BatchNorm(8)
        self.dropout, self.torchs = mgg.nn.Dropout(0.4), torch.nn.Dropout(0.1)
        self.second = mgg.nn.GATConv(8, graph.num_classes, dropout=0.2)

    def forward(self, rows: torch.Tensor, graph: mgg.DistGraph) -> torch.Tensor:
        h = self.norm(self.first(rows, graph), graph).relu()
        return self.second(self.torchs(self.dropout(h, graph)), graph)


@pytest.fixture
def loop(comm, stored, listening):
    """loop(folder, stop_at, optimizer): (weights, losses, extra) after all epochs; a signal comes in one of them."""

    def loop(folder: Path, stop_at: int = 0, kind: str = "adam") -> tuple[dict, list[float], dict]:
        graph = mgg.open(stored("g", blocks()), backend="shm", threads=1, comm=comm)
        mgg.manual_seed(4)
        model = Net(graph)
        # Learned, and the same on any number of ranks at first.
        rows = torch.nn.Parameter(torch.sin(torch.as_tensor(graph.ids)[:, None] + torch.arange(5.0)))
        optimizer = OPTIMIZERS[kind]([*model.parameters(), rows])
        losses = []
        try:
            with mgg.checkpointed(
                model, optimizer, folder, every=4, rows={"rows": rows}, ids=graph.ids, comm=comm
            ) as state:
                for epoch in state.epochs(EPOCHS):
                    if epoch == stop_at and comm.rank == 0:
                        signals._note(signal.SIGUSR1, None)
                    optimizer.zero_grad()
                    loss = graph.loss(model(rows, graph), F.cross_entropy)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                    state.extra["losses"] = [*state.extra.get("losses", []), loss.item()]
            return model.state_dict() | {"rows": rows.detach()}, losses, state.extra
        finally:
            graph.close()

    return loop


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_loop_that_was_stopped_ends_with_the_same_bits(loop, folder, kind):
    whole, losses, _ = loop(folder / "whole", kind=kind)
    with pytest.raises(StoppedBySignal, match="after epoch 6, which is saved"):
        loop(folder / "parts", 6, kind)
    signals._first.clear()
    resumed, rest, extra = loop(folder / "parts", kind=kind)
    assert rest == losses[6:]
    assert extra["losses"] == losses
    assert_same(whole, resumed)
    _, nothing, again = loop(folder / "parts", kind=kind)
    assert nothing == [] and again["losses"] == losses


@pytest.fixture
def state_of(folder, listening):
    """The state of a loop that trains ``model`` by SGD."""

    def state_of(model: torch.nn.Module, comm: MPI.Intracomm, **more: object) -> checkpointed:
        return mgg.checkpointed(model, torch.optim.SGD(model.parameters(), lr=0.1), folder, comm=comm, **more)

    return state_of


def test_the_generators_of_all_ranks_are_kept(comm, state_of, monkeypatch):
    """CPU and GPU: each rank gets its own again, and another number of ranks, or an older checkpoint, rank 0's."""
    on_gpu = {"state": torch.full((16,), comm.rank, dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: on_gpu["state"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: on_gpu.update(state=state.clone()))
    model = torch.nn.Linear(2, 2)
    mgg.manual_seed(9)
    torch.rand(7 * comm.rank)

    def began(ranks: MPI.Intracomm) -> tuple[torch.Tensor, torch.Tensor]:
        with state_of(model, ranks) as state:
            found = torch.get_rng_state(), on_gpu["state"]
            list(state.epochs(1))
        torch.rand(3), on_gpu.update(state=on_gpu["state"] + 1)
        return found

    wanted = began(comm)
    found, of_first = began(comm), comm.bcast(wanted, root=0)
    alone = began(MPI.COMM_SELF)
    state_of(model, comm)._restore_generators({"torch's random state": of_first[0]})
    with mpi.agree(comm):
        assert all(map(torch.equal, found, wanted)) and all(map(torch.equal, alone, of_first))
        assert torch.equal(torch.get_rng_state(), of_first[0])


def test_what_does_not_fit_is_refused_by_name(comm, state_of, tmp_path):
    model = torch.nn.Linear(3, 2)
    with pytest.raises(ValueError, match="ids of this rank's nodes"):
        state_of(model, comm, rows={"w": model.weight})
    with state_of(model, comm) as state:
        list(state.epochs(1))
    said = r"model.weight is float32 \[2, 3\], and the job's model has float32 \[2, 4\]"
    with pytest.raises(InputError, match=said), state_of(torch.nn.Linear(4, 2), comm) as state:
        list(state.epochs(2))
    # On one rank: on several, the first one's error ends all.
    optimizer = torch.optim.Adam(model.parameters())
    with (
        pytest.raises(TypeError, match=r"Tensor is not JSON serializable; state\.extra"),
        mgg.checkpointed(model, optimizer, tmp_path, comm=MPI.COMM_SELF) as state,
    ):
        for _ in state.epochs(2):
            state.extra["x"] = torch.zeros(2)
