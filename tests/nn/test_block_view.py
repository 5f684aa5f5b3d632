"""A block of a graph's rows has their ids and numbers, and refuses what needs other rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.nn.streaming.block_view import BlockView


def test_a_block_has_the_ids_and_numbers_of_its_rows(rng):
    ids, numbers = rng.permutation(50), 100 + np.arange(50)
    given = dict.fromkeys(("backend", "dtype", "device", "workspace", "comm", "rank", "ranks"))
    graph = SimpleNamespace(**given, ids=ids, numbers=numbers)
    for low, high in ((0, 50), (0, 7), (7, 21), (21, 21), (49, 50)):
        block = BlockView(graph, low, high)
        np.testing.assert_array_equal(block.ids, ids[low:high])
        np.testing.assert_array_equal(block.numbers, numbers[low:high])
        assert block.rows == block.destinations == high - low
    for call in (
        lambda: block.all_destinations,
        block.adjacency,
        block.edge_values,
        block.exchange,
        block.publish,
    ):
        with pytest.raises(TypeError, match="sees a block of its rows here"):
            call()
