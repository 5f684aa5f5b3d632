"""`mgg partition --compare`: its numbers are those of plans for the parts, and the file stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cases
import numpy as np
import pytest
from command import mgg, refused
from data.graphs import random_graph
from world import plans_of

from mgg_hpc import reference
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write
from mgg_hpc.tools.partition import compare

METHODS = ["edges", "metis", "ldg", "given", "degree", "community"]


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def compared(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert mgg("partition", "g.h5", "--compare", "--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def planned(path: str, parts: int) -> dict:
    """What the plans of a file's stored ranges sum and move."""
    with open_graph(path) as opened:
        rows, bounds = opened.slice(0, opened.nodes), opened.bounds(parts)
    made = cases.csr(*reference.edge_list(rows.indptr, rows.indices), len(rows.ids), bounds)
    direct, halo = plans_of(made, "direct"), plans_of(made, "halo", 1)
    edges, held = [plan.local_edges + plan.remote_edges for plan in direct], [len(plan.halo) for plan in halo]
    cut = sum(plan.remote_edges for plan in direct)
    return {
        "edge_balance": pytest.approx(max(edges) / np.mean(edges), abs=1e-4),
        "row_balance": pytest.approx(np.diff(bounds).max() / np.diff(bounds).mean(), abs=1e-4),
        "cut": cut,
        "halo": sum(held),
        "largest_halo": max(held),
        "bytes": {
            "3": {"halo": 16 * sum(held), "direct": 16 * cut},
            "64": {"halo": 256 * sum(held), "direct": 256 * cut},
        },
    }


@pytest.mark.parametrize("directed", [False, True])
def test_the_numbers_are_those_of_the_partitioned_file(rng, capsys, directed):
    write("g.h5", random_graph(rng, nodes=200, edges=1500, symmetric=not directed))
    before = Path("g.h5").read_bytes()
    np.save("a.npy", rng.integers(0, 3, 200))
    options = ["-n", "3", "--methods", ",".join(METHODS), "--widths", "3,64", "--assignment", "a.npy"]
    document = compared(capsys, *options)
    assert (document["format"], document["parts"], document["nodes"]) == ("mgg-partition", 3, 200)
    assert Path("g.h5").read_bytes() == before and {path.name for path in Path().iterdir()} == {
        "g.h5",
        "a.npy",
    }
    for found, name in zip(document["methods"], METHODS, strict=True):
        Path("g.h5").write_bytes(before)
        way = ["--order", name] if name in ("degree", "community") else ["--method", name]
        given = ["--assignment", "a.npy"] if name == "given" else []
        assert mgg("partition", "g.h5", "-n", "3", *way, *given) == 0
        assert found == {"method": name, "seconds": found["seconds"], **planned("g.h5", 3)}, name


def test_an_order_goes_with_every_method(rng, capsys):
    write("g.h5", random_graph(rng, nodes=200, edges=1500))
    plain = compared(capsys, "-n", "3", "--methods", "edges,ldg")["methods"]
    ordered = compared(capsys, "-n", "3", "--methods", "edges,ldg", "--order", "degree")["methods"]
    by_degree = compared(capsys, "-n", "3", "--methods", "degree")["methods"][0]

    def counted(facts):  # all that is not a name or a time; halos alone may agree by chance
        return {name: value for name, value in facts.items() if name not in ("method", "seconds")}

    assert counted(ordered[0]) == counted(by_degree) != counted(plain[0])
    assert ordered[1]["halo"] == plain[1]["halo"]  # the parts are the same


@pytest.mark.long
def test_a_table_and_a_picture(rng, capsys):
    write("g.h5", random_graph(rng))
    assert mgg("partition", "g.h5", "-n", "2", "--compare", "--plot", "c.png") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("edges", "metis", "ldg", "halo 256", "of the largest rank"))
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert mgg("partition", "g.h5", "-n", "1", "--compare", "--plot", "one.png") == 0  # nothing moves


def test_remarks_of_metis_are_no_result():
    """It prints some for a row that is heavier than a part: here a node with 2,000 loops on a path."""
    path = np.arange(99), np.arange(1, 100)
    loops = np.zeros(2000, np.int64)
    source, destination = np.concatenate([loops, *path]), np.concatenate([loops, *path[::-1]])
    indptr, indices, _ = csr_from_edges(source, destination, 100)
    write("g.h5", Graph("g", indptr, indices, directed=False))
    arguments = ["partition", "g.h5", "-n", "8", "--compare", "--methods", "metis", "--json"]
    found = subprocess.run([sys.executable, "-m", "mgg_hpc", *arguments], capture_output=True, check=True)
    assert [each["method"] for each in json.loads(found.stdout)["methods"]] == ["metis"]


def test_wrong_options_are_one_line(rng, capsys, monkeypatch):
    """They are refused before any method begins."""
    monkeypatch.setattr(compare, "compare", None)
    write("g.h5", random_graph(rng))
    np.save("a.npy", np.zeros(40, np.int64))
    for arguments, message in [
        ("", "--compare needs -n"),
        ("-n 2 --methods edges,kmeans", "'kmeans' is no method; expected some of edges, metis, ldg"),
        ("-n 2 --method metis", "--compare takes --methods edges,metis, not --method"),
        ("-n 2 --methods given", "given needs --assignment"),
        ("-n 2 --methods rcm --order degree", "rcm is an order itself"),
        ("-n 2 --widths 16,x", "'16,x'; expected whole numbers"),
        ("-n 2 --widths 0", "'0'; expected whole numbers"),
        ("-n 2 --plot nowhere/c.png", "there is no folder nowhere"),
        ("-n 2 --plot c.xyz", "c.xyz: a plot is a .png, .svg or .pdf"),
        ("-n 2 --plot c", "c: a plot is a .png, .svg or .pdf"),
        ("-n 2 --memory 1M", "give more by --memory"),
    ]:
        assert message in refused(capsys, "partition", "g.h5", "--compare", *arguments.split())
