"""Cases of embedding bags on some ranks, and what torch gives for the bags of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import mgg_hpc as mgg
from mgg_hpc.nn.embedding import rows as sharded

ROWS, DIM = 41, 6
SHAPES = ("mixed", "single", "2-D", "all remote", "a rank without bags", "nothing")
WAYS = ("distinct", "direct", "sent")
OPTIONS = [
    {"mode": "sum"},
    {"mode": "mean"},
    {"mode": "max"},
    {"mode": "sum", "padding_idx": 3},
    {"mode": "mean", "padding_idx": -1},
    {"mode": "max", "padding_idx": 0},
    {"mode": "sum", "include_last_offset": True},
    {"mode": "mean", "include_last_offset": True},
    {"mode": "sum", "weights": True},
    {"mode": "sum", "weights": True, "padding_idx": 5},
]


@dataclass
class Case:
    """The input of one rank: entries and lengths of bags, or entries [B, L]; and weights or None."""

    ids: np.ndarray
    lengths: np.ndarray | None
    weights: np.ndarray | None

    def arguments(self, kind: torch.dtype, *, include_last: bool) -> tuple[Tensor, Tensor | None]:
        """Return input and offsets."""
        if self.lengths is None:
            return torch.from_numpy(self.ids).to(kind), None
        offsets = np.concatenate([[0], np.cumsum(self.lengths)])[: None if include_last else -1]
        return torch.from_numpy(self.ids).to(kind), torch.from_numpy(offsets).to(kind)


def draw(rng: np.random.Generator, shape: str, ranks: int, *, weights: bool) -> list[Case]:
    """Return the input of each rank. Half of the entries are of few rows, so that there are duplicates."""
    cases = []
    for rank in range(ranks):
        bags = 0 if shape == "nothing" or (shape.startswith("a rank") and rank == ranks - 1) else 23
        lengths = rng.integers(0, 6, bags) if shape != "single" else np.ones(bags, np.int64)
        ids = rng.integers(0, ROWS, int(lengths.sum()))
        ids = np.where(rng.random(len(ids)) < 0.5, ids % 4, ids)
        if shape == "all remote":  # none of this rank's range
            first, last = ROWS * rank // ranks, ROWS * (rank + 1) // ranks
            others = np.setdiff1d(np.arange(ROWS), np.arange(first, last)) if ranks > 1 else np.arange(ROWS)
            ids = others[ids % len(others)]
        if shape == "2-D":
            lengths, ids = None, rng.integers(0, ROWS, (bags, 3))
        drawn = rng.integers(-3, 4, ids.shape).astype("f4") if weights else None
        cases.append(Case(ids, lengths, drawn))
    return cases


def numbers(rng: np.random.Generator, shape: tuple[int, ...], *, whole: bool) -> Tensor:
    """Return integers, of which each sum is exact, or normal numbers."""
    drawn = rng.integers(-4, 5, shape) if whole else rng.standard_normal(shape)
    return torch.from_numpy(drawn.astype("f4"))


def check_all(rng, comm, option: dict, way: str) -> None:
    """Compare bags of each shape with torch's, of whole and of other numbers. comm: None for one process."""
    option = dict(option)
    weights, last = option.pop("weights", False), option.get("include_last_offset", False)
    found = opened(comm, torch.zeros(ROWS, DIM), way, freeze=False, **option)
    for number, shape in enumerate(SHAPES):
        if not (shape == "2-D" and last):
            for whole in (True, False):
                kind = (torch.int32, torch.int64)[(number + whole) % 2]
                cases = draw(rng, shape, comm.size if comm else 1, weights=weights)
                check(rng, found, comm, cases, option, whole, kind)
    found.close()


