"""The parts of a graph that nodes send each other, in messages of limited size."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.runtime.sampling import structure

RANKS = np.array([0, 0, 2, 2, 0])  # the first rank of each rank's node


class Leaders:
    """The first ranks of two nodes, a thread each."""

    turn, sent, most = threading.Barrier(2), None, 0

    def __init__(self, place):
        self._place = place

    def Bcast(self, message, root):  # noqa: N802
        values, count, _ = message
        Leaders.most = max(Leaders.most, count)
        if root == self._place:
            Leaders.sent = values.copy()
        Leaders.turn.wait(10)
        if root != self._place:
            values[:] = Leaders.sent
        Leaders.turn.wait(10)

    def Free(self):  # noqa: N802
        pass


@pytest.mark.parametrize("limit", [1, 13, 100, 1 << 30])
def test_every_node_gets_what_the_others_have(rng, monkeypatch, limit):
    monkeypatch.setattr(structure, "MESSAGE_BYTES", limit)
    monkeypatch.setattr(Leaders, "most", 0)
    bounds, edges = np.array([0, 4, 9, 9, 20, 26]), np.array([0, 11, 30, 30, 71, 90])
    kinds = {
        ("graph", "indptr"): (np.dtype(np.int64), ()),
        ("graph", "indices"): (np.dtype(np.int32), ()),
        ("nodes", "x"): (np.dtype(np.float32), (3,)),
    }
    places = structure._placed(bounds, edges, kinds)
    whole = rng.integers(0, 256, max(place.end for place in places.values()), dtype=np.uint8)
    nodes = [np.zeros_like(whole), np.zeros_like(whole)]
    for place in places.values():
        for rank, first in enumerate(RANKS):
            part = slice(*place.span(rank))
            nodes[first // 2][part] = whole[part]

    def exchange(number):
        comm = SimpleNamespace(rank=2 * number, Split=lambda color, key: Leaders(number))
        window = SimpleNamespace(buffer=lambda rank: nodes[number])
        structure._exchanged(comm, window, places, RANKS.tolist())

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(exchange, range(2)))
    for place in places.values():
        begin, end = place.span(0)[0], place.span(len(RANKS) - 1)[1]
        for node in nodes:
            np.testing.assert_array_equal(node[begin:end], whole[begin:end])
    assert Leaders.most <= limit
