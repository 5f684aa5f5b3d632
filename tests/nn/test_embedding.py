"""Embedding bags of one process against torch's."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import embeddings
import numpy as np
import pytest
import torch
from data.graphs import refused
from embeddings import OPTIONS

import mgg_hpc as mgg
from mgg_hpc import sizes
from mgg_hpc.nn.embedding import rows as sharded
from mgg_hpc.nn.workspace import as_tensor

ROWS, DIM = embeddings.ROWS, embeddings.DIM


@pytest.mark.parametrize("way", ["distinct", "direct"])
@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_bags_are_those_of_torch(rng, option, way):
    embeddings.check_all(rng, None, option, way)


@pytest.mark.parametrize("way", ["auto", "tiers"])
@pytest.mark.parametrize("name", embeddings.OPTIMIZERS)
def test_optimisers_are_those_of_torch(rng, name, way):
    embeddings.check_optimizer(rng, None, name, way)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_other_types(rng, dtype):
    rows = torch.from_numpy(rng.integers(-4, 5, (ROWS, 5))).to(dtype)
    (case,) = embeddings.draw(rng, "mixed", 1, weights=False)
    arguments = case.arguments(torch.int64, include_last=False)
    for mode in ("sum", "max"):
        for way in ("distinct", "direct"):
            found = mgg.nn.ShardedEmbeddingBag.from_pretrained(rows, mode=mode, freeze=False, way=way)
            expected = torch.nn.EmbeddingBag.from_pretrained(rows.double(), mode=mode, freeze=False)
            out = found(*arguments)
            assert out.dtype == dtype and torch.equal(out.double(), expected(*arguments))
            out.sum().backward()
            expected(*arguments).sum().backward()
            assert torch.equal(found.weight.grad.to_dense().double(), expected.weight.grad)
    sgd = mgg.nn.ShardedEmbeddingBag.from_pretrained(rows, mode="sum", freeze=False, optimizer=mgg.nn.SGD(1))
    sgd(*arguments).sum().backward()
    counts = np.bincount(case.ids, minlength=ROWS)
    assert torch.equal(sgd.weight.double(), rows.double() - torch.from_numpy(counts)[:, None])


@pytest.mark.parametrize("way", ["auto", "tiers"])
def test_a_collection_is_its_tables(rng, way):
    embeddings.check_collection(rng, None, way)


@pytest.mark.parametrize("optimizer", [mgg.nn.SGD, mgg.nn.Adagrad, mgg.nn.RowWiseAdagrad])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [5, 8])
def test_rows_in_tiers_are_rows_in_memory_bit_by_bit(rng, tmp_path, monkeypatch, optimizer, dtype, dim):
    """What the optimiser keeps of a row, too, which has a wider type than halves."""
    rows = torch.from_numpy(rng.standard_normal((ROWS, dim))).to(dtype)
    found = []
    monkeypatch.setattr(sharded, "PART", 7 * dim * rows.itemsize)  # what is saved is copied in parts
    cases = [embeddings.draw(rng, "mixed", 1, weights=False)[0] for _ in range(5)]
    for tiers in ({}, {"near": 9 * dim * rows.itemsize, "folder": tmp_path, "score": rng.random(ROWS)}):
        how = {"mode": "sum", "freeze": False, "optimizer": optimizer(0.1)}
        bags = mgg.nn.ShardedEmbeddingBag.from_pretrained(rows, **how, **tiers)
        for case in cases:
            bags(*case.arguments(torch.int64, include_last=False)).square().sum().backward()
        found.append([bags.gathered()["weight"], *map(as_tensor, bags.rows.saved().values())])
    assert bags.rows.tiers.stats()["file"]["rows"] and bags.rows.tiers.stats()["near"]["rows"]
    assert len(found[0]) == len(found[1]) and all(map(torch.equal, *found))
    assert not torch.equal(found[0][0], rows)


def test_a_planned_batch_is_taken_and_direct_reads_each_entry(rng):
    """Rows that are read: distinct ones, or one for each entry."""
    ids, lengths = torch.from_numpy(rng.integers(0, 9, 60)), torch.ones(20, dtype=torch.int64)
    tables = [mgg.nn.TableConfig("t", 9, 4, ["a", "b"]), mgg.nn.TableConfig("u", 99, 4, ["c"])]
    batch = {name: (ids[at : at + 20], lengths) for name, at in (("a", 0), ("b", 20), ("c", 40))}
    ends = torch.cat([ids[:40], ids[40:] + 9])
    for way, rows in (("distinct", len(ends.unique())), ("direct", 60)):
        found = mgg.nn.ShardedEmbeddingBagCollection(tables, way=way)
        meter = found.rows[4].backend.stream.meter
        out = found.stacked(found.plan(batch))
        assert meter.local_bytes == rows * 4 * 4 and meter.remote_bytes == 0
        assert torch.equal(out, torch.stack(list(found(batch).values())))


def test_the_faster_way_is_measured_once_and_its_trials_are_not_counted(rng):
    bags, ids = mgg.nn.ShardedEmbeddingBag(9, 4, mode="sum"), torch.from_numpy(rng.integers(0, 9, 60))
    meter, faster = bags.rows.backend.stream.meter, bags._pooling._faster
    bags(ids, torch.arange(60))
    assert faster.keys() == {True} and meter.local_bytes in (60 * 16, 16 * len(ids.unique()))
    with torch.no_grad():
        bags(ids, torch.arange(60))
    assert faster.keys() == {True, False} and set(faster.values()) <= {"distinct", "direct"}


def test_a_batch_without_entries_does_not_choose_how_rows_are_read():
    bags = mgg.nn.ShardedEmbeddingBag(ROWS, DIM)
    assert not bags(torch.empty(4, 0, dtype=torch.int64)).any() and not bags._pooling._faster
    bags(torch.zeros(4, 2, dtype=torch.int64))
    assert bags._pooling._faster


def test_jagged_lengths_that_are_no_integers():
    jagged = SimpleNamespace(
        keys=lambda: ["f"],
        values=lambda: torch.zeros(3, dtype=torch.int64),
        lengths=lambda: torch.tensor([1.0, 2.0]),
        weights_or_none=lambda: None,
    )
    bags = mgg.nn.ShardedEmbeddingBagCollection([mgg.nn.TableConfig("t", 5, 4, ["f"])])
    with refused(
        "ShardedEmbeddingBagCollection: lengths: expected a tensor of int32 or int64, not torch.float32"
    ):
        bags(jagged)


def test_initial_rows_have_the_variance_of_torch(rng):
    bags = mgg.nn.ShardedEmbeddingBag(5000, 7, padding_idx=0)
    assert not bags.weight[0].any()
    assert (
        abs(float(bags.weight.detach().mean())) < 0.02 and abs(float(bags.weight.detach().std()) - 1) < 0.02
    )
    tables = [mgg.nn.TableConfig("t", 100, 8, ["a"]), mgg.nn.TableConfig("u", 10_000, 8, ["b"])]
    state = mgg.nn.ShardedEmbeddingBagCollection(tables).gathered()
    for name, rows in (("t", 100), ("u", 10_000)):
        most = float(state[f"embedding_bags.{name}.weight"].abs().max())
        assert 0.95 * rows**-0.5 < most <= rows**-0.5


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: mgg.nn.SGD("a"), "lr is 'a'; expected a finite number"),
        (lambda: mgg.nn.Adagrad(0.1, eps=-1), "eps is -1; expected a finite number"),
        (
            lambda: mgg.nn.ShardedEmbeddingBag(5, 4, padding_idx=1.0),
            "padding_idx 1.0; expected whole numbers",
        ),
        (lambda: mgg.nn.ShardedEmbeddingBag("a", 4, padding_idx=0), "num_embeddings is 'a'"),
        (lambda: mgg.nn.ShardedEmbeddingBagCollection(None), "tables are None; expected a list"),
        (lambda: scored([1, 2]), "score is 'list'; expected {table: score(first, last)}"),
        (lambda: scored({"t": [1, 2]}), "score is 'dict'; expected {table: score(first, last)}"),
        (lambda: scored({"u": np.arange}), "scores are of u; expected t"),
        (lambda: scored(None, None), "feature_names of table t are None; expected a list of names"),
        (lambda: scored(None, "ab"), "feature_names of table t are 'ab'; expected a list of names"),
    ],
)
def test_arguments_that_fit_nothing(made, said):
    with refused(re.escape(said)):
        made()


def scored(score, names=("f",)):
    tables = [mgg.nn.TableConfig("t", 5, 4, names)]
    mgg.nn.ShardedEmbeddingBagCollection(tables, optimizer=mgg.nn.SGD(1), near=9, score=score)


def test_state_is_that_of_torch(rng):
    bags = mgg.nn.ShardedEmbeddingBag(ROWS, DIM)
    theirs = torch.nn.EmbeddingBag(ROWS, DIM)
    theirs.load_state_dict(bags.state_dict())
    assert torch.equal(theirs.weight, bags.weight) and torch.equal(bags.gathered()["weight"], theirs.weight)


def test_frozen_rows_in_tiers_need_no_optimizer(rng, tmp_path):
    rows, ids = torch.from_numpy(rng.random((50, 3))), torch.from_numpy(rng.integers(0, 50, (6, 4)))
    make = partial(mgg.nn.ShardedEmbeddingBag.from_pretrained, rows, near=9 * 24, folder=tmp_path)
    bags = make()
    torch.testing.assert_close(bags(ids), torch.nn.EmbeddingBag.from_pretrained(rows)(ids))
    assert not bags(ids).requires_grad
    bags.weight.requires_grad_()
    with refused("were made without an optimizer="):
        bags(ids).sum().backward()
    bags.close()
    with refused("need an optimizer="):
        make(freeze=False)


@pytest.mark.parametrize("tiers", [{}, {"near": 99, "optimizer": mgg.nn.SGD(1)}])
@pytest.mark.parametrize("move", [lambda bags: bags.double(), lambda bags: bags.half()])
def test_rows_that_torch_has_moved_are_refused(move, tiers):
    bags = mgg.nn.ShardedEmbeddingBag(ROWS, DIM, **tiers)
    bags.float().cpu()(long(1), long(0))
    move(bags)
    with refused("embedding rows were moved to other memory"):
        bags(long(1), long(0))


def long(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_what_torch_refuses_or_has_otherwise_is_refused():
    bag = partial(mgg.nn.ShardedEmbeddingBag, 10, 3)
    for how, message in (
        ({"max_norm": 1.0}, "max_norm=1.0 is not supported"),
        ({"norm_type": 1.0}, "norm_type=1.0 is not supported"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True is not supported"),
        ({"sparse": False}, "sparse=False is not supported"),
        ({"mode": "min"}, "mode is 'min'; expected one of sum, mean, max"),
        ({"padding_idx": 10}, "padding_idx is 10, of 10 rows"),
        ({"way": "fast"}, "way is 'fast'; expected one of auto, distinct, direct"),
        (
            {"optimizer": torch.optim.SGD},
            "optimizer is 'type'; expected mgg.nn.SGD, mgg.nn.Adagrad, mgg.nn.RowWise",
        ),
        ({"dtype": torch.int64}, "dtype of embedding rows is torch.int64; expected a floating-point type"),
        ({"dtype": "float32"}, "dtype of embedding rows is 'float32'; expected a floating-point type"),
        ({"near": "1G"}, "embedding rows in tiers (near=) need an optimizer="),
        ({"folder": "/tmp"}, "folder and score are for embedding rows in tiers; pass near="),
        ({"near": 9, "score": np.ones(9), "optimizer": mgg.nn.SGD(1)}, "score is [9]; expected [10]"),
        ({"near": "much", "optimizer": mgg.nn.SGD(1)}, "near: 'much' is not a size"),
        ({"near": 9, "folder": "/nowhere", "optimizer": mgg.nn.SGD(1)}, "scratch folder /nowhere: No such"),
    ):
        with refused(re.escape(message)):
            bag(**how)
    bags = bag()
    for arguments, message in (
        ((long(1, 2, 10), long(0, 1)), "bag 1 has index 10; expected 0 to 9"),
        ((long(-1), long(0, 0)), "bag 1 has index -1"),
        ((long(1, 2), long(1)), "offsets begin at 1; expected 0"),
        ((long(1, 2), long(0, 2, 1)), "bag 1 begins at 2 and ends at 1, before it"),
        ((long(1, 2), long(0, 3)), "bag 1 begins at 3 and ends at 2"),
        ((long(1, 2), None), "input is [2]; expected [B, L], or [E] with offsets"),
        ((long(1, 2)[None], long(0)), "offsets are for an input [E]"),
        ((torch.ones(2), long(0)), "input: expected a tensor of int32 or int64, not torch.float32"),
        ((long(1, 2), [0]), "offsets: expected a tensor of int32 or int64, not list"),
        (([1, 2], long(0)), "input: expected a tensor of int32 or int64, not list"),
        ((long(1), long(0), torch.ones(1)), 'per_sample_weights are for mode "sum", and it is "mean"'),
    ):
        with refused(re.escape(message)):
            bags(*arguments)
    sums, last = bag(mode="sum"), bag(include_last_offset=True)
    made = mgg.nn.ShardedEmbeddingBag.from_pretrained
    for message, call in (
        ("per_sample_weights are [2], and the input is [1]", lambda: sums(long(1), long(0), torch.ones(2))),
        ("per_sample_weights are list, and the input is [1]", lambda: sums(long(1), long(0), [1.0])),
        ("the last offset is 1; expected 2, the number of entries", lambda: last(long(1, 2), long(0, 1))),
        ("embeddings are list; expected a dense tensor [rows, dim]", lambda: made([[1.0]])),
        ("embeddings are torch.sparse_coo; expected a dense tensor", lambda: made(torch.eye(2).to_sparse())),
        ("embedding rows are [10, 2.5]", lambda: mgg.nn.ShardedEmbeddingBag(10, 2.5)),
        (
            "weight is [9, 3]; expected a dense tensor of all",
            lambda: bags.load_state_dict({"weight": torch.zeros(9, 3)}),
        ),
        ("expected a finite number, at least 0", lambda: mgg.nn.SGD(-1)),
        ("in tiers are not in state_dict", lambda: bag(near=9, optimizer=mgg.nn.SGD(1)).state_dict()),
    ):
        with refused(re.escape(message)):
            call()
    bags.close()
    with refused("embedding rows are closed"):
        bags(long(1), long(0))


def test_batches_that_do_not_fit_a_collection_are_refused():
    tables = [mgg.nn.TableConfig("t", 9, 4, ["a", "b"]), mgg.nn.TableConfig("u", 5, 4, ["c"], "mean")]
    found = mgg.nn.ShardedEmbeddingBagCollection(tables)
    one = (long(1), long(1))
    full = dict.fromkeys("abc", one)
    for batch, message in (
        ({}, "the batch lacks a, b, c; its features are a, b, c"),
        (
            [one, one, one],
            "the batch is a list; expected {feature: (values, lengths)} or a KeyedJaggedTensor",
        ),
        (None, "the batch is a NoneType"),
        (full | {"a": long(1)}, "feature a is [1]; expected tensors (values [E], lengths [B])"),
        (full | {"b": (long(1),)}, "feature b is [1]; expected tensors (values [E], lengths [B])"),
        (full | {"b": (long(1), 1)}, "feature b is [1], int; expected tensors"),
        (full | {"b": (long(1), long(1)[0])}, "feature b is [1], []; expected tensors"),
        (full | {"b": (long(1)[None], long(1))}, "feature b is [1, 1], [1]; expected tensors"),
        (full | {"b": (*one, [1.0])}, "feature b is [1], [1], list; expected tensors"),
        (
            dict.fromkeys("abc", (torch.ones(1), long(1))),
            "feature a, values: expected a tensor of int32 or int64",
        ),
        (full | {"b": (long(1), torch.ones(1))}, "feature b, lengths: expected a tensor of int32"),
        (full | {"b": (torch.ones(1), long(1))}, "feature b, values: expected a tensor of int32"),
        (full | {"b": (long(), long(-1))}, "feature b: lengths add up to -1, and values are [0]"),
        (
            dict.fromkeys("abc", (long(1, 2), long(3, -1))),
            "feature a: bag 1 has length -1; expected at least 0",
        ),
        (
            embeddings.Jagged({"a": one, "b": (long(1, 2), long(1, 1))}),
            "the batch has 3 lengths of 2 features",
        ),
        (mgg.nn.ShardedEmbeddingBagCollection(tables).plan(full), "by another collection"),
        ({"a": one, "b": one}, "lacks c; its features are a, b, c"),
        (full | {"d": one}, "the batch has d"),
        (full | {"c": (long(), long())}, "different numbers of bags: a 1, b 1, c 0"),
        (full | {"b": (long(4, 9), long(2))}, "table t, feature b: bag 0 has index 9; expected 0 to 8"),
        (full | {"b": (long(4, 3), long(1))}, "feature b: lengths add up to 1, and values are [2]"),
        (full | {"c": (*one, torch.ones(1))}, "feature c: weights are for sums"),
        (full | {"a": (*one, torch.ones(1))}, "some features have weights and others have none"),
    ):
        with refused(re.escape(message)):
            found(batch)
    for wrong in ([], [tables[0], tables[0]], [mgg.nn.TableConfig("t", 9, 4, ["a", "a"])]):
        with refused("needs a name of its own"):
            mgg.nn.ShardedEmbeddingBagCollection(wrong)
    for wrong in (("t", 9, 4, ["a"], "max"), ("t", 0, 4, ["a"]), ("t", 9, 4.5, ["a"])):
        with refused("has no rows, or its pooling is neither sum nor mean"):
            mgg.nn.ShardedEmbeddingBagCollection([mgg.nn.TableConfig(*wrong)])
    with refused("a table is a str without name, num_embeddings, embedding_dim, feature_names, pooling"):
        mgg.nn.ShardedEmbeddingBagCollection(["t"])


def test_tables_larger_than_the_memory_are_refused_before_they_are_allocated(monkeypatch):
    """Rows of 6 floats take 32 bytes; row-wise Adagrad keeps 4 more of each."""
    free, made = "mgg_hpc.nn.embedding.rows.cores.memory_available", []
    monkeypatch.setattr("mgg_hpc.nn.embedding.rows.backend_for", lambda *_, **__: made.append(1) or 1 / 0)
    tables = [mgg.nn.TableConfig("t", 1000, 6, ["a"]), mgg.nn.TableConfig("u", 2000, 3, ["b"])]
    adagrad, rows = mgg.nn.RowWiseAdagrad(0.1), mgg.nn.ShardedEmbeddingBag
    for need, make in (
        (36_000, lambda: rows(1000, 6, optimizer=adagrad)),
        (36_000 + 40_000, lambda: mgg.nn.ShardedEmbeddingBagCollection(tables, optimizer=adagrad)),
        (3 << 71, lambda: rows(3 << 64, 64, dtype=torch.bfloat16, optimizer=mgg.nn.SGD(1))),
    ):
        monkeypatch.setattr(free, lambda need=need: min(need - 1, 1 << 40))
        with refused(
            f"embeddings need {sizes.shown(need)} on this node, and .* are available; use more nodes"
        ):
            make()
        assert not made
        if need < 1 << 40:
            monkeypatch.setattr(free, lambda need=need: need)
            with pytest.raises(ZeroDivisionError):
                make()
            made.clear()
