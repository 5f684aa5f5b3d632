"""Embedding bags over several ranks against torch's over the bags of all of them."""

from __future__ import annotations

from functools import partial

import embeddings
import numpy as np
import pytest
import torch
from embeddings import OPTIONS, WAYS
from torch import Tensor

import mgg_hpc as mgg
from mgg_hpc import sizes
from mgg_hpc.errors import InputError
from mgg_hpc.nn.embedding import rows as sharded

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("option", "way"),
    [
        pytest.param(
            option, way, id=f"{option}-{way}", marks=[] if way == WAYS[number % 3] else pytest.mark.long
        )
        for number, option in enumerate(OPTIONS)
        for way in WAYS
    ],
)
def test_bags_are_those_of_torch(comm, rng, option, way):
    embeddings.check_all(rng, comm, option, way)


@pytest.mark.parametrize("way", ["auto", "sent", "tiers"])
@pytest.mark.parametrize("name", embeddings.OPTIMIZERS)
def test_optimisers_are_those_of_torch(comm, rng, name, way):
    embeddings.check_optimizer(rng, comm, name, way)


@pytest.mark.parametrize("way", ["auto", "tiers"])
def test_a_collection_is_its_tables(comm, rng, way):
    embeddings.check_collection(rng, comm, way)


def test_the_same_bits_in_every_run_and_however_rows_are_read(comm, rng):
    rows = torch.from_numpy(rng.standard_normal((embeddings.ROWS, embeddings.DIM)).astype("f4"))
    cases = [embeddings.draw(rng, "mixed", comm.size, weights=False)[comm.rank] for _ in range(5)]
    found = []
    for way in ("distinct", "direct", "auto", "sent", "tiers", "distinct"):
        bags = embeddings.opened(comm, rows, way, freeze=False, optimizer=mgg.nn.RowWiseAdagrad(0.1))
        for case in cases:
            bags(*case.arguments(torch.int64, include_last=False)).square().sum().backward()
        found.append(bags.gathered()["weight"])
        bags.close()
    assert all(torch.equal(each, found[0]) for each in found)
    assert not torch.equal(found[0], rows)
    assert all(torch.equal(each, found[0]) for each in comm.allgather(found[0]))


def test_initial_rows_are_the_same_on_any_number_of_ranks(comm, rng):
    from mpi4py import MPI

    torch.manual_seed(5)
    alone = mgg.nn.ShardedEmbeddingBag(1001, 3, comm=MPI.COMM_SELF)
    torch.manual_seed(5 if comm.rank == 0 else comm.rank)
    shared = mgg.nn.ShardedEmbeddingBag(1001, 3, comm=comm)
    assert torch.equal(alone.weight, shared.gathered()["weight"])
    shared.close()


@pytest.mark.parametrize("tiers", [{}, {"near": 99}])
def test_a_collection_loads_what_is_gathered(comm, rng, tiers):
    sizes_of = {"a": (7, 3), "b": (50, 3), "c": (20, 2), "d": (1, 3)}
    tables = [mgg.nn.TableConfig(name, *size, [f"f{name}"]) for name, size in sizes_of.items()]
    bags = mgg.nn.ShardedEmbeddingBagCollection(tables, optimizer=mgg.nn.SGD(1), comm=comm, **tiers)
    drawn = {
        name: torch.from_numpy(rng.standard_normal(size).astype("f4")) for name, size in sizes_of.items()
    }
    state = {f"embedding_bags.{name}.weight": rows for name, rows in drawn.items()}
    torch.nn.ModuleDict({"bags": bags}).load_state_dict(
        {f"bags.{name}": rows for name, rows in state.items()}
    )
    found = bags.gathered()
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)
    bags.close()


