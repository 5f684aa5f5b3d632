"""Stores that are handed out again: never to two users at once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import torch

from mgg_hpc.nn.streaming.pool import StorePool
from mgg_hpc.nn.streaming.rows import StreamedRows
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.streaming.store import HostStore


class Graph:
    """A graph as far as its rows use it."""

    first, rows = 0, 3

    def __init__(self, pool: StorePool) -> None:
        self.drop = pool.give

    def check_open(self) -> None:
        """It is."""


WIDE, NARROW = (RowFormat(np.dtype(np.float32), dim) for dim in (8, 4))


def test_a_store_that_is_given_twice_has_one_user():
    made = []

    def make(format):
        made.append(HostStore(format, 3))
        return made[-1]

    pool = StorePool(make)
    first = pool.take(WIDE)
    pool.give(first)
    second = pool.take(WIDE)
    pool.give(first)  # by a user who had it before
    third = pool.take(WIDE)
    assert second.store is made[0] and third.store is made[1]
    pool.give(made[1])  # no lease
    assert pool.take(NARROW).store is made[2] and pool.take(WIDE).store is made[3]
    pool.close()


def test_rows_give_their_store_back_and_keep_no_graph():
    pool = StorePool(lambda format: HostStore(format, 3))
    graph = Graph(pool)
    rows = StreamedRows(graph, pool.take(WIDE), torch.zeros(()))
    held, graph.x = weakref.ref(graph), rows
    del graph, rows
    gc.collect()
    assert held() is None
    graph = Graph(pool)
    lease = pool.take(WIDE)
    rows = StreamedRows(graph, lease, torch.zeros(()))
    del rows
    assert pool.take(WIDE).store is lease.store
