"""Tables of benchmarks compare rows with the first, turn by turn; what is no graph or no list is refused."""

from __future__ import annotations

import pytest
from harness import graphs
from harness.results import Results

from mgg_hpc.errors import InputError
from mgg_hpc.sizes import numbers_of


def test_rows_are_compared_with_the_first_turn_by_turn():
    results = Results("made up", graph="g")
    results.compare(
        {"first": [1.0, 2.0, 4.0], "slow": [3.0, 2.0, 40.0], "once": [5.0]}, {"slow": {"mb": 7}}, width=8
    )
    first, slow, once = results.rows
    assert (first["relative_time"], slow["relative_time"], once["relative_time"]) == (1, 3, 5)
    assert (slow["min_ms"], slow["median_ms"], slow["max_ms"], slow["mb"]) == (2, 3, 40, 7)
    assert "mb" not in first and once["turns"] == 1
    assert results.csv().splitlines()[0].startswith("benchmark,date,cpu,graph,width,variant,turns,min_ms")


REFUSED = {
    "karate": "karate: no such graph",
    "absent.h5": "absent.h5: no such file",
    "rmat:29": "rmat:29: a scale of 28 at most",
    "rmat:27:16": "rmat:27:16: has 2,147,483,648 edges; int32 indices take 1 .. 2",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_graph_is_refused(name):
    with pytest.raises(InputError, match=REFUSED[name]):
        graphs.check(name)


def test_what_is_no_list_of_numbers_is_refused():
    assert numbers_of("ranks", "1, 65536") == [1, 65536]
    with pytest.raises(InputError, match=r"^--ranks 0: .0.; expected numbers of 1 \.\. 65536$"):
        numbers_of("ranks", "0")
