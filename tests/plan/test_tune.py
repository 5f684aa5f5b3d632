"""The search for knobs on made-up surfaces, against an exhaustive one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom

from mgg_hpc.plan.tune import MOST_POINTS, REPEATS, ROUNDS, Knob, Search, Setting

CPU = [Knob("wpb", (2, 4, 8, 16, 32, 64, 128, 256)), Knob("dist", (0, 4, 8, -1, 32, 64))]
GPU = [Knob("ps", (1, 2, 4, 8, 16, 32)), Knob("dist", (1, 2, 4, 8, 16)), Knob("wpb", (1, 2, 4, 8, 16))]
STARTS = {"cpu": (16, -1), "gpu": (16, 4, 8)}
KNOBS = {"cpu": CPU, "gpu": GPU}
KINDS = ("valley", "plateaus", "ties", "cliffs", "noise", "coupled")


def search(
    knobs: Sequence[Knob],
    measure: Callable[[Setting], float],
    start: Setting,
    allowed: Callable[[Setting], bool] = lambda setting: True,
    most: int = MOST_POINTS,
) -> Search:
    """A search that has ended, whose settings take the seconds that ``measure`` returns."""
    found = Search(knobs, start, allowed, most)
    while found.setting is not None:
        found.tell(measure(found.setting))
    return found


def surface(rng: np.random.Generator, knobs: Sequence[Knob], kind: str) -> dict[tuple[int, ...], float]:
    """Seconds of each setting: a valley in the places of the knobs' values, with what the kind adds.

    coupled: the valley of the second knob lies elsewhere for each value of the first one.
    """
    sizes = [len(knob.values) for knob in knobs]
    places = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), axis=-1).reshape(-1, len(knobs))
    least, steep = [rng.integers(size) for size in sizes], rng.uniform(0.02, 0.3, len(knobs))
    away = np.abs(places - least)
    if kind == "plateaus":
        away = np.maximum(0, away - 1)
    if kind == "coupled":
        away[:, 1] = np.abs(places[:, 1] - least[1] + rng.choice([-1, 1]) * (places[:, 0] - least[0]))
    seconds = 1 + away @ steep
    if kind == "ties":
        seconds = seconds.round(1)
    if kind == "cliffs":
        seconds[places[:, 0] == sizes[0] - 1] *= 4
    settings = itertools.product(*(knob.values for knob in knobs))
    return dict(zip(settings, seconds.tolist(), strict=True))


@dataclass(frozen=True)
class Found:
    """Result of a search. over_best, over_start: its setting's time over the best one's and the start's, less 1."""

    search: Search
    over_best: float
    over_start: float


def found(search: Search, seconds: Mapping[tuple[int, ...], float]) -> Found:
    """Compare a search that has ended with the times of all settings."""
    taken = seconds[search.best]
    return Found(search, taken / min(seconds.values()) - 1, taken / seconds[tuple(search.start)] - 1)


def least_share(share: float, count: int) -> float:
    """Return the share of ``count`` draws that is undercut once in a million times, if each counts with this chance."""
    return float(binom.ppf(1e-6, count, share)) / count


def over_surface(rng: np.random.Generator, device: str, kind: str) -> Found:
    """Search a surface drawn at random for a device's knobs."""
    seconds = surface(rng, KNOBS[device], kind)
    noise = 0.01 if kind == "noise" else 0.0
    ended = search(KNOBS[device], lambda at: seconds[at] * (1 + noise * rng.exponential()), STARTS[device])
    return found(ended, seconds)


