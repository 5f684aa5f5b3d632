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

    def __init__(self, places, why="", uuids=None):
        self.places, self.why, self.uuids, self.used = places, why, uuids, []

    def devices(self):
        return len(self.places), self.why

    def device_places(self):
        return self.places

    def device_uuids(self):
        return self.uuids or [f"uuid of {place}" for place in self.places]

    def use_device(self, number):
        self.used.append(number)


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
    ("seen", "taken"),
    [
        ([["a"], ["b"], ["c"]], [0, 0, 0]),  # Slurm shows each rank its own
        ([["a", "b", "c"]] * 3, [0, 1, 2]),  # or all of them
        ([["a", "b"], ["a"]], [1, 0]),  # the second has no other
    ],
)
def test_as_launchers_show_them(seen, taken):
    found = device.assign(seen, False)
    assert sorted(given(seen, found)) == sorted(given(seen, taken))
    assert len(seen[0]) == 3 or found == taken


def test_ranks_that_share_are_spread_evenly():
    found = device.assign([["a", "b"]] * 5, True)
    assert sorted((found.count(0), found.count(1))) == [2, 3]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([["a", "b"]] * 3, "3 ranks on this node, but 2 GPUs: start at most 2 ranks a node.*--share-gpu"),
        ([["a"]] * 2, "2 ranks on this node, but 1 GPU: "),
        ([["a"], ["a"], ["b", "c"]], "rank 1 of it sees a, which others take; .* or all 3"),
    ],
)
def test_too_few_gpus_are_named_with_both_numbers(seen, message):
    with pytest.raises(InputError, match=message):
        device.assign(seen, False)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """One rank on the node; the folder of PCI devices is another."""
    monkeypatch.setattr(device.mpi, "node", lambda comm: comm)
    monkeypatch.setattr(device, "_BUS", tmp_path)


def list_cores(folder, place, text):
    """Write which cores are near a GPU, as the kernel does."""
    (folder / place).mkdir()
    (folder / place / "local_cpulist").write_text(text)


def test_a_rank_without_a_gpu_says_what_it_was_shown(alone, monkeypatch):
    monkeypatch.setenv(device.VISIBLE, "")
    with pytest.raises(InputError, match=r"^no CUDA device \(no device\); CUDA_VISIBLE_DEVICES is '' there$"):
        device.take(Node(), Module([], "no device"))


def test_a_gpu_that_cannot_be_used_is_an_error_of_its_rank(alone):
    module, busy = Module(["a"]), RuntimeError("choosing a GPU: busy or unavailable")
    module.use_device = lambda number: (_ for _ in ()).throw(busy)
    with pytest.raises(InputError, match=r"^rank 0 cannot use its GPU: choosing a GPU: busy or unavailable$"):
        device.take(Node(), module)


def test_parts_of_one_gpu_share_its_place_and_are_taken_one_each(alone):
    module = Module(["0000:3B:00.0"] * 2, uuids=["mig 1", "mig 2"])
    node = Node([(["mig 1", "mig 2"], None, "")])
    node.Get_rank = lambda: 1
    assert device.take(node, module) == device.GpuAssignment(0, "mig 1", "0000:3B:00.0", 1)


def test_a_rank_takes_its_gpu_and_stays_near_it(alone, tmp_path):
    before = os.sched_getaffinity(0)
    near = {min(before)}
    list_cores(tmp_path, "0000:3b:00.0", f"{min(before)},4000-4003\n")
    module = Module(["0000:3B:00.0"])
    try:
        assignment = device.take(Node(), module)
        assert (assignment, module.used) == (
            device.GpuAssignment(0, "uuid of 0000:3B:00.0", "0000:3B:00.0", 1),
            [0],
        )
        assert os.sched_getaffinity(0) == before
        device.stay_near(Node(), assignment)
        assert os.sched_getaffinity(0) == near
    finally:
        os.sched_setaffinity(0, before)


def test_who_is_bound_already_stays_where_it_is(alone, tmp_path):
    list_cores(tmp_path, "a", "0-1\n")
    before = os.sched_getaffinity(0)
    device.stay_near(Node([frozenset({4095})]), device.GpuAssignment(0, "a", "a", 1))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("7", {7}), ("x-y", set())]
)
def test_lists_of_cores(alone, tmp_path, text, cores):
    list_cores(tmp_path, "a", f"{text}\n")
    assert device.near_cores("A") == cores
    assert device.near_cores("none") == frozenset()
