"""Counts of requests beside figures of papers; tests/shim compares them with the loads of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from harness import pcie_requests

from mgg_hpc.data import generate


def test_a_row_of_the_paper():
    """Figure 3.5 of Min's dissertation: the second of rows of 480 bytes, by units of 4."""
    first, last = np.array([120]), np.array([240])
    assert [pcie_requests.count(first, last, 4, reads).sum() for reads in ("merged", "shifted")] == [8, 5]


def test_no_lists():
    nothing = np.zeros(0, np.int64)
    assert not pcie_requests.count(nothing, nothing, 8, "merged").any()


@pytest.mark.parametrize("kind", ["rmat", "uniform"])
def test_figures_of_the_paper(rng, kind):
    """EMOGI (figures 2.6, 2.8 and 2.11 of Min's dissertation), of a traversal of all edges of 8 bytes."""
    quarter = {"a": 0.25, "b": 0.25, "c": 0.25} if kind == "uniform" else {}
    graph = generate.rmat(13, 16, int(rng.integers(1 << 30)), **quarter)
    first, last = graph.indptr[:-1], graph.indptr[1:]
    found = {reads: pcie_requests.count(first, last, 8, reads) for reads in pcie_requests.READS}
    total = {reads: sizes.sum() for reads, sizes in found.items()}
    assert found["strided"][0] == total["strided"]
    assert found["merged"][3] / total["merged"] == pytest.approx(0.4, abs=0.07)
    assert total["merged"] < 0.45 * total["strided"]
    assert 0.7 < total["aligned"] / total["merged"] < 0.92
    assert pcie_requests.requested_bytes(found["aligned"]) <= 1.31 * 8 * graph.edges
