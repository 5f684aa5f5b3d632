"""`mgg bench`: what it measures and writes, who takes part, and what it refuses."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from command import refused
from jobs import MGG, blocks, clean_environment
from tiers import long_except

from mgg_hpc.data import writer
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import graphs, timing

FAKE = """
import os, signal, sys
import numpy as np
from scipy import sparse

def set_threads(count): print("libraries may print", count)
def about(): return "fake 1"

def product(indptr, indices, x, dtype, factor=1):
    rows = np.load(x)
    values = np.ones(len(np.load(indices)), np.float32)
    adjacency = sparse.csr_matrix((values, np.load(indices), np.load(indptr)), (len(rows),) * 2)
    return factor * (adjacency @ rows)

def aggregate(indptr, indices, weight, x, dtype, ahead):
    {body}
    return {{"dgl": lambda: product(indptr, indices, x, dtype)}}

def epoch(indptr, indices, classes, x, y, train, weights, **inputs):
    {body}
    count = len(np.load(indptr)) - 1
    adjacency = sparse.csr_matrix((np.ones(len(np.load(indices))), np.load(indices), np.load(indptr)), (count,) * 2)
    adjacency = adjacency.maximum(sparse.identity(count))
    scale = sparse.diags(adjacency.sum(1).A1 ** -0.5)
    of, rows, others = np.load(weights), np.load(x).astype(float), ~np.load(train)

    def untrained():
        last = rows
        for i in range(2):
            last = scale @ (adjacency @ (scale @ (np.maximum(last, 0) if i else last)))
            last = last @ of[f"convs.{{i}}.lin.weight"].T + of[f"convs.{{i}}.bias"]
        total = np.log(np.exp(last).sum(1)) - last[np.arange(count), np.load(y)]
        return np.array(total[others].mean())

    return {{"dgl": lambda: np.array(np.log(classes)), "untrained": untrained}}
"""


ONE_CELL = ("--widths=16", "--peers=dgl", "--turns=1", "--json=a.json")


@pytest.fixture
def mgg(tmp_path):
    """Run `mgg bench` in a folder of its own."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [MGG, "bench", *map(str, arguments)],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def peer(tmp_path):
    """An environment whose Python plays DGL, as ``body`` says."""

    def make(body: str = "pass") -> Path:
        binary = tmp_path / "env" / "bin" / "python"
        binary.parent.mkdir(parents=True)
        (binary.parent / "fake.py").write_text(FAKE.format(body=body))
        binary.write_text(
            f"#!{sys.executable}\n"
            "import sys\n"
            f"sys.path[:0] = [{str(timing.WORKER.parent)!r}, {str(binary.parent)!r}]\n"
            "import worker\n"
            "worker.main('fake', *sys.argv[3:])\n"
        )
        binary.chmod(0o755)
        return tmp_path / "env"

    return make


def spreads(values: dict[str, dict[str, float]]) -> bool:
    return all(0 < v["min"] <= v["median"] <= v["max"] for v in values.values())


