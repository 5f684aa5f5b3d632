"""Graph files that several modules read, and where they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mgg_hpc.data.graph import Graph
from mgg_hpc.data.writer import write

from .graphs import random_graph


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test writes its graph."""
    return tmp_path / "g.h5"


@pytest.fixture
def seed(rng: np.random.Generator) -> int:
    """A seed of a generator of graphs."""
    return int(rng.integers(2**31))


@pytest.fixture
def large(rng: np.random.Generator, path: Path) -> Graph:
    """A graph, written to ``path``, with features of several digest blocks, whose ends lie within rows."""
    graph = random_graph(rng, nodes=3001, edges=20000, features=999)
    write(path, graph)
    return graph
