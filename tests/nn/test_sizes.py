"""Sizes by which nn and training cut what they compute change no result: tests set small ones, to cross them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from convolutions import LAYERS
from test_conv import NODES, alone, near_the_largest, results

from mgg_hpc.data.export import row_files
from mgg_hpc.nn.autograd import aggregation, functional
from mgg_hpc.nn.graph.handle import GraphHandle
from mgg_hpc.nn.layers import attention
from mgg_hpc.training import nonfinite


@pytest.mark.parametrize("rows", [1, 7, NODES - 1])
@pytest.mark.parametrize("name", ["gat", "gat_dot", "gat_average"])
def test_attention_takes_rows_in_blocks(rng, monkeypatch, name, rows):
    """Gradients' products by head: the same bits."""
    graph, (layer, _) = alone(rng, torch.float64), LAYERS[name].pair(5, 4, torch.float64)
    x, handle = torch.from_numpy(rng.standard_normal((NODES, 5))), graph.handle(layer.kind)
    gradient = torch.from_numpy(rng.standard_normal(layer(x, handle).shape))
    wanted = results(layer, x, gradient, handle)
    monkeypatch.setattr(attention, "ROWS_AT_ONCE", rows)
    found = results(layer, x, gradient, handle)
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[name], found[name]) for name in wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_ends_of_edges_have_numbers_of_five_bytes(rng, monkeypatch, dtype):
    """Rows of a graph whose numbers reach 2^40 - 1, each byte by itself, in any type of rows."""
    graph = alone(rng, dtype)
    handle = graph.handle("edges")
    numbers = rng.integers(0, 2**40, NODES)
    numbers[:3], numbers[-1] = (255, 256, 65536), 2**40 - 1
    monkeypatch.setattr(GraphHandle, "numbers", property(lambda handle: numbers))
    source, target = graph.case.edge_list
    found = aggregation.edges(handle, handle.adjacency("edges"))
    wanted = np.stack([numbers[source], numbers[target]])
    assert np.array_equal(found[:, np.lexsort(found)], wanted[:, np.lexsort(wanted)])


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["gcn", "gin", "sage"])
def test_products_come_before_or_after_sums(rng, monkeypatch, name, first):
    graph, (layer, theirs) = alone(rng, torch.float64), LAYERS[name].pair(5, 4, torch.float64)
    handle, x = graph.handle(layer.kind), torch.from_numpy(rng.standard_normal((NODES, 5)))
    gradient = torch.from_numpy(rng.standard_normal((NODES, 4)))
    monkeypatch.setattr(functional, "_transforms_first", lambda *given: first)
    found, wanted = results(layer, x, gradient, handle), results(theirs, x, gradient, graph.edge_index)
    near_the_largest(found.values(), [wanted[name] for name in found])


@pytest.mark.parametrize("block", [1, 3, 10, 1 << 20])
def test_the_first_value_that_is_not_finite_is_found_in_any_block(rng, monkeypatch, block):
    monkeypatch.setattr(nonfinite, "BLOCK", block)
    rows = torch.from_numpy(rng.standard_normal((17, 3)))
    assert nonfinite._first_place(rows) is None
    for row, column in [(16, 2), (9, 0), (9, 1), (3, 1)]:
        rows[row, column] = torch.inf
        known = (9, 0) if (row, column) == (9, 1) else (row, column)
        assert nonfinite._first_place(rows) == (*known, torch.inf)


@pytest.mark.parametrize("block", [1, 4, 7, 1 << 16])
def test_rows_of_other_ranks_come_in_blocks(rng, monkeypatch, tmp_path, block):
    """Of two ranks that play in one process: what the second sends is what the first gets."""
    monkeypatch.setattr(row_files, "BLOCK", block)
    ids, rows = rng.permutation(18), rng.standard_normal((18, 3))
    bounds, sent = np.array([0, 7, 18]), []
    first = SimpleNamespace(rank=0, size=2, Recv=lambda into, source: np.copyto(into, sent.pop(0)))
    second = SimpleNamespace(rank=1, size=2, Send=lambda array, to: sent.append(array.copy()))
    for comm, part in ((second, slice(7, 18)), (first, slice(7))):
        row_files.write(comm, tmp_path / "out.npy", ids[part], {"rows": rows[part]}, bounds, {})
    assert sent == [] and np.array_equal(np.load(tmp_path / "out.npy")[ids], rows)