def check(rng, found, comm, cases: list[Case], option: dict, whole: bool, kind: torch.dtype) -> None:
    """Compare outputs and gradients of this rank with torch's over the bags of all ranks. kind: of indices."""
    rank, last = comm.rank if comm else 0, option.get("include_last_offset", False)
    weighted = cases[0].weights is not None
    rows = numbers(rng, (ROWS, DIM), whole=whole)
    expected = torch.nn.EmbeddingBag(ROWS, DIM, **option)
    expected.load_state_dict({"weight": rows})
    found.load_state_dict({"weight": rows})
    found.weight.grad = None
    for number, case in enumerate(cases):
        given = case.weights
        sample = [None if given is None else torch.from_numpy(given).requires_grad_() for _ in "12"]
        arguments = case.arguments(kind, include_last=last)
        out = expected(*arguments, per_sample_weights=sample[0])
        gradient = numbers(rng, tuple(out.shape), whole=whole)
        (out * gradient).sum().backward()
        if number == rank:
            mine = found(*arguments, per_sample_weights=sample[1])
            alike(mine, out, whole=whole and option["mode"] != "mean")
            mine.backward(gradient)
            if weighted:
                alike(sample[1].grad, sample[0].grad, whole=whole)
    mine = expected.weight.grad[found.bounds[rank] : found.bounds[rank + 1]]
    alike(found.weight.grad.to_dense(), mine, whole=whole and option["mode"] != "mean")
    named = found.weight.grad._indices()[0]  # torch may forget that a gradient is coalesced
    assert len(named.unique()) == len(named)


def alike(found: Tensor, expected: Tensor, *, whole: bool) -> None:
    """Compare to rounding, or exactly."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    most = 0 if whole else 1e-5
    np.testing.assert_allclose(found.detach(), expected.detach(), rtol=most, atol=most)


def opened(comm, rows: Tensor, way: str, **options):
    """Return a ShardedEmbeddingBag over the rows.

    way: "sent" is as between ranks whose rows no pointer reaches, "tiers" has some rows of each rank in a file.
    """
    if way == "tiers":
        options |= {"near": 200, "score": np.random.default_rng(1).permutation(ROWS)}
    with pytest.MonkeyPatch.context() as patched:
        if way == "sent":
            patched.setattr(sharded.mpi, "node", lambda _: SimpleNamespace(size=1))
        how = "distinct" if way in ("sent", "tiers") else way
        found = mgg.nn.ShardedEmbeddingBag.from_pretrained(rows, way=how, comm=comm, **options)
    assert found.rows.pointers == (way not in ("sent", "tiers"))
    assert way != "tiers" or 0 < found.rows.tiers._table.tiers[0].slots < len(found.rows.tiers)
    return found


# ---- optimisers

OPTIMIZERS = ("SGD", "Adagrad", "RowWiseAdagrad")


def check_optimizer(rng, comm, name: str, way: str) -> None:
    """Compare 20 steps with torch.optim's, and with the formula in float64."""
    ranks, rank = (comm.size, comm.rank) if comm else (1, 0)
    rows = numbers(rng, (ROWS, DIM), whole=False)
    eps = {} if name == "SGD" else {"eps": 0.03}
    optimizer = getattr(mgg.nn, name)(0.1, **eps)
    found = opened(comm, rows, way, freeze=False, mode="sum", optimizer=optimizer)
    theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    theirs.load_state_dict({"weight": rows})
    of_torch = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}.get(name)
    state = of_torch([theirs.weight], lr=0.1, **eps) if of_torch else None
    wide, kept = rows.double().numpy(), np.zeros((ROWS, 1 if name.startswith("Row") else DIM))
    for step in range(20):
        optimizer.lr = 0.1 / (1 + step)
        cases = draw(rng, "mixed", ranks, weights=False)
        gradients = [numbers(rng, (len(case.lengths), DIM), whole=False) for case in cases]
        total, named = np.zeros((ROWS, DIM)), np.concatenate([case.ids for case in cases])
        for case, gradient in zip(cases, gradients, strict=True):
            np.add.at(total, case.ids, np.repeat(gradient.double().numpy(), case.lengths, 0))
        if name != "SGD":
            squares, there = total**2, np.unique(named)
            kept[there] += (squares.mean(1, keepdims=True) if kept.shape[1] == 1 else squares)[there]
        wide -= optimizer.lr * total / (np.sqrt(kept) + 0.03 if name != "SGD" else 1)
        found(*cases[rank].arguments(torch.int64, include_last=False)).backward(gradients[rank])
        if state:
            state.param_groups[0]["lr"] = optimizer.lr
            state.zero_grad()
            for case, gradient in zip(cases, gradients, strict=True):
                theirs(*case.arguments(torch.int64, include_last=False)).backward(gradient)
            state.step()
    whole = found.gathered()["weight"]
    np.testing.assert_allclose(whole, wide, rtol=1e-5, atol=2e-6)
    if state:
        np.testing.assert_allclose(whole, theirs.weight.detach(), rtol=1e-5, atol=2e-6)
    assert found.weight.grad is None
    found.close()


