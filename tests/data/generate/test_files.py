"""mgg generate writes sound files, the same with any memory and threads, and refuses what cannot be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import mgg, refused

from mgg_hpc.data import generate
from mgg_hpc.data.assembly import build_graph
from mgg_hpc.data.writer import write

KINDS = {
    "rmat": "rmat --scale 12 --features 3 --classes 2",
    "uniform": "uniform --nodes 3000 --edges 20000 --classes 3",
    "grid": "grid --rows 13 --columns 7 --depth 5 --periodic --features 2",
    "sbm": "sbm --nodes 900 --features 8",
    "like": "like proteins --scale 0.037",
}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(arguments: str, **environment: str) -> bytes:
    """The bytes of the file that a process of its own writes."""
    code = "import sys; from mgg_hpc.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "generate", *arguments.split(), "-o", "g.h5", "--force"]
    subprocess.run(command, check=True, env=os.environ | environment, stdout=subprocess.PIPE)
    return Path("g.h5").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_sound_and_follow_the_seed(kind, capsys):
    command = KINDS[kind]
    first = made(command, OMP_NUM_THREADS="1")
    assert mgg("verify", "g.h5") == 0
    assert mgg("generate", *command.split(), "--memory", "300M", "-o", "other.h5") == 0
    assert Path("other.h5").read_bytes() == first
    if kind != "grid":
        assert mgg("generate", *command.split(), "--seed", "1", "-o", "other.h5", "--force") == 0
        assert Path("other.h5").read_bytes() != first


@pytest.mark.parametrize(
    "make, draw, options",
    [
        (
            generate.rmat,
            generate.draw_rmat,
            {"scale": 10, "edge_factor": 9, "seed": 5, "features": 4, "classes": 3},
        ),
        (generate.rmat, generate.draw_rmat, {"scale": 9, "edge_factor": 9, "seed": 5, "symmetric": False}),
        (
            generate.sbm,
            generate.draw_sbm,
            {"nodes": 700, "classes": 3, "features": 4, "degree": 9.5, "homophily": 0.8, "seed": 2},
        ),
    ],
    ids=["rmat", "directed", "sbm"],
)
def test_a_file_has_the_graph_in_memory(make, draw, options):
    drawn = draw(**options)
    build_graph(drawn.imported, Path("g.h5"), memory=256 << 20, symmetric=drawn.symmetric, simple=True)
    write("whole.h5", make(**options))
    assert Path("g.h5").read_bytes() == Path("whole.h5").read_bytes()


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (
            "rmat --scale 35 --memory 4G",
            "drawing this graph takes 256.0 GiB for its nodes and 256 MiB or more",
        ),
        ("uniform --nodes 9 --edges 1000000000000000", "GiB on disk; "),
        ("uniform --nodes 9 --edges 9 --memory 100M", "give --memory 256M or more, or draw a smaller graph"),
        ("rmat --scale 9 --memory 256M", "is 256 MiB: give --memory 257M or more, or draw a smaller graph"),
        ("like reddit --scale 0.001", "has 233 nodes, too few for 41 classes"),
        ("rmat --scale 4 --probabilities nan 0.1 0.1", "the probabilities a=nan, b=0.1, c=0.1 must not be"),
        ("rmat --scale 4 --probabilities 0.1 0.1 nan", "the probabilities a=0.1, b=0.1, c=nan must not be"),
        ("rmat --scale 4 --probabilities 0.1 inf 0.1", "the probabilities a=0.1, b=inf, c=0.1 must not be"),
        ("sbm --nodes 99 --degree nan", "degree nan, 16 features: expected"),
        ("sbm --nodes 99 --degree inf", "degree inf, 16 features: expected"),
        ("sbm --nodes 99 --degree 1e308", "degree 1e+308, 16 features: expected"),
        ("sbm --nodes 99 --homophily nan", "homophily nan, degree 10.0, 16 features: expected"),
        ("like reddit --scale nan", "expected a number above 0"),
        ("like reddit --scale 1e9", "has more than 2**40 nodes; choose a smaller scale"),
        ("like reddit --scale 1e308", "has more than 2**40 nodes; choose a smaller scale"),
        ("like REDDIT --scale 0.001", "a graph like reddit has 233 nodes"),
        ("like papers100m --scale 0.0000001", "a graph like papers100M has 11 nodes"),
        ("like facebook", "'facebook' is not one of"),
    ],
)
def test_arguments_that_make_no_graph(arguments, reason, capsys):
    assert reason in refused(capsys, "generate", *arguments.split(), "-o", "g.h5")


def test_the_memory_that_a_message_names_would_do(capsys):
    arguments = ["rmat", "--scale", "9", "-o", "g.h5", "--memory"]
    said = refused(capsys, "generate", *arguments, "256M")
    [memory] = re.findall(r"--memory (\d+M)", said)
    assert mgg("generate", *arguments, memory) == 0
