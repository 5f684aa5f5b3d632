"""The suite's own plugins: which tests a tier runs, samples of grids, and random numbers that can be drawn again."""

from __future__ import annotations

import itertools
import re

import pytest
import tiers

TESTS = """
    import dataclasses, pytest
    from pathlib import Path
    from tiers import drawn

    @dataclasses.dataclass(frozen=True)
    class Line:
        width: int
        kind: str

    @pytest.mark.sampled
    @pytest.mark.parametrize("line", [Line(w, k) for w in range(4) for k in "ab"], ids=str)
    @pytest.mark.parametrize("ranks", [1, 2])
    @pytest.mark.parametrize("kind", [list, dict])
    def test_grid(rng, line, ranks, kind): pass

    @pytest.mark.slow
    def test_slow(): pass

    @pytest.mark.long
    def test_long(): pass

    @pytest.mark.long
    @pytest.mark.parametrize("row", drawn(range(4), 2))
    def test_rare(row): pass

    def test_often(rng):
        Path("drawn.txt").open("a").write(f"{rng.integers(1 << 60)}\\n")

    def test_plain(): pass

    @pytest.mark.torture
    def test_torture(): pass

    @pytest.mark.mpi
    def test_ranks(): pass

    @pytest.mark.trials(2, torture=9)
    def test_tried(trials): print("trials", trials)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run TESTS with options; returns the names of its tests and what was printed."""
    pytester.makeini("[pytest]\npythonpath = " + str(tiers.__file__).removesuffix("/tiers.py"))
    pytester.makeconftest('pytest_plugins = ["seeds", "tiers"]')

    def run(*words: str, seed: object = 2023) -> tuple[list[str], str]:
        monkeypatch.setenv("MGG_TEST_SEED", str(seed))
        pytester.makepyfile(test_it=TESTS)
        said = pytester.runpytest_subprocess("-v", "-s", "-p", "no:cacheprovider", *words).stdout.str()
        return re.findall(r"^test_it.py::(.*?) (?:PASSED|FAILED|trials)", said, re.MULTILINE), said

    return run


@pytest.mark.parametrize("strength", [0, 1, 2, 3])
def test_a_sample_has_every_tuple_of_values(rng, strength):
    """The grid is a random part of all combinations of four parameters; the sample is smaller than the grid."""
    every = list(itertools.product(*(range(size) for size in (5, 4, 3, 2))))
    combinations = [every[at] for at in rng.permutation(len(every))[: len(every) * 3 // 4]]
    named = [[(f"p{i}", str(value)) for i, value in enumerate(each)] for each in combinations]
    chosen = tiers.cover(named, strength, rng)
    for places in itertools.combinations(range(4), strength):
        seen = {tuple(combinations[at][place] for place in places) for at in chosen}
        assert seen == {tuple(each[place] for place in places) for each in combinations}
    assert len(chosen) < len(combinations)


@pytest.mark.long
@pytest.mark.parametrize(
    ("tier", "others", "grids", "trials"),
    [
        ("fast", {"plain", "often", "tried"}, 2, 2),
        ("test", {"plain", "often", "tried", "slow"}, 4, 2),  # there are four widths
        ("long", {"long", "often", "tried"}, 4, 10),
        ("torture", {"torture", "tried"}, 0, 9),
    ],
)
def test_each_test_belongs_to_its_tiers(run, tier, others, grids, trials):
    names, said = run("--tier", tier)
    grid, rare = ([name for name in names if name.startswith(f"test_{start}")] for start in ("grid", "rare"))
    assert set(names) - {*grid, *rare} == {f"test_{name}" for name in others}
    assert f"trials {trials}\n" in said
    assert len(rare) == (2 if tier == "long" else 0) and len(grid) == grids
    if grids == 4:
        values = [*(f"width={width}" for width in range(4)), "'a'", "'b'", "-1-", "-2-", "[list", "[dict"]
        assert all(any(value in name for name in grid) for value in values)


@pytest.mark.long
def test_numbers_and_samples_are_the_same_with_the_same_seed_alone(run, pytester):
    """What `make test-long` draws of a grid is none of what `make test` runs."""
    for options in ([], [], ["--seeds", "20"], ["-k", "often"]):
        names, _ = run(*options, seed=2024 if "-k" in options else 2023)
        if "--seeds" in options:  # no parameters of a grid
            assert sum("grid" in name for name in names) == 4 * 20
    first, again, *twenty, second = (pytester.path / "drawn.txt").read_text().split()
    assert first == again == twenty[0] and second == twenty[1] and len(set(twenty)) == 20
    always, one, other = (
        set(run("--tier", tier, "-k", "grid", seed=seed)[0])
        for tier, seed in (("test", 7), ("long", 0), ("long", 1))
    )
    assert always.isdisjoint(one | other) and one != other
