"""What ranks send each other for halos, in rounds and in chunks; test_workload.py has what they ask for."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from world import plans_of

from mgg_hpc.plan import halo, halo_messages


def test_what_is_sent_is_what_was_asked_for(rng):
    case = cases.ordinary(rng, 4)
    plans = plans_of(case, "halo")
    for receiver, plan in enumerate(plans):
        for sender, other in enumerate(plans):
            received, sent = plan.lists.receive_counts[:, sender], other.lists.send_counts[:, receiver]
            np.testing.assert_array_equal(received, sent)
    places = np.concatenate([[0], np.cumsum(plans[1].lists.receive_counts.reshape(-1))])[:-1].reshape(-1, 4)
    for sender in range(4):
        np.testing.assert_array_equal(plans[sender].lists.send_places[:, 1], places[:, sender])
    assert {plan.lists.capacity for plan in plans} == {max(len(plan.halo) for plan in plans)}


def test_small_halos_come_in_one_round_and_large_ones_in_a_few():
    assert halo.round_count(0) == halo.round_count(halo.ROWS_PER_ROUND) == 1
    assert halo.round_count(3 * halo.ROWS_PER_ROUND) == 3
    assert halo.round_count(10**9) == halo.MOST_ROUNDS


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("name", cases.CASES)
def test_chunks_fill_the_receivers_staging_once_each_with_a_signal_of_its_own(rng, name, rows):
    case = cases.CASES[name](rng, 3)
    plans = plans_of(case, "halo", 1)
    made = [halo_messages.in_messages(plan, rows, min(rows, 2)) for plan in plans]
    for rank, (plan, schedule) in enumerate(zip(plans, made, strict=True)):
        staged, signals = np.full(len(plan.halo), -1), []
        for sender, other in enumerate(made):
            for push in other.pushes[other.pushes["pe"] == rank]:
                assert 0 < push["rows"] <= rows and push["box"] == push["first"]
                sent = other.send_rows[push["first"] :][: push["rows"]]
                part = slice(int(push["place"]), int(push["place"] + push["rows"]))
                assert (staged[part] < 0).all() and len(staged[part]) == len(sent)
                staged[part] = case.bounds[sender] + sent
                signals.append((int(push["signal"]), part.start, int(push["rows"]), sender))
        owner = np.repeat(np.arange(3), plan.lists.receive_counts[0])
        np.testing.assert_array_equal(staged, case.bounds[owner] + plan.halo if len(owner) else [])
        arrivals = (schedule.arrivals[name].tolist() for name in ("signal", "first", "rows"))
        assert sorted(zip(*arrivals, schedule.origins.tolist(), strict=True)) == sorted(signals)
        numbers = schedule.arrivals["signal"]
        assert len(np.unique(numbers)) == len(numbers) and (numbers < schedule.credits).all()
        assert schedule.signals == schedule.credits + 3 and schedule.signals == made[0].signals
        assert schedule.owners.tolist() == np.unique(owner).tolist()
        assert halo_messages.crosses(plan) == bool(len(schedule.pushes) or len(numbers))
        assert halo_messages.extent(plan) == (plan.lists.capacity, plan.lists.most_sent)


def test_chunks_are_of_halos_in_one_round(rng):
    case = cases.ordinary(rng, 2)
    for plan in (plans_of(case, "halo", 2)[0], plans_of(case, "direct")[0]):
        with pytest.raises(ValueError, match="GPUs take a plan of one round"):
            halo_messages.in_messages(plan, 4, 4)
    assert halo_messages.extent(plan) is None and not halo_messages.crosses(plan)
    assert [halo_messages.rows_a_message(size, 1000) for size in (16, 1000, 1001)] == [62, 1, 1]
