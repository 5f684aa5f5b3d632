"""Chunks that stream past and from rank to rank, under the thread sanitizer; rules of the protocol that are broken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import builds
import pytest
from tiers import drawn

HERE = Path(__file__).parent
CUDA = HERE.parents[1] / "cuda"
STREAM, SOURCE = (CUDA / "runtime" / "streaming" / f"chunk_{name}.cpp" for name in ("stream", "source"))
SIGNALS = "runtime/transport_host.h"

# What is replaced, in which file, by what, and for how many ranks at least that is a fault.
COPIED = "load_signal(&chain.after->copied) >= copied"
THERE = "there < failed && there >= wanted"
RELEASED = "store(value, std::memory_order_release"
FAULTS = {
    "a slot is filled while it is read": (STREAM, "finished_ > before_[step] &&", "", 1),
    "a chunk is read before it is there": (STREAM, "there_ > step ||", "true ||", 1),
    "a slot is filled before it was copied": (STREAM, COPIED, "true", 2),
    "a slot is copied before it is there": (STREAM, THERE, "true", 2),
    "a step is said to be copied before it is": (STREAM, "chain.first + step + 1);\n}", "failed);\n}", 2),
    "signals order nothing": (SIGNALS, RELEASED, RELEASED.replace("release", "relaxed"), 2),
}

DRAWN = drawn(FAULTS, 2)

pytestmark = pytest.mark.long


def make(folder: Path) -> None:
    """Build the program as it is, none/program, and with each of the drawn faults."""
    commands = []
    for name in ("none", *DRAWN):
        at = folder / builds.slug(name)
        at.mkdir()
        streams = [STREAM, SOURCE]
        if name != "none":
            file, old, new, _ = FAULTS[name]
            text = (CUDA / file).read_text()
            assert text.count(old) == 1, f"{file}: {old}"
            changed = at / "changed" / Path(CUDA / file).relative_to(CUDA)
            changed.parent.mkdir(parents=True)
            changed.write_text(text.replace(old, new))
            streams = [changed if each == file else each for each in streams]
        flags = ["-std=c++17", "-O1", "-g1", "-fsanitize=thread", f"-I{at / 'changed'}", f"-I{CUDA}"]
        sources = [HERE / "chunk_streams.cpp", *streams]
        commands.append(["g++", *flags, f"-I{CUDA / 'include'}", *sources, "-o", at / "program"])
    builds.compile_all(commands)


def run(fault, ranks):
    program = builds.made("chunk-streams") / builds.slug(fault) / "program"
    return subprocess.run([program, str(ranks), "12"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_no_race_and_no_wrong_value(ranks):
    found = run("none", ranks)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("fault", DRAWN)
def test_faults_are_found(fault):
    found = run(fault, FAULTS[fault][-1])
    assert found.returncode != 0
    assert "data race" in found.stderr or "another value" in found.stderr