def test_errors_of_one_rank_are_those_of_all(comm, rng, monkeypatch):
    last, differ = comm.rank == comm.size - 1, "pass the same on all"
    bag = partial(mgg.nn.ShardedEmbeddingBag, comm=comm)
    collection = partial(mgg.nn.ShardedEmbeddingBagCollection, comm=comm)
    tables, bags = [mgg.nn.TableConfig("t", 9, 4, ["a", "b"])], bag(10, 3)
    found, two, one = collection(tables), torch.tensor([0, 1]), (torch.tensor([1]), torch.tensor([1]))
    whole, rows = {"weight": torch.zeros(10, 3)}, {"embedding_bags.t.weight": torch.zeros(9 - last, 4)}

    def other(state: dict, change):
        return {name: change(rows) for name, rows in state.items()} if last else state

    theirs = [renamed("aa" if last else "ab")], [renamed("ac" if last else "ab")]
    for said, call in (
        ("bag 1 has index 11; expected 0 to 9", lambda: bags(torch.tensor([1, 11 if last else 2]), two)),
        (
            r"weight is \[11, 3\]; expected",
            lambda: bags.load_state_dict({"weight": torch.zeros(10 + last, 3)}),
        ),
        ("weight is ndarray; expected", lambda: bags.load_state_dict(other(whole, np.asarray))),
        (
            "weight is torch.sparse_coo; expected",
            lambda: bags.load_state_dict(other(whole, Tensor.to_sparse)),
        ),
        ("t.weight is ndarray; expected", lambda: found.load_state_dict(other(found.gathered(), np.asarray))),
        (f"'freeze': True.*{differ}", lambda: bag.func.from_pretrained(whole["weight"], last, comm=comm)),
        (f"all rows to load .*{differ}", lambda: bags.load_state_dict(bags.state_dict() if last else whole)),
        (f"of rank {comm.size - 1} are .*{differ}", lambda: bag(10 + last, 3)),
        ("the batch lacks b", lambda: found({"a": one} if last else {"a": one, "b": one})),
        (r"feature b is \[1\]; expected", lambda: found({"a": one, "b": one[0] if last else one})),
        (
            r"t.weight is \[8, 4\]; expected a dense tensor of all rows \[9, 4\]",
            lambda: found.load_state_dict(rows),
        ),
        (f"tables to load .*{differ}", lambda: found.load_state_dict(found.state_dict() if last else rows)),
        ("mode is ", lambda: bag(10, 3, mode="min" if last else "mean")),
        ("way is ", lambda: bag(10, 3, way="fast" if last else "auto")),
        ("padding_idx is ", lambda: bag(10, 3, padding_idx=10 if last else None)),
        ("max_norm=", lambda: bag(10, 3, max_norm=1.0 if last else None)),
        ("each feature needs a name of its own", lambda: collection(theirs[0])),
        (f"tables of rank {comm.size - 1} are .*{differ}", lambda: collection(theirs[1])),
    ):
        with pytest.raises(InputError, match=said):
            call()
    assert bags(two, two).shape == (2, 3)  # goes on
    bags.close()
    found.close()
    monkeypatch.setattr(sharded.cores, "memory_available", lambda: 10 if last else 1 << 40)
    here = sizes.shown(comm.size * -(-1000 // comm.size) * 16)
    with pytest.raises(InputError, match=f"need {here} on this node, and 10 B are available"):
        bag(1000, 4)


def renamed(features: str) -> mgg.nn.TableConfig:
    return mgg.nn.TableConfig("t", 9, 4, [*features])


def test_rows_and_bytes_that_cross_are_those_of_the_batch(comm, rng):
    ids = rng.integers(0, embeddings.ROWS, (comm.size, 200))[comm.rank]
    for way in (*WAYS, "tiers"):
        bags = embeddings.opened(comm, torch.zeros(embeddings.ROWS, 4), way, mode="sum")
        meter = bags.rows.backend.stream.meter
        meter.taken()
        bags(torch.from_numpy(ids), torch.arange(200))
        read = ids if way == "direct" else np.unique(ids)
        own = np.count_nonzero((read >= bags.rows.first) & (read < bags.rows.last))
        assert (meter.local_bytes, meter.remote_bytes) == (16 * own, 16 * (len(read) - own))
        bags.close()


@pytest.mark.parametrize("folder", ["", "/dev/shm"])
def test_memory_of_tiers_is_that_of_all_ranks_of_a_node(comm, monkeypatch, folder):
    """Also of scratch files, on a tmpfs."""
    monkeypatch.setattr("mgg_hpc.runtime.cores.memory_available", lambda: 64 << 20)
    near, rows = ("1M", 400_000) if folder else (f"{96 // comm.size}M", 800_000)
    how = {"near": near, "optimizer": mgg.nn.SGD(0.1), "comm": comm, "folder": folder or None}
    with pytest.raises(InputError, match=f"of this node, with near='{near}' on each of {comm.size} ranks"):
        mgg.nn.ShardedEmbeddingBag(rows, 64, **how)
    mgg.nn.ShardedEmbeddingBag(1000, 64, **how).close()
