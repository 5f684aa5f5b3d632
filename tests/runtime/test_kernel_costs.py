"""Seconds of an action are those of the slowest rank in its fastest turn: with made-up clocks of two ranks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mgg_hpc.plan.cost_model import RowCost
from mgg_hpc.runtime import cores, kernel_costs


@pytest.mark.parametrize("shared", [False, True])
def test_an_action_takes_what_it_takes_on_the_slowest_rank(rng, monkeypatch, shared):
    """Where ranks share cores, from the first one's begin to the last one's end, for the four times it runs."""
    turns, repeats = 5, 4 if shared else 1
    waits, takes = rng.uniform(1, 2, (2, turns, 2))
    clock = SimpleNamespace(now=0.0)
    taken, waited = iter(np.repeat(takes[:, 0], repeats).tolist()), iter(waits[:, 0].tolist())

    def passes(values):
        clock.now += next(values)

    other = np.cumsum(np.stack([waits[:, 1], takes[:, 1] * repeats], axis=1).ravel()).reshape(turns, 2)
    every = []
    comm = SimpleNamespace(size=2, allgather=lambda mine: every.extend([mine, other.tolist()]) or every)
    monkeypatch.setattr(kernel_costs.mpi, "barrier", lambda comm: passes(waited))
    monkeypatch.setattr(kernel_costs, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(cores, "available", lambda: 1 if shared else 2)
    found = kernel_costs.slowest(comm, lambda: passes(taken), turns)
    mine = every[0]
    if shared:
        wanted = min(max(a[1], b[1]) - min(a[0], b[0]) for a, b in zip(mine, other, strict=True)) / 4
    else:
        wanted = takes.max(axis=1).min()
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
def test_costs_are_those_that_times_were_made_of(rng, monkeypatch, ranks):
    """Reads of each class of distances, destinations and segments take made-up seconds, which are found again."""
    sizes = (1 << 13, 1 << 14, 1 << 16)
    monkeypatch.setattr(kernel_costs, "SIZES", sizes)
    monkeypatch.setattr(kernel_costs, "EDGES", 1 << 11)
    destination, segment = (RowCost(*rng.uniform(1e-9, 1e-6, 2)) for _ in range(2))
    reads = np.cumsum(rng.uniform(1e-9, 1e-6, (len(kernel_costs.WIDTHS), len(sizes))), axis=1)

    def seconds(sums, plan, rows):
        size = rows.local.nbytes * (ranks if rows.symmetric else 1)
        taken = destination.of(plan.destinations, rows.format.row_bytes)
        if plan.edges:
            width, within = kernel_costs.WIDTHS.index(rows.format.dim), np.array(sizes) <= size
            taken += plan.edges * (reads[width] * np.diff(sizes, prepend=0))[within].sum() / size
            taken += segment.of(len(plan.segments), rows.format.row_bytes)
        return taken

    def rows(counts, format, *, symmetric):
        local = np.empty((counts[0], format.dim), np.float32)
        return SimpleNamespace(local=local, format=format, symmetric=symmetric)

    memory = SimpleNamespace(release=lambda rows: None)
    backend = SimpleNamespace(rows=rows, publish=lambda rows: None, memory=memory)
    comm = SimpleNamespace(rank=0, size=ranks, allgather=lambda mine: [mine] * ranks)
    monkeypatch.setattr(kernel_costs._Sums, "seconds", seconds)
    sums = kernel_costs._Sums(comm, backend)
    sums.measure_destinations()
    for found, wanted in ((sums.destination, destination), (sums.segment, segment)):
        assert (found.row, found.byte) == pytest.approx((wanted.row, wanted.byte), rel=1e-6)
    for transfer in ("halo", "direct", "get") if ranks > 1 else ("halo",):
        found = sums.gather(transfer)
        np.testing.assert_allclose(found.seconds, reads, rtol=1e-6)


def test_rates_of_products_are_those_of_their_operations(monkeypatch):
    """Products of [32768, 64] and [64, k], or of [32768, k] and [k, k] where k is larger, which take a second."""
    ran = []
    monkeypatch.setattr(kernel_costs, "slowest", lambda comm, action: ran.append(action()) or 1.0)
    found = kernel_costs._products(None, torch.get_num_threads())
    assert [k for k, _ in found] == list(kernel_costs.PRODUCTS) == [out.shape[1] for out in ran]
    assert [rate for _, rate in found] == [2.0 * 32768 * max(k, 64) * k for k in kernel_costs.PRODUCTS]
