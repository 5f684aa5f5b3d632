"""The suite's own plugins and its runner: samples, seeds, reports, and parts that pass, fail, hang or cannot run."""

from __future__ import annotations

import itertools
import json
import re
import sys
import textwrap
from math import inf
from pathlib import Path

import programs
import pytest
from rich.console import Console

from suite import coverage_of, run, tiers
from suite.parts import GROUPS, Part

TESTS = Path(__file__).parents[1]


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


GRID = """
    import dataclasses, pytest

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
    @pytest.mark.drawn(3)
    @pytest.mark.parametrize("row", range(4))
    @pytest.mark.parametrize("column", range(4))
    def test_rare(row, column): pass

    @pytest.mark.parametrize("number", range(30))
    def test_often(number, rng): pass

    def test_plain(): pass

    @pytest.mark.random
    def test_random(): pass

    @pytest.mark.long
    @pytest.mark.one_of("builds", "one")
    @pytest.mark.parametrize("number", range(2))
    def test_one_build(number): pass

    @pytest.mark.long
    @pytest.mark.one_of("builds", "other")
    def test_other_build(): pass
"""


def write_tests(folder: Path, text: str) -> None:
    """Write a file of tests beside the suite's plugins."""
    (folder / "conftest.py").write_text('pytest_plugins = ["suite.seeds", "suite.tiers", "suite.report"]\n')
    (folder / "test_it.py").write_text(textwrap.dedent(text))


def names_of(lines: list[dict]) -> list[str]:
    """Return the tests of a report."""
    return [line["test"].partition("::")[2] for line in lines if "test" in line]


