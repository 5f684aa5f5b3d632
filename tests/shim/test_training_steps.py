"""What training asks of a GPU's backend, with the shim in place of a GPU: dropout, and epochs of a GCN."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from gpu.pes.engine import SMALL

from mgg_hpc import _host
from mgg_hpc.config import ModelSettings
from mgg_hpc.data import generate
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.graph.handle import GraphHandle
from mgg_hpc.nn.graph.loading import adjacency_of, whole
from mgg_hpc.nn.inputs.sparse import SparseFeatures
from mgg_hpc.nn.layers.models import GNN
from mgg_hpc.nn.layers.random import Draws
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.base import Options, RngKey
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

ALONE = SimpleNamespace(rank=0, size=1)
KINDS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def backend(rng, engine):
    """A lone rank; its kernels run in a new order."""
    engine.seed(int(rng.integers(1 << 60)))
    (made,) = engine.backends(World(1))
    return made


def drawn(rng) -> RngKey:
    return RngKey(float(rng.uniform(0.1, 0.9)), int(rng.integers(2**63)), *map(int, rng.integers(1, 1000, 2)))


def kept(rng, shape, ids, draw):
    """What the host's dropout makes of ones, float32."""
    out = np.empty(shape, np.float32)
    _host.dropout_rows(np.ones(shape, np.float32), out, ids, draw.p, draw.seed, draw.epoch, draw.stream, 1)
    return out


@pytest.mark.parametrize("columns", [1, 4, 7, 16, 33, 128, 130, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_keeps_what_the_host_keeps(rng, engine, backend, kind, columns):
    """Rows that are padded, or as near to each other as can be, or that begin anywhere."""
    dtype, ids, draw = np.dtype(KINDS[kind]), rng.integers(0, 2**45, 21), drawn(rng)
    held = rng.standard_normal((21, columns + 3)).astype(dtype)
    scale = kept(rng, (21, columns), ids, draw)
    for x in (held[:, :columns], held[:, 3:], np.ascontiguousarray(held[:, :columns])):
        padded = backend.padded(21, RowFormat(dtype, columns))
        padded[:] = x
        wanted = (x.astype(np.float32) * scale).astype(dtype)
        for source in (x, padded):
            out = engine.nan_rows(backend, 21, RowFormat(dtype, columns))
            backend.dropout(source, out, ids, draw)
            np.testing.assert_array_equal(out, wanted)
    backend.dropout(out, out, ids, draw)  # in place
    np.testing.assert_array_equal(out, (wanted.astype(np.float32) * scale).astype(dtype))
    wide = engine.nan_rows(backend, 21, RowFormat(dtype, columns + 16))
    backend.dropout(padded, wide[:, :columns], ids, draw)
    np.testing.assert_array_equal(wide[:, :columns], wanted)
    assert np.isnan(wide[:, columns:].astype(np.float32)).all()


def stored(rng):
    """CSR rows of random lengths: offsets, columns, values, ids."""
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 40, 30))])
    indices = rng.integers(0, 10**6, indptr[-1]).astype(np.int32)
    return indptr, indices, rng.standard_normal(indptr[-1]).astype(np.float32), rng.integers(0, 2**45, 30)


def kept_of_stored(indptr, indices, values, ids, draw):
    """What the host's dropout makes of stored values."""
    out = np.empty_like(values)
    call = (draw.p, draw.seed, draw.epoch, draw.stream)
    _host.dropout_csr(indptr, indices, values, out, ids, *call, 1)
    return out


def test_dropout_of_stored_values_keeps_what_the_host_keeps(rng, backend):
    *arrays, ids = stored(rng)
    draw, out = drawn(rng), np.full_like(arrays[-1], np.nan)
    backend.dropout_csr(*arrays, out, ids, draw)
    np.testing.assert_array_equal(out, kept_of_stored(*arrays, ids, draw))
    assert 0 < np.count_nonzero(out) < len(out)


@pytest.mark.parametrize("kind", [*KINDS, "stored values"])
def test_an_epoch_in_memory_counts_instead(rng, engine, backend, kind):
    """The same call again, as a graph replays it, with other numbers in memory."""
    dtype, ids, wrong = np.dtype(KINDS.get(kind, np.float32)), rng.integers(0, 2**45, 21), drawn(rng)
    x, (*arrays, stored_ids) = rng.standard_normal((21, 37)).astype(dtype), stored(rng)
    held = replace(wrong, epoch_at=engine.memory.uploaded(np.zeros(1, np.int32)))
    for epoch in map(int, rng.integers(1000, 2**31, 3)):
        held.epoch_at[0], right = epoch, replace(wrong, epoch=epoch)
        if kind in KINDS:
            out = engine.nan_rows(backend, 21, RowFormat(dtype, 37))
            backend.dropout(x, out, ids, held)
            wanted = (x.astype(np.float32) * kept(rng, x.shape, ids, right)).astype(dtype)
        else:
            out = np.full_like(arrays[-1], np.nan)
            backend.dropout_csr(*arrays, out, stored_ids, held)
            wanted = kept_of_stored(*arrays, stored_ids, right)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("epoch_at", [np.zeros(1, np.int64), np.zeros(2, np.int32), np.int32(3)])
