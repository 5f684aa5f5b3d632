"""summary.json: times of the slowest rank, counts of all ranks, each under its own name; and the ranks' traces."""

from __future__ import annotations

import gzip
from types import SimpleNamespace

import numpy as np
import pytest
import runs
from jobs import blocks

from mgg_hpc.nn.graph import transfer
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training.history import BatchCounts, History
from mgg_hpc.training.job import build
from mgg_hpc.training.metrics import Scores
from mgg_hpc.training.profile import profiler
from mgg_hpc.training.summary import summarise

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_made_up_histories_are_put_together(comm, stored, mode):
    train = {"seed": 12} | ({"mode": mode, "fanouts": [3, 2], "batch_size": 11} if mode == "sampled" else {})
    job = build(runs.settings(stored("g", blocks(90)), train=train, model={"hidden": 4}), comm)
    rank, last = comm.rank, comm.size - 1
    history = History(
        epoch_ms=[3.0, 1.0, 2.5],
        eval_ms=[6.0, 4.0, 5.5],
        # The slowest in one epoch is the first rank, in another the last; ranks may have replayed some.
        aggregate_ms=[10.0 + rank, 30.0 - rank, 20.0][: 3 if rank else 2],
        moved=Meter(local_bytes=1 + rank, remote_bytes=10 + rank, remote_rows=100 + rank, messages=rank),
        best_epoch=2,
        scores=Scores(0.1, 0.2, 0.3, 0.4, (0.5, 0.6, 0.7)),
        loss=0.8,
        timed_epochs=3,
        phases={"aggregate": 0.5 + rank},
        batches=BatchCounts(batches=6, edges=60 + rank, rows=30 + rank, waited=0.25 * (last - rank)),
        recorded=True,
        not_recorded="why",
    )
    job.phases.seconds = {"read": 1.0 + rank, "plan": 5.0 - rank}
    graph, need = SimpleNamespace(heap_bytes=77), SimpleNamespace(peak=900 + rank)
    found = summarise(job, graph, history, need, SimpleNamespace(read=lambda heap: heap + rank))
    job.backend.memory.close()
    total = comm.size * last // 2  # of the ranks' numbers
    with mpi.agree(comm):
        wanted = {
            "ranks": comm.size,
            "seed": 12,
            "epochs": 3,
            "timed_epochs": 3,
            "best_epoch": 2,
            "val_accuracy": 0.2,
            "test_accuracy": 0.3,
            "test_macro_f1": 0.7,
            "final_loss": 0.8,
            "start_ms": {"read": 1e3 * (1.0 + last), "plan": 5e3},
            "epoch_ms": {"min": 1.0, "median": 2.5, "max": 3.0},
            "eval_ms": {"min": 4.0, "median": 5.5, "max": 6.0},
            "aggregate_ms": {"min": 10.0 + last, "median": 20.0 + last / 2, "max": 30.0},
            "bytes": {"local": comm.size + total, "remote": 10 * comm.size + total},
            "remote_rows": 100 * comm.size + total,
            "messages": total,
            "peak_rss_bytes": [77 + each for each in range(comm.size)],
            "estimated_bytes": [900 + each for each in range(comm.size)],
            "heap_bytes": 77,
            "cuda_graph": True,
            "cuda_graph_failure": "why",
        }
        assert {name: found[name] for name in wanted} == wanted
        for number, each in enumerate(found["per_rank"]):
            assert each["bytes"] == {"local": 1 + number, "remote": 10 + number}
            assert each["remote_rows"] == 100 + number
            assert each["phases_ms"] == {"aggregate": 500.0 + 1000 * number}
            assert each["rows"] == found["bounds"][number + 1] - found["bounds"][number]
        if mode == "sampled":
            epochs = 6 / found["batches"]
            drawn = {"edges": 60 * comm.size + total, "rows": 30 * comm.size + total}
            drawn = {name: round(count / epochs) for name, count in drawn.items()}
            told = {"fanouts": [3, 2], "batch_size": 11, "wait_ms": 250 * last / epochs}
            assert found["sampled"] == told | drawn


def test_a_transfer_is_chosen_by_what_the_slowest_rank_would_take(comm, stored, monkeypatch):
    """Direct takes most ranks 1 s, and the last one 6 s; a halo takes all of them 5 s, and gets 9 s."""
    last = comm.rank == comm.size - 1
    seconds = {"direct": 6.0 if last else 1.0, "halo": 5.0, "get": 9.0}
    forward = {name: [each / 2, each / 4] for name, each in seconds.items()}
    backward = {name: [0.0, each / 4] for name, each in seconds.items()}
    passes = iter([forward, backward])
    monkeypatch.setattr(transfer.cost_model, "transfer_seconds", lambda *given: next(passes))
    monkeypatch.setattr(transfer.row_costs, "measure", lambda *given: dict.fromkeys(seconds))
    path = stored("g", blocks(90))
    job = build(runs.settings(path, model={"hidden": 4}), comm)
    job.backend.memory.close()
    with mpi.agree(comm):
        chosen = "halo" if comm.size > 1 else "direct"
        assert job.transfer.transfers == (chosen, chosen)
        if comm.size > 1:
            each = "direct 3000.0 + 3000.0, get 4500.0 + 4500.0, halo 2500.0 + 2500.0"
            assert job.transfer.why == f"remote rows, ms an epoch by layer: {each}"


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 1000])
def test_traces_cross_in_pieces(comm, folder, monkeypatch, size):
    monkeypatch.setattr(profiler, "BLOCK", 7)
    every = comm.allgather(np.random.default_rng(comm.rank).bytes(size))
    profiler._write_traces(comm, every[comm.rank], folder if comm.rank == 0 else None)
    comm.Barrier()
    found = {path.name: gzip.decompress(path.read_bytes()) for path in (folder / "profile").iterdir()}
    with mpi.agree(comm):
        assert found == {f"rank-{rank}.json.gz": content for rank, content in enumerate(every)}
