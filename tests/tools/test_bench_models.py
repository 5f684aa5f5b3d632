"""The models that workers of `mgg bench epoch` train: other libraries compute the same from the same weights."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest

from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.tools.bench.baselines import ours
from mgg_hpc.tools.bench.epoch.cpu import inputs_of
from mgg_hpc.tools.bench.epoch.shape import MODELS, Shape, labelled, title
from mgg_hpc.tools.bench.harness import timing

SHAPE = Shape(features=12, hidden=6, classes=4, dropout=0.0)


def shape(model: str) -> Shape:
    """A small one with the layers of the benchmark's."""
    _, layers, heads = MODELS[model]
    return dataclasses.replace(SHAPE, model=model, layers=layers, heads=min(heads, 3))


def drawn(rng: np.random.Generator) -> Graph:
    """An undirected graph with duplicates, self loops and nodes without edges."""
    one = rng.integers(50, size=150)
    other = (one + rng.integers(1, 50, size=150)) % 50
    one[:3], other[:3] = one[3:6], other[3:6]
    loops = np.arange(5)
    source, destination = np.concatenate([one, other, loops]), np.concatenate([other, one, loops])
    indptr, indices, _ = csr_from_edges(source, destination, 60)
    return Graph("drawn", indptr, indices, directed=False)


@pytest.fixture
def worker(monkeypatch):
    """A worker's module, imported as its process does."""
    monkeypatch.syspath_prepend(timing.WORKER.parent)
    return importlib.import_module


@pytest.mark.filterwarnings("ignore")  # sparse CSR is in beta, and PyG asks for torch.jit
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("peer", ["pyg", "pyg-csr"])
def test_pyg_trains_as_we_do_from_the_same_weights(worker, tmp_path, rng, model, peer):
    inputs = inputs_of(labelled(drawn(rng), shape(model)), shape(model), tmp_path)
    mine = ours.epoch(**inputs)
    theirs = worker(f"peer_{peer.replace('-', '_')}").epoch(**inputs)
    assert theirs["untrained"]() == pytest.approx(mine["untrained"](), rel=1e-5)
    for _ in range(3):
        assert theirs[peer]() == pytest.approx(mine["mgg"](), rel=1e-5)


def test_the_title_of_a_model_tells_its_widths():
    assert title(dataclasses.asdict(shape("gin"))) == "GIN 12 -> 6 -> 6 -> 6 -> 6 -> 4"
    assert title(dataclasses.asdict(shape("gat"))) == "GAT 12 -> 3 x 6 -> 4"
