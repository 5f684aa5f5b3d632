"""Chunks that stream past and from rank to rank, under the thread sanitizer; rules of the protocol that are broken."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CUDA = HERE.parents[1] / "cuda"
STREAM, SOURCE = (CUDA / "runtime" / "streaming" / f"chunk_{name}.cpp" for name in ("stream", "source"))
SIGNALS = "runtime/transport_host.h"

# What is replaced, in which file, by what, and for how many ranks at least that is a fault.
FAULTS = {
    "a slot is filled while it is read": (STREAM, "finished_ > before_[step] &&", "", 1),
    "a chunk is read before it is there": (STREAM, "there_ > step ||", "true ||", 1),
    "a slot is filled before it was copied": (
        STREAM,
        "load_signal(&chain.after->copied) >= copied",
        "true",
        2,
    ),
    "a slot is copied before it is there": (
        STREAM,
        "(there = load_signal(&chain.before->there)) >= wanted",
        "true",
        2,
    ),
    "a step is said to be copied before it is": (STREAM, "chain.first + step + 1);\n}", "failed);\n}", 2),
    "signals order nothing": (
        SIGNALS,
        "store(value, std::memory_order_release",
        "store(value, std::memory_order_relaxed",
        2,
    ),
}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def built(require, tmp_path_factory):
    """What compiles the program with a file replaced, and returns its path."""
    compiler = shutil.which("g++")
    require(compiler is not None, "no g++", "apt install g++")

    def build(file=None, old="", new=""):
        folder = tmp_path_factory.mktemp("chunks")
        streams = [STREAM, SOURCE]
        if file is not None:
            text = (CUDA / file).read_text()
            assert text.count(old) == 1
            changed = folder / "changed" / Path(CUDA / file).relative_to(CUDA)
            changed.parent.mkdir(parents=True)
            changed.write_text(text.replace(old, new))
            streams = [changed if each == file else each for each in streams]
        program = folder / "program"
        flags = ["-std=c++17", "-O1", "-g1", "-fsanitize=thread", f"-I{folder / 'changed'}", f"-I{CUDA}"]
        sources = [HERE / "chunk_streams.cpp", *streams]
        subprocess.run([compiler, *flags, f"-I{CUDA / 'include'}", *sources, "-o", program], check=True)
        return program

    return build


def run(program, ranks, passes):
    return subprocess.run(
        [program, str(ranks), str(passes)], capture_output=True, text=True, timeout=120, check=False
    )


def test_no_race_and_no_wrong_value(built):
    program = built()
    for ranks in (1, 2, 4):
        found = run(program, ranks, 12)
        assert found.returncode == 0, found.stderr


@pytest.mark.drawn(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(built, fault):
    *change, ranks = FAULTS[fault]
    found = run(built(*change), ranks, 12)
    assert found.returncode != 0
    assert "data race" in found.stderr or "another value" in found.stderr
