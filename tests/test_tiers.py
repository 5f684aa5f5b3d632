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
FAILING = """
    import pytest

    @pytest.mark.long
    def test_long(rng): assert rng.integers(4) == -1

    @pytest.mark.trials(1)
    def test_tried(rng, trials): assert trials == 1 and rng.integers(4)

    @pytest.mark.sampled
    @pytest.mark.parametrize("b", range(2))
    @pytest.mark.parametrize("a", range(2))
    def test_grid(rng, a, b): assert 0
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run TESTS, or another text, with options; returns the names of its tests and what was printed."""
    pytester.makeini("[pytest]\npythonpath = " + str(tiers.__file__).removesuffix("/tiers.py"))
    pytester.makeconftest('pytest_plugins = ["seeds", "tiers"]')

    def run(*words: str, text: str = TESTS, seed: object = 2023) -> tuple[list[str], str]:
        monkeypatch.setenv("MGG_TEST_SEED", str(seed))
        pytester.makepyfile(test_it=text)
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


@pytest.mark.slow
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
def test_each_run_of_test_long_draws_samples_of_its_own(run):
    """None has what `make test` runs, which is always the same; in time they have run all combinations."""
    always = set(run("-k", "grid")[0])
    assert always == set(run("-k", "grid", seed=7)[0])
    runs = [set(run("--tier", "long", "-k", "grid or rare", seed=seed)[0]) for seed in range(24)]
    assert runs[0] == set(run("--tier", "long", "-k", "grid or rare", seed=0)[0]) != runs[1]
    assert all(always.isdisjoint(sample) for sample in runs)
    assert len(always.union(*runs)) == 32 + 4


@pytest.mark.long
def test_numbers_are_the_same_in_each_run_and_others_with_other_seeds(run, pytester):
    for options in ([], [], ["--seeds", "20"], ["-k", "often"]):
        names, _ = run(*options, seed=2024 if "-k" in options else 2023)
        if "--seeds" in options:  # no parameters of a grid
            assert sum("grid" in name for name in names) == 4 * 20
    first, again, *twenty, second = (pytester.path / "drawn.txt").read_text().split()
    assert first == again == twenty[0] and second == twenty[1] and len(set(twenty)) == 20


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["test", "long"])
def test_what_failed_fails_again_by_the_command_that_is_printed(run, tier):
    _, said = run("--tier", tier, *(["--seeds", "9"] if tier == "test" else []), text=FAILING, seed=9)
    commands = re.findall(r"MGG_TEST_SEED=(\d+) \S*python -m pytest '?(test_it.py::[^'\s]+)'?(.*)", said)
    assert len(commands) == said.count("\nFAILED") and {name[12:18] for _, name, _ in commands} >= {
        "test_t",
        "test_g",
    }
    for seed, name, options in commands[:: 1 if tier == "long" else 7]:
        assert "1 failed" in run(name, *options.split(), text=FAILING, seed=seed)[1]


@pytest.mark.parametrize(
    ("options", "variables", "reason"),
    [
        (["--seeds", "0"], {}, "--seeds 0: expected 1 or more"),
        ([], {"MGG_TEST_SEED": "x"}, "MGG_TEST_SEED=x: expected a whole number, 0 or more"),
        ([], {"MGG_TEST_DRAW": "some"}, "MGG_TEST_DRAW=some: expected all, or nothing"),
    ],
)
def test_wrong_options_are_one_line(run, pytester, monkeypatch, options, variables, reason):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = pytester.runpytest_subprocess(*options)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR and ended.stderr.str().strip() == f"ERROR: {reason}"
