"""Spilled activations: places are used again once nothing reads them, also those that were never read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mgg_hpc.nn.streaming.spill import LEAST, PENDING, Spill
from mgg_hpc.runtime.streaming.direct import BLOCK, Pages

SIZE = 3 * BLOCK // 4  # float32 values of three blocks


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def spill(tmp_path, pool):
    made = Spill(tmp_path, pool, Pages(), direct=False, device="cpu")
    yield made
    made.close()


def drawn(rng, size=SIZE):
    return torch.from_numpy(rng.standard_normal(size)).float()


def test_places_that_are_dropped_unread_are_free_again(rng, spill):
    """Others stay as they are; tensors of another size take other places."""
    kept = [spill.put(drawn(rng, size)) for size in (SIZE, 2 * SIZE)]
    end = spill._end
    wanted = [drawn(rng) for _ in range(3)]
    for values in wanted:
        place = spill.put(values)
        assert place.offset == end  # that of the one before, which is gone
        del place
    places = [spill.put(values) for values in wanted]
    assert sorted(place.offset for place in places) == [end + i * 3 * BLOCK for i in range(3)]
    for place, values in zip(places, wanted, strict=True):
        assert torch.equal(spill.get(place), values)
    spill.fetch(places)
    assert all(torch.equal(spill.get(place), values) for place, values in zip(places, wanted, strict=True))
    assert [len(spill.get(place)) for place in kept] == [SIZE, 2 * SIZE]


def test_a_place_is_not_written_before_the_write_that_it_was_dropped_with_has_ended(
    rng, spill, pool, monkeypatch
):
    """The first write hangs; the place's next tensor, and readers, wait for it."""
    goes_on, began, write = threading.Event(), threading.Event(), spill._file.write

    def slow(offset, values, **options):
        if not began.is_set():
            began.set()
            assert goes_on.wait(60)
        write(offset, values, **options)

    monkeypatch.setattr(spill._file, "write", slow)
    place = spill.put(drawn(rng))
    assert began.wait(60)
    del place
    values = drawn(rng)
    later = pool.submit(spill.put, values)
    with pytest.raises(TimeoutError):
        later.result(timeout=0.05)
    goes_on.set()
    assert torch.equal(spill.get(later.result(60)), values)


def test_reading_waits_for_the_write_and_few_writes_are_under_way(rng, spill, monkeypatch):
    goes_on, write = threading.Event(), spill._file.write

    def slow(offset, values, **options):
        assert goes_on.wait(60)
        write(offset, values, **options)

    monkeypatch.setattr(spill._file, "write", slow)
    wanted = [drawn(rng) for _ in range(PENDING + 1)]
    places = [spill.put(values) for values in wanted[:-1]]
    with ThreadPoolExecutor(2) as other:
        waiting = [other.submit(spill.get, places[0]), other.submit(spill.put, wanted[-1])]
        for each in waiting:
            with pytest.raises(TimeoutError):
                each.result(timeout=0.05)
        goes_on.set()
        assert torch.equal(waiting[0].result(60), wanted[0])
        assert torch.equal(spill.get(waiting[1].result(60)), wanted[-1])


def test_tensors_that_autograd_saves_come_back(rng, spill):
    """Large ones from the file, parameters and small ones from memory; a small part does not keep the whole."""
    kept = drawn(rng, LEAST // 4).requires_grad_()
    x = drawn(rng, LEAST // 4).requires_grad_()
    small = drawn(rng, LEAST // 4 - 1).requires_grad_()
    places = []
    with spill.saved([kept], places):
        out = (kept * x).sum() + (small * small).sum() + (x[:3] * 2 * x[3:6]).sum()
    assert [place.shape for place in places] == [x.shape]
    wanted = torch.autograd.grad(
        (kept * x).sum() + (small * small).sum() + (x[:3] * 2 * x[3:6]).sum(), [kept, x, small]
    )
    for found, right in zip(torch.autograd.grad(out, [kept, x, small]), wanted, strict=True):
        assert torch.equal(found, right)