@pytest.mark.slow
def test_aggregate_writes_a_document_a_table_and_a_picture(mgg, tmp_path):
    rows = ["--widths=5,16", "--dtypes=float32,bfloat16", "--peers=none", "--turns=2"]
    done = mgg("aggregate", "rmat:8:4", *rows, "--json=a.json", "--table=a.md", "--plot=a.png")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "a.json").read_text())
    kind = {"format": "mgg-bench", "version": 1, "benchmark": "aggregate"}
    assert kind | {"threads": 2, "turns": 2, "pages": "huge"} == {
        key: found[key] for key in (*kind, "threads", "turns", "pages")
    }
    assert found["command"].startswith("mgg bench aggregate rmat:8:4 --widths=5,16")
    assert found["machine"]["instruction_set"] in ("baseline", "avx2", "avx512")
    assert found["contestants"].keys() == {"mgg"}
    assert found["stream_gb_per_s"] > 0
    kinds = [(case["dtype"], case["width"]) for case in found["cases"]]
    assert kinds == list(itertools.product(("float32", "bfloat16"), (5, 16)))
    graph = graphs.read("rmat:8:4")
    for case in found["cases"]:
        assert (case["graph"], case["nodes"], case["edges"]) == ("rmat8", 256, graph.edges)
        assert spreads(case["ms"])
        assert spreads({"floor": case["floor"]["ms"], "ratio": case["over_floor"]})
        assert case["floor"]["ahead"] in (4, 16, 64)
        item = 4 if case["dtype"] == "float32" else 2
        assert case["compulsory"]["bytes"] == 2 * 256 * case["width"] * item + 4 * graph.edges + 8 * 257
        assert 0 <= case["huge_share"]["mgg"] <= 1
    text = (tmp_path / "a.md").read_text()
    assert found["command"] in text
    assert "| rmat8 | bfloat16 x 16 |" in text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "gather floor" in done.stdout


@pytest.mark.long
def test_peers_of_an_environment_take_part_and_others_are_named(mgg, tmp_path):
    """This environment has torch and SciPy, and no DGL."""
    options = ["--peers=dgl,torch,scipy", f"--peers-env={sys.prefix}", "--turns=2", "--json=a.json"]
    done = mgg("aggregate", "rmat:8:4", "--widths=16", "--weighted", "--pages=small", *options)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "a.json").read_text())
    assert list(found["contestants"]) == ["mgg", "torch", "scipy"]
    assert found["notes"] == [
        "dgl is left out: No module named 'dgl'; 'make bench-peers' installs the baselines"
    ]
    (case,) = found["cases"]
    assert case["weighted"]
    assert case["ms"].keys() == {"mgg", "torch", "scipy"}
    assert spreads(case["ms"])
    assert spreads(case["speedup"])
    assert set(case["huge_share"].values()) == {0}
    assert found["speedup"] == pytest.approx(
        {name: case["speedup"][name]["median"] for name in case["speedup"]}
    )


@pytest.mark.long
def test_orders_are_compared_with_rows_as_they_were_beside_a_peer(mgg, peer, tmp_path):
    options = ["--orders=none,community", "--peers=dgl", "--turns=2", "--json=a.json", "--table=a.md"]
    done = mgg("aggregate", "rmat:8:4", "--widths=16", "--peers-env", peer(), *options)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["contestants"]["dgl"] == "fake 1"
    plain, ordered = found["cases"]
    assert spreads(plain["speedup"])
    assert (plain["order"], ordered["order"]) == ("none", "community")
    assert "speedup_over_unordered" not in plain
    ours = ordered["ms"]["mgg"]["median"]
    assert ordered["speedup_over_unordered"] == pytest.approx(
        {name: plain["ms"][name]["median"] / ours for name in ("mgg", "dgl")}
    )
    assert "| rmat8, community | float32 x 16 |" in (tmp_path / "a.md").read_text()


@pytest.mark.long
@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise MemoryError('no room\\nat all')", "MemoryError: no room"),
        ("return {'dgl': lambda: product(indptr, indices, x, dtype, 1.001)}", "sums differ from ours"),
        ("return {'dgl': lambda: product(indptr, indices, x, dtype, float('nan'))}", "sums differ from ours"),
    ],
)
def test_a_peer_that_cannot_or_errs_is_left_out_of_the_case(mgg, peer, tmp_path, body, said):
    done = mgg("aggregate", "rmat:8:4", "--peers-env", peer(body), *ONE_CELL)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["cases"][0]["ms"].keys() == {"mgg"}
    assert found["speedup"] == {}
    (note,) = found["notes"]
    assert note.startswith("dgl is left out of rmat8, float32: ")
    assert said in note


