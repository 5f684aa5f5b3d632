"""Blocks of rows: how they are cut and read; a GPU's streams wait for each other where they must, and only there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from streams import Streams

from mgg_hpc.nn.inputs import blocks
from mgg_hpc.nn.inputs.blocks import lengths, on_device, read, shares


class Rows:
    """A file's dense features in memory: what `read` asks of a GraphFile."""

    def __init__(self, x, wrote=lambda number, array: None):
        self.x, self.x_dtype, self.arrays, self._wrote = x, x.dtype, [], wrote

    def feature_blocks(self, lo, hi, into):
        arrays = iter(into)
        while lo < hi:
            array = next(arrays)[: hi - lo]
            self._wrote(len(self.arrays), array)
            array[:] = self.x[lo : lo + len(array)]
            self.arrays.append(array)
            lo += len(array)
            yield array
        self.ended = True


@pytest.fixture
def small(monkeypatch):
    """Blocks of 4 KiB."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)


def test_so_many_blocks_are_even_and_none_is_one_row(rng):
    assert shares(0, 16) == [] and shares(1, 16) == [1] and shares(8, 16) == [3, 3, 2]
    for rows in rng.integers(2, 500, 300):
        found = shares(int(rows), 16)
        assert sum(found) == rows and len(found) <= 16 and max(found) <= max(3, -(-rows // 16))
        assert min(found) >= max(2, max(found) - 1) and found == sorted(found, reverse=True)


@pytest.mark.slow
def test_blocks_are_even_and_none_is_one_row(rng):
    assert lengths(0, 4) == [] and lengths(1, 2**40) == [1]
    for _ in range(300):
        rows, row_bytes = int(rng.integers(2, 10**5)), int(rng.integers(1, 2**24))
        found = lengths(rows, row_bytes)
        assert sum(found) == rows and found == sorted(found, reverse=True) and found[0] - found[-1] <= 1
        assert found[-1] > 1
        assert found[0] * row_bytes <= 32 << 20 or found[0] <= 3
        assert len(found) == 1 or (len(found) - 1) * max(3, (32 << 20) // row_bytes) < rows


@pytest.mark.parametrize("wanted", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_rows_are_read_and_converted_here(rng, small, kind, wanted):
    rows, first = int(rng.integers(1000, 2000)), int(rng.integers(50))
    file = Rows(rng.standard_normal((first + rows + 9, 7)).astype(kind))
    into = torch.full((rows, 7), torch.nan, dtype=wanted)
    cut, finished = into.split(lengths(rows, 7 * wanted.itemsize)), []
    read(file, first, cut, "cpu", lambda block: finished.append(block.clone()))
    right = torch.from_numpy(file.x[first : first + rows]).to(wanted)
    assert torch.equal(into, right) and torch.equal(torch.cat(finished), right) and file.ended
    assert len(cut) > 2
    straight = [np.shares_memory(array, into.view(torch.uint8).numpy()) for array in file.arrays]
    assert straight == [wanted == torch.from_numpy(file.x).dtype] * len(cut)


def test_nothing_is_read_where_there_are_no_rows(rng):
    read(Rows(np.zeros((3, 2), np.float32)), 3, torch.empty(0, 2).split([]), "cpu", pytest.fail)


def writes(streams, what):
    return [each for each in streams.accesses if each.what == what and each.writes]


def divide(block):
    block.div_(block.sum(1, keepdim=True))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_gpu_copies_a_block_while_the_next_is_read(rng, small, monkeypatch, kind):
    """Two buffers: one is read into again once its own copy has ended, whatever happens to the other."""
    streams, before = Streams(), []

    def wrote(number, array):
        streams.host_writes(f"read {number}", array)
        copies = [each for each in writes(streams, "copy_") if each.who != "host"]
        known = [streams.before(each, streams.accesses[-1]) for each in copies]
        before.append((number, sum(known), len(known)))

    file = Rows(rng.uniform(1, 2, (1500, 7)).astype(kind), wrote)
    with streams.played(monkeypatch):
        into = torch.empty(1400, 7, device="cuda:0")
        busy = into.fill_(3)  # the current stream may still be at work on this memory
        cut = into.split(lengths(1400, 28))
        read(file, 50, cut, "cuda:0", divide)
        found = into * 1  # and goes on with it
    right = torch.from_numpy(file.x[50:1450]).to(torch.float32)
    assert torch.equal(found, right / right.sum(1, keepdim=True)) and busy is into and file.ended
    assert len(cut) == 10 and len({array.ctypes.data for array in file.arrays}) == 2
    # Each block is copied twice, the second time to its place.
    assert before == [(number, max(0, 2 * number - 3), 2 * number) for number in range(10)]


def test_a_gpu_computes_with_a_block_while_the_next_is_copied(rng, small, monkeypatch):
    streams = Streams()
    x = torch.from_numpy(rng.standard_normal((1400, 7)))
    host = [each.clone() for each in x.split(lengths(1400, 56))]
    with streams.played(monkeypatch):
        found = []
        for block in on_device(host, "cuda:0"):
            block.mul_(2)  # in place, as dropout is
            found.append(block + 1)
    assert torch.equal(torch.cat(found), 2 * x + 1) and len(host) > 4
    copies = writes(streams, "copy_")
    sums = [each for each in streams.accesses if each.what == "add" and not each.writes]
    assert len(copies) == len(sums) == len(host)
    for number, copy in enumerate(copies):
        assert [streams.before(each, copy) for each in sums] == [at <= number - 2 for at in range(len(sums))]


def test_what_follows_waits_for_copies_that_nobody_took(rng, small, monkeypatch):
    """A product fails after the next copy has begun: its memory may go to others, in the current stream's order."""
    streams = Streams()
    host = list(torch.ones(1400, 7).split(lengths(1400, 28)))
    with streams.played(monkeypatch):
        blocks_there = on_device(host, "cuda:0")
        next(blocks_there)
        blocks_there.close()
        streams.tensor(torch.ones(3))
    copies = writes(streams, "copy_")
    assert len(copies) == 3 and all(streams.before(each, copies[2]) for each in copies)


def test_a_host_gets_its_own_rows():
    host = [torch.ones(3, 2), torch.ones(2, 2)]
    assert [each is given for each, given in zip(host, on_device(host, "cpu"), strict=True)] == [True, True]
    assert list(on_device([], "cuda:0")) == []


def test_the_played_streams_see_races(monkeypatch):
    streams, host = Streams(), torch.zeros(4)
    with streams.played(monkeypatch):
        stream, event = torch.cuda.Stream("cuda"), torch.cuda.Event()
        device = torch.empty(4, device="cuda")
        with torch.cuda.stream(stream):
            device.copy_(host, non_blocking=True)
        event.record(stream)
        with pytest.raises(AssertionError, match=r"read on host races with copy_ on stream \d"):
            streams.host_writes("read", host.numpy())
        with pytest.raises(AssertionError, match=r"add on current races with copy_ on stream \d"):
            device.add(1)
        event.synchronize()
        streams.host_writes("read", host.numpy())
        torch.cuda.current_stream("cuda").wait_event(event)
        assert torch.equal(device.add(1), torch.ones(4))
