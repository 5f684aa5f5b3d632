"""Plans of hybrid mini-batches against the longest path through an epoch's activities, and exhaustive search."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from mgg_hpc.plan import hybrid
from mgg_hpc.plan.hybrid import Overlap, Phases

NS = 1e-9


def phases_of(rng, workers: int = 1) -> Phases:
    """Random phases in whole microseconds, over two orders of magnitude; a third of them have a slow CPU."""
    cpu, copy, device, train = np.exp(rng.uniform(np.log(200), np.log(20_000), 4)).astype(int) * 1e-6
    return Phases(cpu * workers, copy, device, train, workers)


def overlaps_of(rng) -> tuple[list[tuple[int, Overlap]], tuple[int, int]]:
    """Random overlaps, and buffers that hold them."""
    sizes = rng.integers(0, 6, (4, 3))
    sizes[sizes.sum(1) == 0] = 1
    overlaps = [(int(rng.integers(1, 5)), Overlap(*map(int, each))) for each in sizes]
    buffers = [max(1, int(sizes[:, i].max() + rng.integers(0, 3))) for i in range(2)]
    return overlaps, (buffers[0], buffers[1])


def longest_paths(plan: hybrid.Plan) -> tuple[int, int]:
    """Return when link and device end an epoch, in ns: each activity begins when those that it needs have ended.

    An activity is ("cpu", j), ("copy", j), ("prepare", k) or ("train", k): the j-th batch of the CPU, or batch k.
    """
    phases, program, ours = plan.phases, list(plan.program()), list(plan.of_cpu())
    place = {number: j for j, number in enumerate(ours)}
    order = [("prepare" if prepares else "train", number) for prepares, number in program]
    at = {each: i for i, each in enumerate(order)}
    link: dict[tuple[str, int], list[tuple[str, int]]] = {}  # who had the link before
    last: list[tuple[str, int]] = []
    first = 0
    for overlap in plan.each():
        own = range(first, first + overlap.device + overlap.extra)
        copies = range(own.stop, own.stop + overlap.cpu)
        for each in [("prepare", k) for k in own] + [("copy", place[k]) for k in copies]:
            link[each], last = last, [each]
        first = copies.stop
    seconds = {"cpu": phases.cpu, "copy": phases.copy, "prepare": phases.device, "train": phases.train}

    @functools.cache
    def end(what: str, number: int) -> int:
        waits = []
        if what == "cpu":
            waits += [("cpu", number - phases.workers), ("copy", number - phases.workers - plan.buffers[0])]
            waits += [] if plan.buffers[0] else [("train", ours[number] - 1)]
        else:
            waits += link.get((what, number), [])
        if what == "copy":
            waits += [("cpu", number), ("train", ours[number] - plan.buffers[1] - 1)]
        if what in ("prepare", "train"):
            waits += order[max(0, at[what, number] - 1) : at[what, number]]
        if what == "train" and number in place:
            waits.append(("copy", place[number]))
        return round(seconds[what] / NS) + max((end(*each) for each in waits if each[1] >= 0), default=0)

    ends = [end(*each) for each in order]  # so that the recursion stays shallow
    return end(*last[0]), ends[-1]


@pytest.mark.trials(100)
def test_an_epoch_ends_with_the_longest_paths(rng, trials):
    for _ in range(trials):
        overlaps, buffers = overlaps_of(rng)
        phases = phases_of(rng, int(rng.integers(1, 4)))
        clock = hybrid._Clock(phases, buffers)
        seconds = clock.run(overlaps)
        plan = hybrid.Plan("hybrid", phases, tuple(overlaps), buffers, seconds)
        assert tuple(clock.state[:2]) == longest_paths(plan), plan
        assert seconds == hybrid.simulate(phases, overlaps, buffers)
        for plan in hybrid.static(phases, int(rng.integers(1, 40))):
            assert plan.seconds == longest_paths(plan)[1] * NS, plan


@pytest.mark.trials(50)
def test_each_batch_is_prepared_once_and_trained_on_in_its_turn(rng, trials):
    for _ in range(trials):
        batches, most = int(rng.integers(1, 400)), (int(rng.integers(1, 9)), int(rng.integers(1, 6)))
        for plan in hybrid.plans(phases_of(rng), batches, most).values():
            program, ours = list(plan.program()), list(plan.of_cpu())
            assert [number for prepares, number in program if not prepares] == list(range(batches))
            theirs = [number for prepares, number in program if prepares]
            assert sorted(ours + theirs) == list(range(batches)) and ours == sorted(ours)
            assert (plan.batches, plan.on_cpu, plan.on_device) == (batches, len(ours), len(theirs))
            held = most_held = 0
            for prepares, number in program:
                held += prepares or -(number not in set(ours))
                most_held = max(most_held, held)
            assert most_held <= plan.buffers[1] and held == 0
            assert plan.buffers[0] <= most[0] and plan.buffers[1] <= most[1]


@pytest.mark.trials(30)
def test_the_last_overlaps_are_as_good_as_any_division_of_them(rng, trials, monkeypatch):
    more = []
    for _ in range(trials):
        given = phases_of(rng), int(rng.integers(10, 300)), tuple(map(int, rng.integers(1, 9, 2)))
        with monkeypatch.context() as patch:
            patch.setattr(hybrid, "NEAR", 10**6)
            least = hybrid.dual(*given).seconds
        more.append(hybrid.dual(*given).seconds / least)
    assert np.median(more) == 1 and np.quantile(more, 0.9) < 1.02, np.sort(more)[-5:]


@pytest.mark.trials(20)
def test_repeated_overlaps_are_skipped_without_a_change(rng, trials):
    """As if each were simulated; some buffers fill so slowly that thousands of overlaps differ."""
    for _ in range(trials):
        phases, overlap = phases_of(rng, int(rng.integers(1, 3))), Overlap(*map(int, rng.integers(1, 5, 3)))
        if rng.random() < 0.5:  # CPU and device take nearly as long
            own = overlap.device + overlap.extra
            device = (own * phases.device + sum(overlap) * phases.train) / overlap.cpu
            phases = Phases(device * phases.workers + 1e-6, 0.0, phases.device, phases.train, phases.workers)
        buffers, times = (int(overlap.cpu + rng.integers(0, 40)), overlap.device), int(rng.integers(1, 3000))
        each = hybrid.simulate(phases, [(1, overlap)] * times, buffers)
        assert hybrid.simulate(phases, [(times, overlap)], buffers) == each


def test_an_epoch_of_any_length_takes_few_steps(monkeypatch, rng):
    """1e5 batches take milliseconds: fewer than 300 overlaps are simulated, even if none is as the one before."""
    count, mapped = [], hybrid._Clock._mapped
    monkeypatch.setattr(hybrid._Clock, "_mapped", lambda *given: count.append(1) or mapped(*given))
    slow = Phases(cpu=100.0, copy=0.001, device=0.001, train=0.001)
    for batches, phases in ((10**5, phases_of(rng)), (10**7, phases_of(rng)), (10**5, slow)):
        plan = hybrid.dual(phases, batches, (12, 8))
        assert (len(count), plan.batches) < (10_000, batches + 1)
        count.clear()
        assert hybrid.simulate(plan.phases, plan.overlaps, plan.buffers) == plan.seconds
        assert len(count) < 300


def test_a_pipeline_of_several_threads_takes_few_steps(monkeypatch, rng):
    """And as long as its batches one by one."""
    count, mapped = [], hybrid._Clock._mapped
    monkeypatch.setattr(hybrid._Clock, "_mapped", lambda *given: count.append(1) or mapped(*given))
    for workers in (3, 8):
        plan, *_ = hybrid.static(phases_of(rng, workers), 10**5 + 1)
        assert plan.on_cpu == plan.batches == 10**5 + 1 and len(count) < 300
        one_by_one = [(2000, Overlap(1, 0))]
        short, *_ = hybrid.static(plan.phases, 2000)
        assert short.seconds == hybrid.simulate(plan.phases, one_by_one, short.buffers)
        count.clear()


@pytest.mark.trials(20)
def test_the_bound_is_that_of_the_best_division(rng, trials):
    for _ in range(trials):
        phases, batches = phases_of(rng), int(rng.integers(1, 40))
        best = math.inf
        for theirs in range(batches + 1):
            ours = batches - theirs
            device = batches * phases.train + theirs * phases.device
            link = theirs * phases.device + ours * phases.copy
            best = min(best, max(device, link, ours * phases.cpu))
        assert hybrid.bound(phases, batches) == pytest.approx(best, rel=1e-12)
        for plan in hybrid.plans(phases, batches).values():
            assert plan.seconds >= best * (1 - 1e-6)  # times are rounded to nanoseconds


@pytest.mark.trials(25)
def test_the_choice_is_near_the_bound_and_never_slower_than_one_side_alone(rng, trials):
    over = []
    for _ in range(trials):
        phases = phases_of(rng)
        found = hybrid.plans(phases, 1000)
        chosen = hybrid.choose(found)
        slowest = max(phases.cpu, phases.copy, phases.train)
        pipeline = 999 * slowest + phases.cpu + phases.copy + phases.train
        assert found["cpu"].seconds == pytest.approx(pipeline)
        assert found["device"].seconds == pytest.approx(1000 * (phases.device + phases.train))
        assert found["sequential"].seconds == pytest.approx(1000 * (phases.cpu + phases.copy + phases.train))
        assert chosen.seconds <= min(found[name].seconds for name in ("cpu", "device", "sequential"))
        over.append(chosen.seconds / hybrid.bound(phases, 1000))
        assert all(0 <= share <= 1 + 1e-6 for share in chosen.busy.values())
    assert np.median(over) < 1.02 and max(over) < 1.35, np.sort(over)[-5:]


@pytest.mark.trials(50)
def test_the_start_minimises_equation_6(rng, trials):
    for _ in range(trials):
        phases = phases_of(rng, 2)
        grid = np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 20_000)])
        times = grid * phases.device + np.maximum(
            np.maximum(phases.copy, (1 + grid) * phases.train), phases.cpu / 2 - grid * phases.device
        )
        x, least = hybrid.start(phases), (times / (1 + grid)).min()
        at = phases.device + phases.train
        if math.isfinite(x):
            slowest = max(phases.copy, (1 + x) * phases.train, phases.cpu / 2 - x * phases.device)
            at = (x * phases.device + slowest) / (1 + x)
        assert at <= least * (1 + 1e-4)


def test_a_pipeline_is_chosen_where_training_takes_longest():
    found = hybrid.plans(Phases(cpu=0.01, copy=0.005, device=0.004, train=0.02), 100)
    assert hybrid.start(found["cpu"].phases) == 0
    assert hybrid.choose(found) is found["cpu"]
    assert found["cpu"].seconds == pytest.approx(0.01 + 0.005 + 100 * 0.02)


@pytest.mark.parametrize(
    "wrong", [{"cpu": 0}, {"train": -1}, {"copy": math.nan}, {"device": math.inf}, {"workers": 0}]
)
def test_phases_that_cannot_be_are_refused(wrong):
    given = {"cpu": 0.1, "copy": 0.1, "device": 0.1, "train": 0.1} | wrong
    with pytest.raises(ValueError, match="positive seconds"):
        Phases(**given)