@pytest.mark.long
@pytest.mark.sampled(0)
@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL (libraries may print 2)"),
        ("print('out of luck', file=sys.stderr); os._exit(3)", "ended with exit code 3 (out of luck)"),
    ],
)
def test_a_peer_that_dies_ends_the_benchmark(mgg, peer, body, how):
    done = mgg("aggregate", "rmat:8:4", "--widths=16", "--peers=dgl", "--peers-env", peer(body), "--turns=1")
    assert done.returncode == 2
    assert done.stderr.startswith(f"mgg: error: dgl {how} while")
    assert done.stderr.count("\n") == 1


GPU = "--device=cuda"
NO_MEANING = "has no meaning with --device cuda"
ONLY_THERE = "has a meaning with --device cuda only"
REFUSED = {
    "aggregate karate": "karate: no such graph; expected rmat:SCALE[:EDGE_FACTOR], uniform:",
    "aggregate absent.h5": "absent.h5: no such file",
    "aggregate rmat:40": "rmat:40: a scale of 28 at most",
    "aggregate rmat:4:0": "rmat:4:0: has 0 edges",
    "aggregate rmat:4 --widths=16,x": "--widths 16,x: 'x'; expected numbers of 1 .. 65536",
    "aggregate rmat:4 --widths=0": "--widths 0: '0'; expected numbers of 1 .. 65536",
    "aggregate rmat:4 --dtypes=int8": "'int8' is not one of float32, bfloat16, float16",
    "aggregate rmat:4 --orders=random": "'random' is not one of none, degree, rcm, community",
    "aggregate rmat:4 --peers=jax": "--peers jax: 'jax' is not one of none, dgl",
    "aggregate rmat:4 --peers-env=absent": "--peers-env absent: no Python environment",
    "aggregate rmat:4 --json=absent/a.json": "absent/a.json: there is no folder absent",
    "aggregate rmat:5 --transfers=get": f"--transfers {ONLY_THERE}",
    f"aggregate rmat:5 {GPU} --pages=huge": f"--pages {NO_MEANING}",
    f"aggregate rmat:5 {GPU} --transfers=ring": "'ring' is not one of direct, get, halo",
    f"aggregate rmat:5 {GPU} --peers=dgl": "'dgl' is not one of none, cusparse, torch, cupy, pyg, pyg-csr",
    "epoch karate": "karate: no such graph",
    "epoch rmat:4 --peers=torch": "--peers torch: 'torch' is not one of none, dgl, pyg",
    "epoch rmat:4 --model=gcn,mlp": "--model gcn,mlp: 'mlp' is not one of gcn, gin, sage, gat",
    "epoch rmat:4 --dropout=1": "--dropout",
    f"epoch rmat:4 {GPU} --model=gin": "--model gin: --device cuda trains a gcn",
    f"epoch rmat:4 {GPU} --threads=2": f"--threads {NO_MEANING}",
    f"epoch rmat:4 {GPU} --peers-env=.": f"--peers-env {NO_MEANING}",
    f"epoch rmat:4 {GPU} --peers=dgl": "'dgl' is not one of none, pyg, pyg-csr",
    "overlap rmat:4 --backend=cuda": "run.backend: cuda is none of auto, serial, shm, shmem",
    "overlap rmat:4 --ways=post": "--ways post: 'post' is not one of halo, bulk, direct, get, all-gather",
    "overlap --shares=0.1": f"--shares {ONLY_THERE}",
    "overlap --plot=a.png": f"--plot {ONLY_THERE}",
    f"overlap {GPU} --threads=2": f"--threads {NO_MEANING}",
    f"overlap {GPU} --backend=shm": f"--backend {NO_MEANING}",
    f"overlap {GPU} --ways=halo,post": "'post' is not one of halo, get, bulk, direct, managed, ring,",
    f"overlap {GPU} --shares=2": "--shares: '2'; expected numbers from 0 to less than 1",
    f"overlap {GPU} uniform:x": "uniform:x: no such graph",
    f"huge {GPU} --rows=0": "Invalid value for '--rows'",
    f"huge {GPU} --distribution=even": "Invalid value for '--distribution'",
    f"huge {GPU} --json=absent/a.json": "absent/a.json: there is no folder",
    "start nothing": "nothing: no such graph; expected rmat:",
    "start rmat:5 --backend gpu": "the run failed: mgg: error: ",
    "start rmat:5 --json no/where.json": "no/where.json: there is no folder no",
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", long_except(REFUSED, *list(REFUSED)[::6]))
def test_what_will_not_do_is_refused_in_one_line(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert REFUSED[arguments] in refused(capsys, "bench", *arguments.split())


@pytest.mark.slow
def test_epoch_trains_us_and_a_peer(mgg, peer, tmp_path):
    writer.write(tmp_path / "blocks.h5", blocks())
    options = ["--peers=dgl", "--peers-env", peer(), "--turns=2"]
    files = ["--json=e.json", "--table=e.md", "--plot=e.png"]
    done = mgg("epoch", "blocks.h5", "--features=8", "--classes=4", *options, *files)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "e.json").read_text())
    (case,) = found["cases"]
    sizes = {"features": 8, "hidden": 16, "classes": 4, "layers": 2, "heads": 1}
    assert case["model"] == {"model": "gcn", "dropout": 0.5} | sizes
    assert (case["graph"], case["nodes"]) == ("sbm", 150)
    assert case["ms"].keys() == case["peak_bytes"].keys() == case["loss"].keys() == {"mgg", "dgl"}
    assert spreads(case["ms"])
    assert case["peak_bytes"]["mgg"] > case["peak_bytes"]["dgl"] > 1e6
    assert case["loss"]["mgg"] == pytest.approx(math.log(4), rel=0.1)
    assert case["untrained_loss"]["dgl"] == pytest.approx(case["untrained_loss"]["mgg"], rel=1e-5)
    text = (tmp_path / "e.md").read_text()
    assert "GCN 8 -> 16 -> 4, dropout 0.5" in text
    share = case["peak_bytes"]["mgg"] / case["peak_bytes"]["dgl"]
    (row,) = [line for line in text.splitlines() if line.startswith("| gcn | sbm |")]
    assert "| dgl |" in row
    assert row.endswith(f"| {share:.2f} |")
    assert (tmp_path / "e.png").stat().st_size > 1000


