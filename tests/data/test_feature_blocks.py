"""Dense features of a graph file, read in blocks: each byte once, checked as slices are."""

from __future__ import annotations

import itertools
import os
import re

import h5py
import numpy as np
import pytest
from jobs import dense

from mgg_hpc.data import checked
from mgg_hpc.data.digest import BLOCK, PIECE
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write

from .graphs import flip_byte, random_graph, refused, same


def cuts(rng, nodes: int) -> list[tuple[int, int]]:
    some = np.sort(rng.integers(nodes + 1, size=(4, 2)))
    return [(0, nodes), (nodes, nodes), (0, 1), (nodes - 1, nodes), *map(tuple, some.tolist())]


@pytest.fixture
def asked(monkeypatch) -> list[tuple[int, int]]:
    """What is read of files from now on: (first byte, bytes), reads that follow on each other as one."""
    found: list[tuple[int, int]] = []
    preadv = os.preadv

    def counted(descriptor, buffers, offset):
        read = preadv(descriptor, buffers, offset)
        if found and sum(found[-1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + read)
        else:
            found.append((offset, read))
        return read

    monkeypatch.setattr(checked.os, "preadv", counted)
    return found


def features_at(path) -> int:
    with h5py.File(path) as file:
        return file["node/x"].id.get_offset()


@pytest.mark.parametrize("half", [False, True])
def test_features_come_in_blocks_and_each_byte_once(half, rng, path, asked):
    """Into two arrays in turn; with them come the digest blocks that the first and the last row lie in, and no more."""
    graph = random_graph(rng, nodes=3001, edges=2000, features=1999 if half else 999, half=half)
    write(path, graph)
    total, row_bytes, start = graph.x.nbytes, graph.x.itemsize * graph.features, features_at(path)
    with open_graph(path) as opened:
        assert opened.x_dtype == graph.x.dtype
        for lo, hi in cuts(rng, graph.nodes):
            arrays = [np.empty_like(graph.x[: rng.integers(1, 2000)]) for _ in range(2)]
            found, asked[:] = [], []
            for number, x in enumerate(opened.feature_blocks(lo, hi, itertools.cycle(arrays))):
                assert np.shares_memory(x, arrays[number % 2])
                found.append(x.copy())
            assert [len(x) for x in found[:-1]] == [len(arrays[i % 2]) for i in range(len(found) - 1)]
            assert same(np.concatenate([*found, graph.x[:0]]), graph.x[lo:hi])
            first, last = lo * row_bytes // BLOCK * BLOCK, min(-(-hi * row_bytes // BLOCK) * BLOCK, total)
            of_rows = [(at, count) for at, count in asked if start <= at < start + total]
            assert of_rows == ([] if lo == hi else [(start + first, last - first)])


def test_a_slice_without_dense_features_reads_none(rng, large, path, asked):
    flip_byte(path, "node/x", 99)
    start = features_at(path)
    with open_graph(path) as opened:
        asked.clear()
        part = opened.slice(5, 2000, dense=False)
        assert part.x is None and same(part.y, large.y[5:2000])
        assert all(at + count <= start or at >= start + large.x.nbytes for at, count in asked)
    sparse = random_graph(rng, sparse=True)
    write(path, sparse, force=True)
    with open_graph(path) as opened:
        assert opened.x_dtype is None
        assert same(dense(opened.slice(3, 20, dense=False).x), dense(sparse.x)[3:20])


def read_blocks(opened, lo, hi, rows=100):
    into = np.empty((rows, opened.features), opened.x_dtype)
    return sum(len(x) for x in opened.feature_blocks(lo, hi, itertools.repeat(into)))


def test_damage_in_blocks_is_named_as_in_slices(rng, large, path):
    """Also where it lies beside the rows, in a digest block that they share; values before digests."""
    row_bytes, size = 999 * 4, large.x.nbytes
    for at in (8, int(rng.integers(1 << 18, 1 << 19)) * 8, BLOCK - 4, BLOCK, 2 * BLOCK - 4, size - 4):
        flip_byte(path, "node/x", at)
        block = at // BLOCK
        start, end = block * BLOCK, min((block + 1) * BLOCK, size)
        begin, last = -(-start // row_bytes), end // row_bytes - 1  # rows that lie wholly in the digest block
        said = f"digest of block {block} (entries {start // row_bytes} .. {(end - 1) // row_bytes}) differs;"
        with open_graph(path) as opened:
            for lo, hi in [(0, 3001), (begin, begin + 1), (last, last + 1)]:
                for read in (opened.slice, lambda lo, hi, opened=opened: read_blocks(opened, lo, hi)):
                    with refused(re.escape(f"g.h5: /node/x is damaged: the {said}")):
                        read(lo, hi)
            for lo, hi in [(0, start // row_bytes), (-(-end // row_bytes), 3001)]:
                assert read_blocks(opened, lo, hi) == hi - lo
        flip_byte(path, "node/x", at)
    flip_byte(path, "node/x", 8)
    with h5py.File(path, "r+") as file:
        file["node/x"][1500, 7] = np.inf
    with open_graph(path) as opened:
        for read in (lambda: read_blocks(opened, 0, 3001), lambda: opened.slice(1400, 1600)):
            with refused("/node/x has inf at row 1500, column 7"):
                read()
        assert read_blocks(opened, 2500, 3001) == 501


def test_of_several_damaged_blocks_the_first_is_named(large, path, asked):
    for at in (80, BLOCK + 80):
        flip_byte(path, "node/x", at)
    start = features_at(path)
    with open_graph(path) as opened:
        for read in (lambda: read_blocks(opened, 0, 3001), lambda: opened.check_digests("node/x")):
            asked.clear()
            with refused("the digest of block 0 "):
                read()
    of_rows = [(at, count) for at, count in asked if start <= at < start + large.x.nbytes]
    assert max(at + count for at, count in of_rows) <= start + PIECE  # the rest need not be read then


def test_a_file_that_becomes_shorter_is_named(large, path):
    with open_graph(path) as opened:
        os.truncate(path, features_at(path) + 5_000_000)
        with refused(r"g\.h5 is truncated at byte \d+; copy or import it again"):
            read_blocks(opened, 0, 3001)
