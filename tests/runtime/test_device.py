"""Which GPU a rank drives, with GPUs that are only named."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import device


def node(*gathered, rank=0):
    """One rank's view of a node whose other ranks give this; of none, alone."""
    return SimpleNamespace(
        Get_size=lambda: 1, Get_rank=lambda: rank, allgather=lambda value: [*gathered, value]
    )


def module(places, why="", uuids=None, use=lambda number: None):
    """A _cuda that sees these GPUs."""
    return SimpleNamespace(
        devices=lambda: (len(places), why),
        device_places=lambda: places,
        device_uuids=lambda: uuids or [f"uuid of {place}" for place in places],
        use_device=use,
    )


def given(seen, numbers):
    """The GPU of each rank, which takes the one of this number among those that it sees."""
    return [places[at] for places, at in zip(seen, numbers, strict=True)]


def test_every_rank_takes_its_own_whoever_sees_what(rng):
    """Where it is possible at all, whatever the launcher shows: found by trying all ways."""

    def possible(seen, taken=()):
        return not seen or any(possible(seen[1:], (*taken, place)) for place in seen[0] if place not in taken)

    for _ in range(300):
        gpus = [f"0000:{number:02x}:00.0" for number in range(int(rng.integers(1, 6)))]
        ranks = int(rng.integers(1, 6))
        shown = rng.integers(1, len(gpus) + 1, ranks)
        seen = [[gpus[i] for i in rng.permutation(len(gpus))[:count]] for count in shown]
        if not possible(seen):
            with pytest.raises(InputError):
                device.assign(seen, False)
        taken = given(seen, device.assign(seen, share=not possible(seen)))  # each of what it sees
        assert len(set(taken)) == ranks or not possible(seen)


@pytest.mark.parametrize(
    ("seen", "share", "taken"),
    [
        ([["a"], ["b"], ["c"]], False, "abc"),  # Slurm shows each rank its own
        ([["a", "b", "c"]] * 3, False, "abc"),  # or all of them
        ([["a", "b"], ["a"]], False, "ab"),  # the second has no other
        ([["a", "b"]] * 4, True, "aabb"),  # spread evenly
    ],
)
def test_as_launchers_show_them(seen, share, taken):
    assert "".join(sorted(given(seen, device.assign(seen, share)))) == taken


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([["a", "b"]] * 3, "3 ranks on this node, but 2 GPUs: start at most 2 a node.*--share-gpu"),
        ([["a"]] * 2, "2 ranks on this node, but 1 GPU: "),
        ([["a"], ["a"], ["b", "c"]], "rank 1 of it sees a, which others take; .* or all 3"),
    ],
)
def test_too_few_gpus_are_named_with_both_numbers(seen, message):
    with pytest.raises(InputError, match=message):
        device.assign(seen, False)


@pytest.fixture
def near(monkeypatch, tmp_path):
    """One rank on the node; near(place, text) writes which cores are near a GPU, as the kernel does."""
    monkeypatch.setattr(device.mpi, "node", lambda comm: comm)
    monkeypatch.setattr(device, "_BUS", tmp_path)

    def write(place, text):
        (tmp_path / place).mkdir()
        (tmp_path / place / "local_cpulist").write_text(text)

    return write


def test_a_rank_without_a_gpu_says_what_it_was_shown(near, monkeypatch):
    monkeypatch.setenv(device.VISIBLE, "")
    with pytest.raises(InputError, match=r"^no CUDA device \(no device\); CUDA_VISIBLE_DEVICES is '' there$"):
        device.take(node(), module([], "no device"))


def test_a_gpu_that_cannot_be_used_is_an_error_of_its_rank(near):
    def use(number):
        raise RuntimeError("choosing a GPU: busy or unavailable")

    with pytest.raises(InputError, match=r"^rank 0 cannot use its GPU: choosing a GPU: busy or unavailable$"):
        device.take(node(), module(["a"], use=use))


def test_parts_of_one_gpu_share_its_place_and_are_taken_one_each(near):
    parts = module(["0000:3B:00.0"] * 2, uuids=["mig 1", "mig 2"])
    taken = device.take(node((["mig 1", "mig 2"], None, ""), rank=1), parts)
    assert taken == device.GpuAssignment(0, "mig 1", "0000:3B:00.0", 1)


def test_a_rank_takes_its_gpu_and_stays_near_it(near):
    """Unless it is bound already."""
    before, place, used = os.sched_getaffinity(0), "0000:3B:00.0", []
    near(place.lower(), f"{min(before)},4000-4003\n")
    try:
        assignment = device.take(node(), module([place], use=used.append))
        assert (assignment, used) == (device.GpuAssignment(0, f"uuid of {place}", place, 1), [0])
        device.stay_near(node(frozenset({4095})), assignment)
        assert os.sched_getaffinity(0) == before
        device.stay_near(node(), assignment)
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("7", {7}), ("x-y", set())]
)
def test_lists_of_cores(near, text, cores):
    near("a", f"{text}\n")
    assert device.near_cores("A") == cores
    assert device.near_cores("none") == frozenset()
