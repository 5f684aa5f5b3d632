"""Pictures of results, with the values of their rows."""

from __future__ import annotations

import pytest
from harness import plots
from harness.plots import Bars
from harness.results import Results, text

from mgg_hpc.errors import InputError


@pytest.fixture
def results(rng):
    """Three variants on two widths; the last of them is measured by two rows."""
    found = Results("transfers", graph="g", threads=2)
    for width in (16, 64):
        first = rng.uniform(1, 2, 5)
        found.compare({"a": first, "b": 3 * first, "c": 0.5 * first}, width=width)
        found.add("c", 2 * first, first, width=width)
    return found


def lengths(figure) -> list[list[float]]:
    return [[bar.get_width() for bar in axes.patches] for axes in figure.get_axes()]


def said(figure) -> list[list[str]]:
    return [[each.get_text() for each in axes.texts] for axes in figure.get_axes()]


def test_bars_are_as_long_as_values_and_side_by_side_as_ratios(results):
    rows = results.rows
    below = Bars("t", ("width",))(results)
    medians = [row["median_ms"] for row in rows]
    expected = [[*at[:2], (at[2] + at[3]) / 2] for at in (medians[:4], medians[4:])]
    assert lengths(below) == [pytest.approx(each) for each in expected]
    assert said(below)[0][1] == f"{text(medians[1])} ms"
    beside = Bars("t", across="width")(results)
    assert lengths(beside) == [pytest.approx([1, 3, 1])] * 2
    assert said(beside) == [["1×", "3×", "1×"]] * 2


def test_benchmarks_without_a_picture_are_refused(results):
    results.name = "predictions"
    with pytest.raises(InputError, match="there is no picture of 'predictions'; expected aggregate, epoch"):
        plots.draw(results)
