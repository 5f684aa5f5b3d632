"""docs/python.md: its programs, as they stand there, print the same on one rank and on two."""

from __future__ import annotations

import re
from pathlib import Path

import pages
import programs
import pytest
from jobs import clean_environment, run

BLOCKS = pages.blocks(pages.ROOT / "docs" / "python.md")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
PROGRAMS = [block.text for block in BLOCKS if block.language == "python"]
COMMANDS = [line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The graph that the document makes, and its programs, one after another: they share imports."""
    made = tmp_path_factory.mktemp("document")
    printed(made, COMMANDS[0])
    (made / "train.py").write_text("\n".join(PROGRAMS))
    return made


def printed(folder: Path, command: str) -> str:
    """What one of the document's commands prints."""
    code, output = pages.run(command, folder)
    assert code == 0, output
    return output


@pytest.mark.long
def test_the_programs_print_the_same_on_one_rank_and_on_two(folder):
    assert len(PROGRAMS) == 5 and COMMANDS[1:] == ["python train.py", "mgg launch -n 2 train.py"]
    alone, together = (printed(folder, command) for command in COMMANDS[1:])
    assert NUMBER.sub("#", alone) == NUMBER.sub("#", together)
    for one, other in zip(NUMBER.findall(alone), NUMBER.findall(together), strict=True):
        last_digit = 10.0 ** -len(one.partition(".")[2])
        apart = 1.1 * last_digit if "." in one else 0  # rounding, which may also move one node of 500
        assert float(one) == pytest.approx(float(other), abs=max(apart, 2.5e-3)), (one, other)
    epochs = re.findall(r"^epoch \d+: loss ([\d.]+), validation ([\d.]+)$", alone, re.M)
    assert len(epochs) == 3 and float(epochs[-1][0]) < float(epochs[0][0])
    assert float(epochs[-1][1]) > 0.6  # of 5 classes
    assert re.search(r"^2000 nodes, \d+ of them", alone, re.M)
    assert float(re.search(r"^batches: ([\d.]+)$", alone, re.M)[1]) > 0.6  # of 5 classes
    assert re.search(r"^dot attention: loss \d", alone, re.M)
    assert "GatedGCN, as it is written:" in alone and "3 operators over 16 columns" in alone
    assert float(re.search(r"^streamed: loss ([\d.]+)$", alone, re.M)[1]) < 1.7  # ln 5 is 1.6


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_program_ends_all_ranks_with_one_message(folder):
    (folder / "wrong.py").write_text("import mgg_hpc as mgg\nmgg.open('missing.h5')\n")
    done = run("launch", "-n", "2", "wrong.py", folder=folder)
    assert done.returncode == 2
    assert done.stderr.count("mgg: error: ") == 1 and "missing.h5" in done.stderr


NAMES = """
import mgg_hpc as mgg, numpy, scipy.sparse
with mgg.from_scipy(scipy.sparse.eye(9), x=numpy.eye(9, dtype="f4")) as graph:
    print(graph)
    for each in (graph, mgg, mgg.nn):
        print(*(name for name in dir(each) if not name.startswith("__")))
        for name in dir(each):
            getattr(each, name)
    assert set(mgg.__all__) | {"__version__"} <= set(dir(mgg)) and set(mgg.nn.__all__) <= set(dir(mgg.nn))
"""


def test_names_of_the_package_and_of_a_graph_are_those_for_users():
    done = programs.python("-c", NAMES, env=clean_environment())
    assert done.returncode == 0, done.stderr
    shown, *listed = done.stdout.splitlines()
    assert shown == "Graph(9 nodes, 9 edges, x=[9, 9], rank 0 of 1)"
    graph, package, layers = (set(line.split()) for line in listed)
    used = {name for program in PROGRAMS for name in re.findall(r"\bgraph\.([a-z]\w*)", program)}
    assert used <= graph and {"open", "nn", "NeighborLoader"} <= package and "GCNConv" in layers
    for names, most in ((graph, 30), (package, 25), (layers, 15)):
        assert len(names) <= most and not [name for name in names if name.startswith("_")]


def test_an_error_at_a_prompt_does_not_end_python():
    code = (
        "import sys; sys.ps1 = '>>> '; from mgg_hpc.runtime import mpi; mpi.world()\n"
        "print(sys.excepthook is sys.__excepthook__)"
    )
    done = programs.python("-c", code, env=clean_environment())
    assert done.stdout == "True\n"