# Shares of searches within 5 percent, of 10,000. Where steps of 10 percent lie between
# equal times, some searches stop on such a step; where knobs are coupled, some stop in another valley.
SHARES = {
    "cpu": {"": 0.999, "ties": 0.989, "coupled": 0.9},
    "gpu": {"": 0.971, "ties": 0.93, "coupled": 0.769},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", KNOBS)
def test_the_setting_found_is_nearly_the_best_after_few_points(rng, device, kind):
    ends = [over_surface(rng, device, kind) for _ in range(100)]
    for end in ends:
        asked = [step.setting for step in end.search.steps]
        assert end.search.points == len(set(asked)) <= MOST_POINTS
        assert len(asked) <= REPEATS * MOST_POINTS + 2 * ROUNDS
        assert end.over_start <= (0.01 if kind == "noise" else 0)
    losses, share = np.array([end.over_best for end in ends]), SHARES[device].get(kind, SHARES[device][""])
    assert np.mean(losses <= 0.05) >= least_share(share, len(ends)), np.sort(losses)[-20:]


@pytest.mark.parametrize(
    ("searched", "compared", "default", "gain"),
    [  # what another setting takes in the search and in the comparison; the default 1 s, and then so long
        ([0.5] * REPEATS, [1.1] * ROUNDS, 1.0, 0),  # lucky once
        ([0.8, 3.0], [0.9, 3.0, 3.0], 0.95, 1 - 0.9 / 0.95),  # of repeated times the least counts
        ([3.0, 0.8], [3.0, 3.0, 0.9], 0.95, 1 - 0.9 / 0.95),
        ([0.5] * REPEATS, [0.995] * ROUNDS, 1.0, 0),  # less than a hundredth is not worth it
        ([0.5] * REPEATS, [0.98] * ROUNDS, 1.0, 0.02),
    ],
)
def test_a_setting_is_kept_that_saves_time_again(searched, compared, default, gain):
    times = {(8, -1): iter(searched + compared), (16, -1): iter([1.0] * REPEATS + [default] * ROUNDS)}
    found = search(CPU, lambda setting: next(times[setting]) if setting in times else 2.0, (16, -1))
    assert [step.knob for step in found.steps[-2 * ROUNDS :]] == ["compare"] * 2 * ROUNDS
    assert found.best == ((8, -1) if gain else (16, -1)) and found.gain == pytest.approx(gain)
    assert found.seconds == (default, min(compared) if gain else default)


def test_knobs_are_moved_in_their_order_and_ps_retreats_while_wpb_grows():
    """A surface on which only ps and wpb together save time."""

    def seconds(setting):
        ps, _, wpb = setting
        return 1.0 if ps * wpb == 128 and ps == 16 else 0.9 if (ps, wpb) == (8, 16) else 2.0

    found = search(GPU, seconds, (16, 4, 8), most=100)
    order = dict.fromkeys(step.knob for step in found.steps)
    assert " > ".join(order) == "start > ps > dist > wpb > ps against dist > retreat > around > compare"
    assert found.best == (8, 4, 16) and found.gain == pytest.approx(0.1)


@pytest.mark.parametrize(("bottom", "step"), [(4.0, 0), (4.4, 0), (4.6, 1), (3.4, -1)])
def test_where_time_is_known_on_both_sides_a_parabola_says_where_to_look(bottom, step):
    """Places 2 and 6 are measured first, from the start at place 4."""
    values = tuple(range(9))
    found = search([Knob("wpb", values)], lambda setting: 1 + (setting[0] - bottom) ** 2, (4,))
    moved = {each.setting[0] for each in found.steps if each.knob == "wpb"}
    assert moved == {2, 6} | ({4 + step} if step else set())


def test_settings_that_do_not_fit_are_measured_once_and_take_no_point(rng):
    """And those that are not allowed never."""
    times = surface(rng, GPU, "valley")
    fits = {each: value if each[0] * each[1] <= 32 else math.inf for each, value in times.items()}
    found = search(GPU, fits.__getitem__, (8, 4, 8), allowed=lambda setting: setting[2] <= 8)
    asked = [step.setting for step in found.steps]
    assert all(setting[2] <= 8 for setting in asked)
    refused = [step.setting for step in found.steps if math.isinf(step.seconds)]
    assert len(refused) == len(set(refused)) and found.points <= MOST_POINTS
    assert len(set(asked)) == found.points + len(refused)
    assert fits[found.best] <= 1.3 * min(value for each, value in fits.items() if each[2] <= 8)


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
