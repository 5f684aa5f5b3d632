"""Stamps of halo exchanges on CPUs become events of a trace at the times that they say."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.training.profile import stamps

ROUNDS, RANKS = 2, 3


def test_events_are_where_the_stamps_are(rng):
    began, ended = 10.0, 20.0
    times = np.sort(rng.uniform(began, ended, 4 * ROUNDS)).reshape(ROUNDS, 4)
    waits, arrived, pushed = times[:, 2], times[:, 3], np.zeros((ROUNDS, RANKS))
    pushed[:, [0, 2]] = times[:, :2]
    values = [began, ended, *waits, *arrived, *pushed.ravel()]
    found = stamps.unpacked(values, ROUNDS, RANKS)
    assert (found.began, found.ended) == (began, ended)
    for name, wanted in (("waits", waits), ("arrived", arrived), ("pushed", pushed)):
        np.testing.assert_array_equal(getattr(found, name), wanted)

    plan = SimpleNamespace(lists=SimpleNamespace(rounds=ROUNDS))
    offset, base = (
        1000.0,
        1005.0,
    )  # Unix time is so much later, and the trace begins at 5 s of the stamps' clock
    made = [each for each in stamps.events([(plan, values)], RANKS, offset, base, 7) if each["ph"] == "X"]
    wanted = []
    for turn in range(ROUNDS):
        before = began if turn == 0 else pushed[turn - 1].max()
        wanted += [(f"halo: push round {turn + 1} to rank {to}", before, pushed[turn, to]) for to in (0, 2)]
        wanted.append((f"halo: wait for round {turn + 1}", waits[turn], arrived[turn]))
    assert [each["name"] for each in made] == [name for name, *_ in wanted]
    for event, (_, low, high) in zip(made, wanted, strict=True):
        assert event["ts"] == pytest.approx((low - 5) * 1e6) and event["dur"] == pytest.approx(
            (high - low) * 1e6
        )
        assert event["pid"] == 7 and event["args"]["call"] == 0
    assert list(stamps.events([], RANKS, offset, base, 7)) == []
