"""Which GPU a rank drives, with GPUs that are only named."""

from __future__ import annotations

import os

import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import device


class Node:
    """One rank's view of a node whose ranks all give the same."""

    def __init__(self, gathered=None):
        self._gathered = gathered

    def Get_size(self):  # noqa: N802
        return 1

    def Get_rank(self):  # noqa: N802
        return 0

    def allgather(self, value):
        return [value] if self._gathered is None else [*self._gathered, value]


class Module:
    """A _cuda that sees these GPUs."""

    def __init__(self, places, why=""):
        self.places, self.why, self.used = places, why, []

    def devices(self):
        return len(self.places), self.why

    def device_places(self):
        return self.places

    def use_device(self, number):
        self.used.append(number)


def test_every_rank_takes_its_own_whoever_sees_what(rng):
    """Where it is possible at all, whatever the launcher shows: found by trying all ways."""

    def possible(seen, taken=()):
        return not seen or any(possible(seen[1:], (*taken, place)) for place in seen[0] if place not in taken)

    for _ in range(300):
        gpus = [f"0000:{number:02x}:00.0" for number in range(int(rng.integers(1, 6)))]
        ranks = int(rng.integers(1, 6))
        seen = [
            [gpus[i] for i in rng.permutation(len(gpus))[: rng.integers(1, len(gpus) + 1)]]
            for _ in range(ranks)
        ]
        if possible(seen):
            taken = [places[at] for places, at in zip(seen, device.assign(seen, False), strict=True)]
            assert len(set(taken)) == ranks
        else:
            with pytest.raises(InputError):
                device.assign(seen, False)
            shared = [places[at] for places, at in zip(seen, device.assign(seen, True), strict=True)]
            assert len(shared) == ranks  # each of what it sees


@pytest.mark.parametrize(
    ("seen", "taken"),
    [
        ([["a"], ["b"], ["c"]], [0, 0, 0]),  # Slurm shows each rank its own
        ([["a", "b", "c"]] * 3, [0, 1, 2]),  # or all of them
        ([["a", "b"], ["a"]], [1, 0]),  # the second has no other
    ],
)
def test_as_launchers_show_them(seen, taken):
    found = device.assign(seen, False)
    assert sorted(places[at] for places, at in zip(seen, found, strict=True)) == sorted(
        places[at] for places, at in zip(seen, taken, strict=True)
    )
    assert len(seen[0]) == 3 or found == taken


def test_ranks_that_share_are_spread_evenly():
    found = device.assign([["a", "b"]] * 5, True)
    assert sorted((found.count(0), found.count(1))) == [2, 3]


def test_too_few_gpus_are_named_with_both_numbers():
    with pytest.raises(
        InputError, match=r"3 ranks on this node, but 2 GPUs: start at most 2 ranks a node, or .*--share-gpu"
    ):
        device.assign([["a", "b"]] * 3, False)
    with pytest.raises(InputError, match="2 ranks on this node, but 1 GPU: "):
        device.assign([["a"]] * 2, False)
    with pytest.raises(
        InputError, match="rank 1 of it sees a, which others take; show each rank its own, or all 3"
    ):
        device.assign([["a"], ["a"], ["b", "c"]], False)


def test_a_rank_without_a_gpu_says_what_it_was_shown(monkeypatch):
    monkeypatch.setattr(device.mpi, "node", lambda comm: comm)
    monkeypatch.setenv(device.VISIBLE, "")
    with pytest.raises(InputError, match=r"^no CUDA device \(no device\); CUDA_VISIBLE_DEVICES is '' there$"):
        device.take(Node(), Module([], "no device"))


def test_a_gpu_that_cannot_be_used_is_an_error_of_its_rank(monkeypatch):
    monkeypatch.setattr(device.mpi, "node", lambda comm: comm)
    module = Module(["a"])
    module.use_device = lambda number: (_ for _ in ()).throw(
        RuntimeError("choosing a GPU: busy or unavailable")
    )
    with pytest.raises(InputError, match=r"^rank 0 cannot use its GPU: choosing a GPU: busy or unavailable$"):
        device.take(Node(), module)


def test_a_rank_takes_its_gpu_and_stays_near_it(monkeypatch, tmp_path):
    monkeypatch.setattr(device.mpi, "node", lambda comm: comm)
    monkeypatch.setattr(device, "_BUS", tmp_path)
    before = os.sched_getaffinity(0)
    near = {min(before)}
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "local_cpulist").write_text(f"{min(before)},4000-4003\n")
    module = Module(["0000:3B:00.0"])
    try:
        seat = device.take(Node(), module)
        assert (seat, module.used) == (device.GpuAssignment(0, "0000:3B:00.0", 1), [0])
        assert os.sched_getaffinity(0) == before
        device.stay_near(Node(), seat)
        assert os.sched_getaffinity(0) == near
    finally:
        os.sched_setaffinity(0, before)


def test_who_is_bound_already_stays_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(device.mpi, "node", lambda comm: comm)
    monkeypatch.setattr(device, "_BUS", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "local_cpulist").write_text("0-1\n")
    before = os.sched_getaffinity(0)
    device.stay_near(Node([frozenset({4095})]), device.GpuAssignment(0, "a", 1))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("\n", set()), ("7\n", {7}), ("x-y\n", set())]
)
def test_lists_of_cores(monkeypatch, tmp_path, text, cores):
    monkeypatch.setattr(device, "_BUS", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "local_cpulist").write_text(text)
    assert device.near_cores("A") == cores
    assert device.near_cores("none") == frozenset()