# ---- collections


class Jagged:
    """The fields of TorchRec's KeyedJaggedTensor."""

    def __init__(self, features: dict) -> None:
        self._features = features

    def keys(self):
        return list(self._features)

    def values(self):
        return torch.cat([values for values, _ in self._features.values()])

    def lengths(self):
        return torch.cat([lengths for _, lengths in self._features.values()])

    def weights_or_none(self):
        return None


def check_collection(rng, comm, way: str) -> None:
    """Compare features of tables of two widths, both poolings and a shared table with torch's bags, table by table."""
    ranks, rank = (comm.size, comm.rank) if comm else (1, 0)
    tables = [
        mgg.nn.TableConfig("t", 9, 4, ["a", "b"]),
        mgg.nn.TableConfig("u", 30, 4, ["c"], "mean"),
        mgg.nn.TableConfig("v", 17, 5, ["d"]),
        mgg.nn.TableConfig("w", 2, 5, ["e"]),
    ]
    how = {"way": way}
    if way == "tiers":  # of both widths
        how = {"near": 600, "score": {t.name: lambda first, last: np.arange(last, first, -1) for t in tables}}
    found = mgg.nn.ShardedEmbeddingBagCollection(tables, optimizer=mgg.nn.SGD(0.5), comm=comm, **how)
    theirs = {
        table.name: torch.nn.EmbeddingBag(table.num_embeddings, table.embedding_dim, mode=table.pooling)
        for table in tables
    }
    for name, weight in found.gathered().items():
        theirs[name.split(".")[1]].load_state_dict({"weight": weight})
    for turn in range(2):
        batches = [{} for _ in range(ranks)]
        for table in tables:
            for feature in table.feature_names:
                for batch in batches:
                    lengths = rng.integers(0, 4, 11) if turn else np.ones(11, np.int64)
                    values = rng.integers(0, table.num_embeddings, int(lengths.sum()))
                    batch[feature] = torch.from_numpy(values), torch.from_numpy(lengths)
        outs = found(Jagged(batches[rank]) if turn else batches[rank])
        assert set(outs) == set("abcde")
        loss = torch.zeros(())
        for number, batch in enumerate(batches):
            for table in tables:
                for feature in table.feature_names:
                    values, lengths = batch[feature]
                    out = theirs[table.name](values, torch.cumsum(lengths, 0) - lengths)
                    loss = loss + (ord(feature) * out.square()).sum()
                    if number == rank:
                        alike(outs[feature], out, whole=False)
        sum((ord(name) * out.square()).sum() for name, out in outs.items()).mul(1e-3).backward()
        for each in theirs.values():
            each.zero_grad()
        (loss * 1e-3).backward()
        for name, weight in found.gathered().items():
            each = theirs[name.split(".")[1]].weight
            each.data.sub_(0.5 * each.grad)
            alike(weight, each, whole=False)
    found.close()
