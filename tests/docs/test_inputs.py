"""The job files of inputs/: each is valid, and its comment's commands make its graph."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from command import mgg, parsed
from mpi4py import MPI

from mgg_hpc import config
from mgg_hpc.training import user_model
from mgg_hpc.training.job import build
from mgg_hpc.training.train import fit

INPUTS = Path(__file__).parents[2] / "inputs"
JOBS = {str(path.relative_to(INPUTS)): path for path in sorted(INPUTS.glob("*/*.toml"))}
# Each model and each graph once: a step of all of them takes a minute.
TRAINED = (
    "cora/gin",
    "coauthor_physics/gcn",
    "blogcatalog/sage",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("pubmed/gat", "amazon_computers/sage", "tolokers/gat")
    ),
)
IN_DATA = ("cora", "pubmed", "amazon_computers", "coauthor_physics", "tolokers", "blogcatalog")


def commands(path: Path) -> list[list[str]]:
    """The arguments of each `mgg` that a job file's comment says makes its graph."""
    found = re.findall(r"^#     mgg (.*)$", path.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_the_job_of_pyg_is_valid():
    settings = config.load(INPUTS / "pyg.toml")
    assert Path(settings.graph.file) == INPUTS / "cora/graph.h5" and settings.model.module.endswith(
        "pyg_gcn2.py:Net"
    )
    assert user_model.load(settings, lambda line: None).takes.keys() >= {"x", "edge_index"}


def test_there_is_a_job_for_each_model_on_each_graph():
    graphs = {Path(name).parent.name for name in JOBS}
    assert graphs == {*IN_DATA, "reddit", "products"}
    for graph in graphs:
        assert {path.stem for path in (INPUTS / graph).glob("*.toml")} == {"gcn", "gin", "sage", "gat"}


@pytest.mark.parametrize("name", JOBS)
def test_job_is_valid_and_says_how_its_graph_is_made(name):
    path = JOBS[name]
    settings = config.load(path)
    assert settings.model.name == path.stem
    assert settings.run.folder == f"runs/{path.parent.name}-{path.stem}"
    made = [parsed(arguments) for arguments in commands(path)]
    assert made
    for options in made:
        assert (INPUTS.parent / str(options["output"])).resolve() == Path(settings.graph.file)


@pytest.fixture(scope="module")
def graphs(data_folder, tmp_path_factory) -> Path:
    """The graphs that the data folder has, imported as the comments say, beside copies of their job files."""
    folder = tmp_path_factory.mktemp("inputs")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for graph in IN_DATA:
            (folder / "inputs" / graph).mkdir(parents=True)
            first, *arguments = commands(INPUTS / graph / "gcn.toml")[0]
            if (
                arguments[0] == "planetoid"
            ):  # the same graph from the data folder: nothing is fetched in tests
                arguments = [f"{graph}.npz", *arguments[arguments.index("-o") :]]
            source = Path(arguments[0])
            archive = data_folder / source.stem / source.name
            assert mgg(first, archive, *arguments[1:]) == 0
            for job in (INPUTS / graph).glob("*.toml"):
                (folder / "inputs" / graph / job.name).write_bytes(job.read_bytes())
    finally:
        os.chdir(before)
    return folder / "inputs"


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_job_trains(name, graphs):
    settings = config.load(graphs / f"{name}.toml", ("train.epochs=2", "run.threads=1"))
    job = build(settings, MPI.COMM_SELF)
    history = fit(job, job.graph(), None, False)
    job.backend.memory.close()
    assert len(history.epoch_ms) == 2 and 0 < history.scores.val < 1