def run_pytest(folder: Path, text: str, *words: str, **variables: str) -> tuple[str, list[dict]]:
    """Run pytest on one file in a folder with the suite's plugins; returns its output and its report."""
    write_tests(folder, text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    command += ["--report", str(folder / "report.jsonl"), *words]
    environment = {"PYTHONPATH": str(TESTS), "PATH": "", **variables}
    done = programs.run(*command, cwd=folder, env=environment)
    return done.stdout + done.stderr, [json.loads(line) for line in (folder / "report.jsonl").open()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tier", "others"),
    [
        ("fast", {"test_plain"}),
        ("test", {"test_plain", "test_slow"}),
        ("long", {"test_long"}),
        ("random", {"test_random"}),
    ],
)
def test_each_test_belongs_to_its_tiers(tmp_path, tier, others):
    said, lines = run_pytest(tmp_path, GRID, "--tier", tier)
    names = names_of(lines)
    starts = ("test_grid", "test_rare", "test_often", "test_one", "test_other")
    grid, rare, often, one, other = ([name for name in names if name.startswith(start)] for start in starts)
    assert {name for name in names if name not in grid + rare + often + one + other} == others, said
    assert (len(one), len(other)) in ([(2, 0), (0, 1)] if tier == "long" else [(0, 0)])
    assert len(rare) == (3 if tier == "long" else 0)
    assert len(often) == (0 if tier == "long" else 30)
    assert lines[0] == {"total": len(names)}
    # There are four widths, and eight pairs of a width and another value; some of those have been run by `make test`.
    assert 4 < len(grid) < 16 if tier == "random" else len(grid) == (0 if tier == "long" else 4)
    values = (
        "width=0",
        "width=1",
        "width=2",
        "width=3",
        "kind='a'",
        "kind='b'",
        "-1-",
        "-2-",
        "[list",
        "[dict",
    )
    assert tier in ("long", "random") or all(any(value in name for name in grid) for value in values)


def names_of_tier(folder: Path, tier: str, seed: int, name: str = "test_grid") -> list[str]:
    """Return the tests of this name that a tier runs, in their order."""
    _, lines = run_pytest(folder, GRID, "--tier", tier, "-k", name, MGG_TEST_SEED=str(seed))
    return names_of(lines)


@pytest.mark.long
@pytest.mark.parametrize(("name", "least"), [("test_rare", 12), ("build", 3)])
def test_in_time_all_are_drawn(tmp_path, name, least):
    drawn = [names_of_tier(tmp_path, "long", seed, name) for seed in range(8)]
    assert drawn[0] == names_of_tier(tmp_path, "long", 0, name)
    assert len(set().union(*drawn)) >= least


@pytest.mark.long
def test_each_run_of_test_long_draws_a_sample_of_its_own(tmp_path):
    """And none has what `make test` runs, which is always the same; in time they have run all combinations."""
    always = set(names_of_tier(tmp_path, "test", 2023))
    assert always == set(names_of_tier(tmp_path, "test", 7))
    samples = [set(names_of_tier(tmp_path, "random", seed)) for seed in range(12)]
    assert samples[0] == set(names_of_tier(tmp_path, "random", 0)) != samples[1]
    assert all(always.isdisjoint(sample) for sample in samples)
    assert len(always.union(*samples)) == 32


@pytest.mark.slow
@pytest.mark.parametrize("processes", tiers.long_except(["0", "2"], "0"))
def test_random_tests_come_in_another_order_and_end_in_time(tmp_path, processes):
    sleeps = GRID.replace("test_often(number, rng): pass", "test_often(number, rng): time.sleep(0.05)")
    words = ("--tier", "random", "-k", "often", "-n", processes)
    orders = []
    for seed in ("1", "2", "1"):
        said, lines = run_pytest(
            tmp_path,
            "import time\n" + textwrap.dedent(sleeps),
            *words,
            "--seconds",
            "0.3",
            MGG_TEST_SEED=seed,
        )
        assert lines[0] == {"total": 30} and 1 <= len(names_of(lines)) < 20, said
        assert f"{len(names_of(lines))} passed" in said
        orders.append(names_of(lines)[0])
    assert processes == "2" or orders[0] == orders[2] != orders[1]


@pytest.mark.slow
def test_seeds_are_no_parameters_of_a_grid(tmp_path):
    grid = GRID.replace("test_grid(line, ranks, kind)", "test_grid(line, ranks, kind, rng)")
    names = []
    for seeds in ("1", "5"):
        _, lines = run_pytest(tmp_path, grid, "--tier", "test", "-k", "grid", "--seeds", seeds)
        names.append(names_of(lines))
    assert len(names[0]) == 4 and len(names[1]) == 5 * 4


DRAWN = """
    from pathlib import Path

    def test_numbers(rng):
        Path("drawn.txt").open("a").write(f"{rng.integers(1 << 60)}\\n")

    def test_unlucky(rng):
        assert rng.integers(4)
"""


@pytest.mark.slow
def test_numbers_are_the_same_in_each_run_and_can_be_drawn_again(tmp_path):
    for _ in range(2):
        run_pytest(tmp_path, DRAWN)
    said, lines = run_pytest(tmp_path, DRAWN, "--seeds", "20")
    first, again, *twenty = (tmp_path / "drawn.txt").read_text().split()
    assert first == again == twenty[0] and len(set(twenty)) == 20
    failed = [line["test"] for line in lines if line.get("outcome") == "failed"]
    assert 0 < len(failed) < 20 and said.count("to draw the same again: ") == len(failed)
    offset = int(failed[0].rpartition("+")[2].rstrip("]"))
    seed = 2023 + offset
    assert re.search(rf"MGG_TEST_SEED={seed} \S*python -m pytest 'test_it.py::test_unlucky'", said)
    assert "1 failed" in run_pytest(tmp_path, DRAWN, "-k", "unlucky", MGG_TEST_SEED=str(seed))[0]
    run_pytest(tmp_path, DRAWN, "-k", "numbers", MGG_TEST_SEED="2024")
    assert twenty[1] in (tmp_path / "drawn.txt").read_text().split()[22:]


ENDINGS = """
    import pytest

    def test_good(): pass
    def test_bad(): assert 1 == 2
    @pytest.mark.parametrize("n", range(3))
    def test_lacks(n): pytest.skip("no spin (apt install spin)")
    def test_there(): pytest.skip("there is a GPU")
"""


@pytest.fixture
def parts(tmp_path, monkeypatch, capsys):
    """Runs parts with logs in a folder of their own: (exit code, what was printed)."""
    monkeypatch.setattr(run, "FOLDER", tmp_path / "logs")
    monkeypatch.setattr(run, "ROOT", tmp_path)

    def run_parts(*made: Part, minutes: float | None = None) -> tuple[int, str]:
        code = run.run_all(list(made), Console(width=200, markup=False), minutes)
        return code, capsys.readouterr().out

    return run_parts


def python(name: str, text: str, **more) -> Part:
    return Part(name, (sys.executable, "-c", text), reports=False, **more)


@pytest.mark.slow
def test_a_run_goes_on_after_a_part_that_failed_and_sums_up(tmp_path, parts, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    write_tests(tmp_path, ENDINGS)
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    made = [
        Part("tests", pytest_, {"PYTHONPATH": str(TESTS)}),
        Part("bounded", pytest_, {"PYTHONPATH": str(TESTS)}, time_limit=1e-9),
        python("good", "print('fine')"),
        python("bad", "import sys; print('as bad as can be'); sys.exit(3)"),
        python("hangs", "import time; time.sleep(60)", timeout=0.5),
        python("lacks", "", programs=("no-such-program",), install="apt install nothing"),
        Part("empty", (sys.executable, "-c", "import sys; print('nothing to do')")),
    ]
    code, said = parts(*made)
    assert code == 1
    assert "assert 1 == 2" in said and "as bad as can be" in said and "fine" not in said
    cells = ([cell.strip() for cell in line.split("│")] for line in said.splitlines())
    rows = {row[1]: row[2:] for row in cells if len(row) > 3}
    assert rows["tests"][:3] == ["6", "1", "4"] and rows["tests"][4] == "failed: 1 failed"
    assert rows["bounded"][0] == "1 of 6" and rows["bounded"][4] == "passed"
    assert rows["good"][4] == "passed" and rows["bad"][4] == "failed: exit code 3"
    assert rows["hangs"][4].startswith("failed: did not end within ") and float(rows["hangs"][3]) < 15
    assert rows["empty"][4] == "failed: no test ran"
    assert rows["lacks"][4].startswith("skipped: no no-such-program")
    assert "3 tests skipped: no spin; to run them: apt install spin\n" in said
    assert "1 test skipped: there is a GPU\n" in said
    assert "skipped: all of 'lacks'; to run them: apt install nothing\n" in said
    assert said.rstrip().splitlines()[-1] == "3 passed, 4 failed, 4 skipped"
    assert said.startswith("random numbers: MGG_TEST_SEED=")


def test_parts_that_may_begin_fewer_tests_share_what_is_left(tmp_path, parts):
    """Time that a part leaves unused goes to the parts after it."""
    write = "import sys; open('given', 'a').write(' '.join(sys.argv[1:]) + ';')"
    made = [
        python("all", write),
        python("first", write, time_limit=300),
        python("last", write, time_limit=100),
    ]
    first_and_last = {
        left: [run.time_limit_of(made[1:], left), run.time_limit_of(made[2:], left)]
        for left in (inf, 500, 200, 50, 0, -9)
    }
    assert first_and_last == {
        inf: [300, 100],
        500: [300, 100],
        200: [150, 100],
        50: [38, 50],
        0: [30, 10],
        -9: [30, 10],
    }
    assert run.time_limit_of(made, 200) == 0  # it has none
    assert parts(*made, minutes=0)[0] == 0
    assert (tmp_path / "given").read_text() == ";--seconds 30;--seconds 10;"


def test_where_ci_promises_everything_nothing_is_skipped(parts, monkeypatch):
    monkeypatch.setenv("CI", "true")
    code, said = parts(python("lacks", "raise SystemExit(1)", programs=("no-such-program",), install="x"))
    assert code == 1 and "skipped" not in said.splitlines()[-1]


@pytest.mark.slow
def test_parts_that_draw_anew_have_another_seed(tmp_path, parts, monkeypatch):
    monkeypatch.delenv("MGG_TEST_SEED")
    write = "import os; open('seeds', 'a').write(os.environ['MGG_TEST_SEED'] + ' ')"
    drawn = (python(name, write, seed="new") for name in ("two", "three"))
    code, said = parts(python("one", write), *drawn)
    one, two, three = (tmp_path / "seeds").read_text().split()
    assert code == 0 and one == "2023" and two == three != one
    seed = "random numbers: MGG_TEST_SEED="
    assert said.startswith(f"{seed}2023\n{seed}{two} (new in each run)\n")


def test_names_of_parts_are_different_and_unknown_ones_are_refused(capsys):
    names = [part.name for group in GROUPS.values() for part in group]
    assert len(set(names)) == len(names)
    assert run.main(["--list", "test"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(GROUPS["test"])
    assert run.main(["test", "--only", "no such"]) == 2
    assert "no part of test is named like 'no such'; there are test units" in capsys.readouterr().err


def test_coverage_is_compared_by_jumps():
    """Line 2 of a.py branches: the whole run takes both ways, the part only one of them."""
    whole = {"a.py": {(-1, 1), (1, 2), (2, 3), (2, 4), (3, 4), (4, -1)}, "b.py": {(-1, 7), (7, -1)}}
    part = {"a.py": {(-1, 1), (1, 2), (2, 4), (4, -1)}, "c.py": {(-1, 1)}}
    said = ["4 of 8 (50.00%)", "a.py: 2 missed, at lines [3, 4]", "b.py: 2 missed, at lines [7]"]
    assert coverage_of.comparison(whole, part) == said