def test_an_epoch_that_is_none_is_refused(rng, backend, epoch_at):
    (*arrays, ids), x = stored(rng), np.zeros((30, 4), np.float32)
    draw = replace(drawn(rng), epoch_at=np.asarray(epoch_at))
    said = rf"epoch_at: {draw.epoch_at.dtype} \[\d?\]; expected contiguous int32 \[1\]"
    with pytest.raises(ValueError, match=said):
        backend.dropout(x, x, ids, draw)
    with pytest.raises(ValueError, match=said):
        backend.dropout_csr(*arrays, arrays[-1], ids, draw)


def test_dropout_of_nothing(rng, backend):
    for shape in ((0, 5), (5, 0)):
        x = np.zeros(shape, np.float32)
        backend.dropout(x, x, np.arange(shape[0]), drawn(rng))
    nothing = np.zeros(0, np.float32)
    backend.dropout_csr(
        np.zeros(1, np.int64), np.zeros(0, np.int32), nothing, nothing, np.arange(0), drawn(rng)
    )


@pytest.mark.parametrize(
    ("x", "ids", "said"),
    [
        (np.zeros((3, 4)), np.arange(3), r"x: float64 \[3, 4\]; expected rows of float32 \[3, 4\]"),
        (np.zeros((3, 5), np.float32), np.arange(3), r"x: float32 \[3, 5\]; expected"),
        (np.zeros((4, 3), np.float32).T, np.arange(3), r"x: float32 \[3, 4\]; expected"),
        (np.zeros((3, 4), np.float32), np.arange(2), r"ids: int64 \[2\]; expected contiguous int64 \[3\]"),
    ],
)
def test_dropout_refuses_other_arrays(rng, backend, x, ids, said):
    with pytest.raises(ValueError, match=said):
        backend.dropout(x, np.zeros((3, 4), np.float32), ids, drawn(rng))


def test_dropout_refuses_other_types(rng, backend):
    wide = np.zeros((3, 4))
    with pytest.raises(ValueError, match="GPU kernels take rows of float32, float16, bfloat16"):
        backend.dropout(wide, wide, np.arange(3), drawn(rng))


def trained(backend, graph, x, widths, seed):
    """Losses of three epochs, and the gradients of each, in float64."""
    adjacency = adjacency_of(ALONE, whole(graph), "gcn", torch.float32, SMALL.ps, backend.device)
    handle = GraphHandle(
        backend, np.array([graph.nodes]), np.arange(graph.nodes) + 2**33, adjacency, widest=max(widths)
    )
    model = GNN(ModelSettings(hidden=widths[1]), widths[0], widths[2], Draws(seed))
    chosen = torch.from_numpy(np.flatnonzero(graph.train))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses, gradients = [], []
    for epoch in range(1, 4):
        model.draws.epoch = epoch
        optimizer.zero_grad()
        found = model(x(backend), handle)[chosen]
        loss = torch.nn.functional.cross_entropy(found, torch.from_numpy(graph.y)[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        gradients += [parameter.grad.double() for parameter in model.parameters()]
    return losses, gradients


def sparse_of(x):
    """A backend's copy of the nonzero values of ``x``."""
    row, column = np.nonzero(x)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(x)))])
    values = torch.from_numpy(x[row, column])
    return lambda backend: SparseFeatures(backend, indptr, column.astype(np.int32), values, x.shape[1])


def drawn_graph(rng, widths, directed) -> Graph:
    """With features, labels and training rows; weighted if directed."""
    graph = generate.rmat(6, 8, seed=int(rng.integers(1 << 30)))
    if directed:
        keep = rng.random(graph.edges) < 0.7
        row = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))[keep]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=graph.nodes))])
        weight = rng.uniform(0.1, 1, len(row)).astype(np.float32)
        graph = replace(graph, indptr=indptr, indices=graph.indices[keep], weight=weight, directed=True)
    return replace(
        graph,
        x=rng.standard_normal((graph.nodes, widths[0]), dtype=np.float32),
        y=rng.integers(widths[2], size=graph.nodes),
        train=rng.random(graph.nodes) < 0.5,
    )


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("widths", [(24, 5, 7), (6, 17, 3)], ids=str)
def test_epochs_are_those_of_the_cpu(rng, backend, widths, sparse, directed):
    """Layers that transform first and that aggregate first; hubs; weights of edges where the graph is directed."""
    graph = drawn_graph(rng, widths, directed)
    dense = torch.from_numpy(graph.x)
    x = sparse_of(graph.x * (rng.random(graph.x.shape) < 0.3)) if sparse else lambda backend: dense
    seed = int(rng.integers(2**62))
    cpu = SerialBackend(0, World(1), Options(SMALL))
    losses, gradients = trained(backend, graph, x, widths, seed)
    wanted, wanted_gradients = trained(cpu, graph, x, widths, seed)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    largest = max(expected.abs().max() for expected in wanted_gradients)
    for found, expected in zip(gradients, wanted_gradients, strict=True):
        assert expected.abs().max() > 0
        assert (found - expected).abs().max() <= 1e-5 * largest