@pytest.mark.long
def test_a_peer_that_computes_something_else_is_left_out(mgg, peer, tmp_path):
    """Here one whose self loops weigh twice."""
    writer.write(tmp_path / "blocks.h5", blocks())
    twice = "sparse.identity = lambda count: 2 * sparse.eye(count, format='csr')"
    options = ["--peers=dgl", "--peers-env", peer(twice), "--turns=1", "--json=e.json"]
    done = mgg("epoch", "blocks.h5", "--features=8", "--classes=4", *options)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "e.json").read_text())
    (note,) = found["notes"]
    assert note.startswith("dgl is left out of sbm, gcn: with the same weights its loss is 1.")
    assert found["cases"][0]["ms"].keys() == found["cases"][0]["untrained_loss"].keys() == {"mgg"}


def test_turns_alternate():
    order: list[str] = []

    def once(name: str) -> float:
        order.append(name)
        return float(len(order))

    runs = {name: partial(once, name) for name in "ab"}
    ms = take_turns(runs, 3)
    assert order == ["a", "b"] * 3
    assert ms == {"a": [1, 3, 5], "b": [2, 4, 6]}
    assert timing.ratios(ms["b"], ms["a"]) == {"min": 1.2, "median": 4 / 3, "max": 2}
    assert {name: len(taken) for name, taken in take_turns(runs, {"a": 3, "b": 1}).items()} == {
        "a": 3,
        "b": 1,
    }
    late = take_turns(runs, 3, deadline=time.monotonic() - 1)
    assert {name: len(taken) for name, taken in late.items()} == {"a": 1, "b": 1}  # a round at least
