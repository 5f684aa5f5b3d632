"""The halo's signals between PEs, as a model (halo.pml) that Spin checks in every order: no chunk is lost, none is
written again while it is read, nobody waits for ever; and each element that is taken away is missed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import programs
import pytest
from tiers import drawn

MODEL = Path(__file__).with_name("halo.pml")
BLOCK = Path(__file__).with_name("block.pml")  # how the warps of a block tell each other of arrivals
SECONDS = 250

# PEs, who sends to whom, calls (from the third on they wait for credits), and blocks.
WORLDS = {
    "2 PEs": "-DPES=2 -DCALLS=5 -DBLOCKS=3",
    "2 PEs, one way": "-DPES=2 -DCALLS=5 -DBLOCKS=3 -DUPWARDS",
    "2 PEs, puts": "-DPES=2 -DCALLS=5 -DBLOCKS=3 -DFAR",
    "2 PEs, one way, puts": "-DPES=2 -DCALLS=5 -DBLOCKS=2 -DUPWARDS -DFAR",
    "3 PEs": "-DPES=3 -DCALLS=4 -DBLOCKS=2",
    "3 PEs, one way": "-DPES=3 -DCALLS=3 -DBLOCKS=2 -DUPWARDS",
    "3 PEs, puts": "-DPES=3 -DCALLS=4 -DBLOCKS=1 -DFAR",
    "4 PEs": "-DPES=4 -DCALLS=4 -DBLOCKS=1",
    "4 PEs, one way": "-DPES=4 -DCALLS=4 -DBLOCKS=1 -DUPWARDS",
    "4 PEs, one way, puts": "-DPES=4 -DCALLS=3 -DBLOCKS=1 -DUPWARDS -DFAR",
    "3 PEs, nodes of two": "-DPES=3 -DCALLS=4 -DBLOCKS=1 -DNODES",
    "4 PEs, nodes of two, one way": "-DPES=4 -DCALLS=3 -DBLOCKS=1 -DUPWARDS -DNODES",
}
# What is taken away, and the world in which it must be missed: credits matter where one PE can run ahead.
ELEMENTS = {
    "RELEASE": "2 PEs",
    "ACQUIRE": "2 PEs",
    "SIGNAL_WAIT": "2 PEs",
    "EPOCH": "2 PEs",
    "A_CHUNK": "2 PEs",
    "TWO_STAGINGS": "2 PEs",
    "CREDIT": "2 PEs, one way",
    "CREDIT_WAIT": "2 PEs, one way",
    "ORDER_OF_THE_CREDIT": "2 PEs, one way",
    "FENCE_AFTER_CREDIT": "2 PEs, one way",
    "THE_LAST_BLOCK": "2 PEs, one way",
    "QUIET": "2 PEs, puts",
}


@pytest.fixture
def search(require, tmp_path):
    """search(model, options): (states, what is wrong or None) of a model in a world."""
    for program in ("spin", "gcc"):
        require(shutil.which(program) is not None, f"no {program}", f"apt install {program}")

    def done(*command: str, seconds: float = 60.0) -> str:
        said = programs.run(*command, cwd=tmp_path, timeout=seconds)
        assert said.returncode == 0, said.stdout + said.stderr
        return said.stdout + said.stderr

    def search(model: Path, options: str = "", compiled: str = "-O2") -> tuple[int, str | None]:
        done("spin", "-a", *options.split(), str(model))
        done("gcc", *compiled.split(), "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=6000", "-o", "pan", "pan.c")
        said = done("./pan", "-m200000", seconds=SECONDS)
        # Not exhaustive where the depth or the memory that it was given did not do.
        assert "max search depth too small" not in said and "out of memory" not in said, said
        states, errors = re.search(r"([\d.e+]+) states, stored", said), re.search(r"errors: (\d+)", said)
        assert states and errors, said
        wrong = re.search(r"pan:\d+: (.*) \(at depth", said)
        assert (wrong is not None) == (errors[1] != "0"), said
        return int(float(states[1])), wrong and wrong[1]

    return search


def elements(model: Path) -> list[str]:
    """What a model may be without."""
    return sorted({*re.findall(r"WITHOUT_([A-Z_]+)", model.read_text())})


@pytest.mark.long
@pytest.mark.parametrize("world", drawn(WORLDS, 4))
def test_nothing_is_lost_overwritten_or_waited_for_in_vain(search, world):
    states, wrong = search(MODEL, WORLDS[world])
    assert wrong is None
    assert states > 10_000  # or nothing was searched


@pytest.mark.long
def test_warps_of_a_block_read_no_row_before_they_know_of_it(search):
    states, wrong = search(BLOCK)
    assert wrong is None
    assert states > 100_000


MISSED = [(MODEL, element, WORLDS[world], "-O2") for element, world in ELEMENTS.items()]
MISSED = [*drawn(MISSED, 4), *drawn([(BLOCK, element, "", "-O0 -w") for element in elements(BLOCK)], 3)]


@pytest.mark.long
@pytest.mark.parametrize(("model", "element", "world", "compiled"), MISSED, ids=str)
def test_each_element_that_is_taken_away_is_missed(search, model, element, world, compiled):
    _, wrong = search(model, f"{world} -DWITHOUT_{element}", compiled)
    assert wrong and re.match(r"assertion violated|invalid end state", wrong)


def test_every_element_of_the_model_is_taken_away_once():
    assert elements(MODEL) == sorted(ELEMENTS)
