"""The suite's own plugins: which tests a tier runs, samples of grids, and random numbers that can be drawn again."""

from __future__ import annotations

import itertools
import re

import pytest
import tiers

GRID = """
    import dataclasses, pytest
    from tiers import drawn

    @dataclasses.dataclass(frozen=True)
    class Line:
        width: int
        kind: str

    @pytest.mark.sampled
    @pytest.mark.parametrize("line", [Line(w, k) for w in range(4) for k in "ab"], ids=str)
    @pytest.mark.parametrize("ranks", [1, 2])
    @pytest.mark.parametrize("kind", [list, dict])
    def test_grid(line, ranks, kind): pass

    @pytest.mark.slow
    def test_slow(): pass

    @pytest.mark.long
    def test_long(): pass

    @pytest.mark.long
    @pytest.mark.parametrize("row", drawn(range(4), 2))
    def test_rare(row): pass

    def test_often(rng): pass

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
    """Run GRID, or another text, with options; returns the names of its tests and what was printed."""

    def run(*words: str, text: str = GRID, seed: str = "2023") -> tuple[list[str], str]:
        monkeypatch.setenv("MGG_TEST_SEED", seed)
        pytester.makeini("[pytest]\npythonpath = " + str(tiers.__file__).removesuffix("/tiers.py"))
        pytester.makeconftest('pytest_plugins = ["seeds", "tiers"]')
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
    ("tier", "others", "trials"),
    [
        ("fast", {"plain", "often", "tried"}, 2),
        ("test", {"plain", "often", "tried", "slow"}, 2),
        ("long", {"long", "often", "tried"}, 10),
        ("torture", {"torture", "tried"}, 9),
    ],
)
def test_each_test_belongs_to_its_tiers(run, tier, others, trials):
    names, said = run("--tier", tier)
    grid, rare = ([name for name in names if name.startswith(f"test_{start}")] for start in ("grid", "rare"))
    assert set(names) - {*grid, *rare} == {f"test_{name}" for name in others}
    assert f"trials {trials}\n" in said
    assert len(rare) == (2 if tier == "long" else 0)
    # There are four widths.
    assert len(grid) == {"torture": 0, "fast": 2}.get(tier, 4)
    if tier in ("torture", "fast"):
        return
    values = [
        *(f"width={width}" for width in range(4)),
        "kind='a'",
        "kind='b'",
        "-1-",
        "-2-",
        "[list",
        "[dict",
    ]
    assert all(any(value in name for name in grid) for value in values)


@pytest.mark.long
def test_each_run_of_test_long_draws_samples_of_its_own(run):
    """None has what `make test` runs, which is always the same; in time they have run all combinations."""
    always = set(run("-k", "grid")[0])
    assert always == set(run("-k", "grid", seed="7")[0])
    runs = [set(run("--tier", "long", "-k", "grid or rare", seed=str(seed))[0]) for seed in range(24)]
    assert runs[0] == set(run("--tier", "long", "-k", "grid or rare", seed="0")[0]) != runs[1]
    assert all(always.isdisjoint(sample) for sample in runs)
    found = always.union(*runs)
    assert len(found) == 32 + 4


DRAWN = """
    from pathlib import Path

    def test_numbers(rng):
        Path("drawn.txt").open("a").write(f"{rng.integers(1 << 60)}\\n")

    def test_unlucky(rng):
        assert rng.integers(4)
"""


@pytest.mark.long
def test_numbers_are_the_same_in_each_run_and_can_be_drawn_again(run, pytester):
    for _ in range(2):
        run(text=DRAWN)
    names, said = run("--seeds", "20", text=DRAWN)
    first, again, *twenty = (pytester.path / "drawn.txt").read_text().split()
    assert first == again == twenty[0] and len(set(twenty)) == 20 and len(set(names)) == 40
    failed = re.findall(r"^FAILED test_it.py::(\S+)", said, re.MULTILINE)
    assert 0 < len(failed) < 20 and said.count("to draw the same again: ") == len(failed)
    seed = 2023 + int(failed[0].rpartition("+")[2].rstrip("]"))
    assert re.search(
        rf"MGG_TEST_SEED={seed} \S*python -m pytest test_it.py::test_unlucky$", said, re.MULTILINE
    )
    assert "1 failed" in run("-k", "unlucky", text=DRAWN, seed=str(seed))[1]
    run("-k", "numbers", text=DRAWN, seed="2024")
    assert (pytester.path / "drawn.txt").read_text().split()[-1] == twenty[1]


FAILING = """
    import pytest

    @pytest.mark.long
    def test_long(rng): assert 0

    @pytest.mark.trials(1)
    def test_tried(rng, trials): assert trials == 1

    @pytest.mark.sampled
    @pytest.mark.parametrize("b", range(2))
    @pytest.mark.parametrize("a", range(2))
    def test_grid(rng, a, b): assert 0
"""


def test_what_failed_in_the_long_tier_fails_again_by_the_command_that_is_printed(run):
    _, said = run("--tier", "long", text=FAILING, seed="9")
    told = re.findall(r"MGG_TEST_SEED=9 \S*python -m pytest '?(test_it.py::[^'\s]+)'?(.*)", said)
    assert len(told) == 4 and {name.partition("::")[2][:9] for name, _ in told} == {
        "test_long",
        "test_trie",
        "test_grid",
    }
    for name, options in told:
        assert "1 failed" in run(name, *options.split(), text=FAILING, seed="9")[1]


@pytest.mark.parametrize(
    ("options", "variables", "reason"),
    [
        (["--seeds", "0"], {}, "--seeds 0: expected 1 or more"),
        ([], {"MGG_TEST_SEED": "x"}, "MGG_TEST_SEED=x: expected a whole number, 0 or more"),
        ([], {"MGG_TEST_DRAW": "some"}, "MGG_TEST_DRAW=some: expected all, or nothing"),
    ],
)
def test_wrong_options_are_one_line(pytester, monkeypatch, options, variables, reason):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    pytester.makeini("[pytest]\npythonpath = " + str(tiers.__file__).removesuffix("/tiers.py"))
    pytester.makeconftest('pytest_plugins = ["seeds", "tiers"]')
    ended = pytester.runpytest_subprocess(*options)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR and ended.stderr.str().strip() == f"ERROR: {reason}"


@pytest.mark.long
def test_seeds_are_no_parameters_of_a_grid(run):
    grid = GRID.replace("test_grid(line, ranks, kind)", "test_grid(line, ranks, kind, rng)")
    assert [len(run("-k", "grid", "--seeds", seeds, text=grid)[0]) for seeds in ("1", "5")] == [4, 20]
