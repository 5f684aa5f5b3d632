"""What training asks of a GPU's backend, with the shim in place of a GPU: dropout, and epochs of a GCN."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from gpu.engine import SMALL

from mgg_hpc import _host
from mgg_hpc.data import generate
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.distribute import gcn_adjacency, whole
from mgg_hpc.nn.features import SparseFeatures
from mgg_hpc.nn.graph import GraphHandle
from mgg_hpc.nn.models import GCN
from mgg_hpc.nn.random import Draws
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.base import Draw, Options
from mgg_hpc.runtime.backends.serial import SerialBackend
from mgg_hpc.runtime.backends.world import World

ALONE = SimpleNamespace(rank=0, size=1)
KINDS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def backend(rng, engine):
    """A lone rank; its kernels run in a new order."""
    engine.seed(int(rng.integers(1 << 60)))
    (made,) = engine.backends(World(1))
    return made


def drawn(rng) -> Draw:
    return Draw(float(rng.uniform(0.1, 0.9)), int(rng.integers(2**63)), *map(int, rng.integers(1, 1000, 2)))


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


def test_dropout_of_stored_values_keeps_what_the_host_keeps(rng, backend):
    degree = rng.integers(0, 40, 30)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    indices = rng.integers(0, 10**6, indptr[-1]).astype(np.int32)
    values = rng.standard_normal(indptr[-1]).astype(np.float32)
    ids, draw = rng.integers(0, 2**45, 30), drawn(rng)
    wanted, out = np.empty_like(values), np.full_like(values, np.nan)
    call = (draw.p, draw.seed, draw.epoch, draw.stream)
    _host.dropout_csr(indptr, indices, values, wanted, ids, *call, 1)
    backend.dropout_csr(indptr, indices, values, out, ids, draw)
    np.testing.assert_array_equal(out, wanted)
    assert 0 < np.count_nonzero(out) < len(out)


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
    adjacency = gcn_adjacency(ALONE, whole(graph), torch.float32, SMALL.ps, backend.device)
    handle = GraphHandle(
        backend, np.array([graph.nodes]), np.arange(graph.nodes) + 2**33, adjacency, widest=max(widths)
    )
    model = GCN(*widths, 2, 0.5, Draws(seed))
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
    for found, expected in zip(gradients, wanted_gradients, strict=True):
        assert expected.abs().max() > 0
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
