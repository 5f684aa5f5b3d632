"""The search for knobs on made-up surfaces, against an exhaustive one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mgg_hpc.plan.tune import MOST_POINTS, REPEATS, ROUNDS, Knob, Search, search

CPU = [Knob("wpb", (2, 4, 8, 16, 32, 64, 128, 256)), Knob("dist", (0, 4, 8, -1, 32, 64))]
GPU = [Knob("ps", (1, 2, 4, 8, 16, 32)), Knob("dist", (1, 2, 4, 8, 16)), Knob("wpb", (1, 2, 4, 8, 16))]
STARTS = {"cpu": (16, -1), "gpu": (16, 4, 8)}
KNOBS = {"cpu": CPU, "gpu": GPU}


def surface(rng, knobs, kind):
    """Seconds of each setting: a valley in the places of the knobs' values, with what the kind adds."""
    sizes = [len(knob.values) for knob in knobs]
    least = [rng.integers(size) for size in sizes]
    steep = rng.uniform(0.02, 0.3, len(knobs))
    seconds = {}
    for places in itertools.product(*map(range, sizes)):
        away = np.abs(np.array(places) - least)
        if kind == "plateaus":
            away = np.maximum(0, away - 1)
        value = 1 + float((steep * away).sum())
        if kind == "ties":
            value = 1 + round(value - 1, 1)
        if kind == "cliffs" and places[0] == sizes[0] - 1:
            value *= 4
        seconds[tuple(knob.values[place] for knob, place in zip(knobs, places, strict=True))] = value
    return seconds


@pytest.mark.parametrize("kind", ["valley", "plateaus", "ties", "cliffs", "noise"])
@pytest.mark.parametrize("device", KNOBS)
def test_the_setting_found_is_nearly_the_best_after_few_points(rng, device, kind):
    knobs, start, losses = KNOBS[device], STARTS[device], []
    for _ in range(100):
        seconds = surface(rng, knobs, kind)
        asked = []

        def measured(setting, seconds=seconds, asked=asked):
            asked.append(setting)
            return seconds[setting] * (1 + rng.exponential(0.01) if kind == "noise" else 1)

        found = search(knobs, measured, start)
        assert found.points == len(set(asked)) <= MOST_POINTS
        assert [step.setting for step in found.steps] == asked
        assert len(asked) <= REPEATS * MOST_POINTS + 2 * ROUNDS
        assert seconds[found.best] <= seconds[start] * (1.01 if kind == "noise" else 1)
        losses.append(seconds[found.best] / min(seconds.values()) - 1)
    # Where steps of 10 percent lie between equal times, some searches stop on such a step.
    assert np.mean(np.array(losses) <= 0.05) >= (0.85 if kind == "ties" else 0.97), sorted(losses)[-20:]


def test_a_setting_that_was_lucky_once_is_not_kept():
    """The default takes 1 s, another setting 0.5 s at first and then 1.1 s."""
    times = {(8, -1): iter([0.5] * REPEATS + [1.1] * ROUNDS)}
    found = search(CPU, lambda setting: next(times[setting]) if setting in times else 1.0, (16, -1))
    assert [step.knob for step in found.steps[-2 * ROUNDS :]] == ["compare"] * 2 * ROUNDS
    assert found.best == (16, -1) and found.gain == 0


def test_knobs_are_moved_in_their_order_and_ps_retreats_while_wpb_grows():
    """A surface on which only ps and wpb together save time."""

    def seconds(setting):
        ps, _, wpb = setting
        return 1.0 if ps * wpb == 128 and ps == 16 else 0.9 if (ps, wpb) == (8, 16) else 2.0

    found = search(GPU, seconds, (16, 4, 8), most=100)
    order = [step.knob for step in found.steps]
    assert list(dict.fromkeys(order)) == ["start", "ps", "dist", "wpb", "retreat", "compare"]
    assert found.best == (8, 4, 16) and found.gain == pytest.approx(0.1)


def test_settings_that_cannot_be_measured_are_passed_over(rng):
    seconds = surface(rng, GPU, "valley")
    found = search(GPU, seconds.__getitem__, (16, 4, 8), allowed=lambda setting: setting[2] <= 8)
    assert all(setting[2] <= 8 for setting in (step.setting for step in found.steps))


def test_searches_that_are_told_the_same_go_the_same_way(rng):
    """Times of the slowest rank: what ranks agree on."""
    ranks = [Search(CPU, (16, -1)) for _ in range(3)]
    while ranks[0].setting is not None:
        seconds = max(rng.uniform(0.5, 2) for _ in ranks)
        assert len({each.setting for each in ranks}) == 1
        for each in ranks:
            each.tell(seconds)
    assert {each.best for each in ranks} == {ranks[0].best} and ranks[1].setting is None


def test_a_start_that_no_knob_has_is_refused():
    with pytest.raises(ValueError, match="wpb = 3"):
        Search(CPU, (3, -1))
