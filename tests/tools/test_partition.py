"""`mgg partition --order`: what it does to a file, in whatever state that is, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
from command import mgg, refused
from data.graphs import random_graph
from jobs import dense

from mgg_hpc.data.graph import Graph, SparseRows
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write, write_bounds
from mgg_hpc.plan.ranges import edge_balanced, edge_counts

ORDERS = ["degree", "rcm", "community"]
CONTENTS = {
    "dense": {},
    "sparse": {"sparse": True, "symmetric": False, "weighted": True},
    "other": {"multilabel": True, "half": True, "wide_ids": True},
}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def facts(path: str, capsys) -> dict:
    capsys.readouterr()
    assert mgg("info", path, "--json") == 0
    return json.loads(capsys.readouterr().out)


def by_id(path: str) -> dict[int, tuple]:
    """All that the file says of each node, under the user's ids: edges with weights, features, label, split."""
    with open_graph(path) as opened:
        rows = opened.slice(0, opened.nodes)
    x = dense(rows.x) if isinstance(rows.x, SparseRows) else rows.x
    found = {}
    for row, node in enumerate(rows.ids.tolist()):
        run = slice(rows.indptr[row], rows.indptr[row + 1])
        weight = [None] * (run.stop - run.start) if rows.weight is None else rows.weight[run].tolist()
        edges = sorted(zip(rows.ids[rows.indices[run]].tolist(), weight, strict=True))
        split = [bool(mask[row]) for mask in (rows.train, rows.val, rows.test)]
        found[node] = edges, x[row].tolist(), rows.y[row].tolist(), split
    return found


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("method", ORDERS)
def test_a_file_says_the_same_of_each_node_and_can_be_restored(rng, method, content, capsys):
    write("g.h5", random_graph(rng, **CONTENTS[content]))
    before, contents, identity = Path("g.h5").read_bytes(), by_id("g.h5"), facts("g.h5", capsys)["uuid"]
    assert mgg("partition", "g.h5", "--order", method) == 0
    assert re.match(rf"g.h5: rows renumbered \({method}\) in \d+\.\d s\n", capsys.readouterr().out)
    with h5py.File("g.h5") as file:
        assert file["order/permutation"].attrs["method"] == method.encode()
        assert sorted(file["order/permutation"]) == list(range(40)) != list(file["order/permutation"])
    assert by_id("g.h5") == contents
    assert mgg("verify", "g.h5") == 0
    told = facts("g.h5", capsys)
    assert (told["renumbered"], told["order"], told["uuid"]) == (True, method, identity)
    assert mgg("info", "g.h5") == 0
    assert f"40, renumbered ({method})" in capsys.readouterr().out
    assert mgg("partition", "g.h5", "--order", "none") == 0
    assert Path("g.h5").read_bytes() == before


@pytest.mark.slow
def test_an_order_does_not_depend_on_earlier_ones(rng, capsys):
    """Each way to an order ends in the same bytes, and taking it twice changes nothing."""
    write("start.h5", random_graph(rng, symmetric=False, weighted=True))
    ends = {}
    for first in ("none", *ORDERS):
        for last in ORDERS:
            shutil.copyfile("start.h5", "g.h5")
            assert mgg("partition", "g.h5", "--order", first) == 0
            assert mgg("partition", "g.h5", "--order", last) == 0
            ends.setdefault(last, set()).add(Path("g.h5").read_bytes())
            stamp = Path("g.h5").stat()
            capsys.readouterr()
            assert mgg("partition", "g.h5", "--order", last) == 0
            assert capsys.readouterr().out == f"g.h5: the rows are in this order already ({last})\n"
            assert Path("g.h5").stat() == stamp or Path("g.h5").stat().st_mtime_ns == stamp.st_mtime_ns
    assert {method: len(found) for method, found in ends.items()} == dict.fromkeys(ORDERS, 1)


def test_an_order_that_came_with_the_file_is_composed_and_undone(rng):
    """A permutation that nobody named maps to the user's ids as any other."""
    write("g.h5", random_graph(rng, permuted=True))
    contents = by_id("g.h5")
    assert mgg("partition", "g.h5", "--order", "rcm") == 0
    assert by_id("g.h5") == contents
    assert mgg("partition", "g.h5", "--order", "none") == 0
    assert by_id("g.h5") == contents
    with open_graph("g.h5") as opened:
        assert opened.slice(0, 40).ids.tolist() == list(range(40)) and opened.order == ""
        assert "order/permutation" not in opened.contents.datasets


def test_bounds_follow_the_rows(rng, capsys):
    """Ranges by edges are found again for the new rows; others go, and it is said."""
    write("g.h5", random_graph(rng, nodes=200, edges=2000, symmetric=False))
    assert mgg("partition", "g.h5", "-n", "3") == 0
    write_bounds("g.h5", 5, np.array([0, 9, 40, 41, 42, 200]), "by hand", [1, 2, 3, 4, 5])
    capsys.readouterr()
    assert mgg("partition", "g.h5", "-n", "4", "--order", "degree") == 0
    out = capsys.readouterr().out
    assert "dropped the bounds of 5 parts" in out and "g.h5: 4 parts by edges" in out
    with open_graph("g.h5") as opened:
        indptr = opened.indptr()
        assert sorted(opened.partitions) == [3, 4]
        for parts, (method, counts) in opened.partitions.items():
            bounds = edge_balanced(indptr, parts)
            assert opened.bounds(parts).tolist() == bounds.tolist()
            assert (method, counts) == ("edges", edge_counts(indptr, bounds).tolist())
    assert mgg("verify", "g.h5") == 0
    written = Path("g.h5").read_bytes()
    assert mgg("partition", "g.h5", "-n", "2") == 0  # without --order the order stays
    assert facts("g.h5", capsys)["order"] == "degree"
    assert mgg("partition", "g.h5", "-n", "6", "--order", "degree") == 0  # already so: only the ranges come
    assert [part["parts"] for part in facts("g.h5", capsys)["partitions"]] == [2, 3, 4, 6]
    assert Path("g.h5").read_bytes() != written


def test_bounds_are_added_where_the_kernel_cannot_copy(rng, monkeypatch):
    """The same bytes, read and written in pieces; and by a kernel that copies a few bytes at a time."""
    graph, copied = random_graph(rng, weighted=True), os.copy_file_range

    def refuses(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    found = set()
    for kernel in (
        copied,
        refuses,
        lambda source, into, count, *places: copied(source, into, min(count, 99), *places),
    ):
        write("g.h5", graph, force=True)
        with monkeypatch.context() as patch:
            patch.setattr("os.copy_file_range", kernel)
            assert mgg("partition", "g.h5", "-n", "3") == 0
        assert mgg("verify", "g.h5") == 0
        found.add(Path("g.h5").read_bytes())
    assert len(found) == 1


@pytest.mark.parametrize("nodes, edges", [(1, []), (1, [0, 0]), (5, [])])
@pytest.mark.parametrize("method", ["none", *ORDERS])
def test_graphs_of_next_to_nothing(nodes, edges, method, capsys):
    indptr = np.append(np.zeros(nodes, np.int64), len(edges))
    write("g.h5", Graph("g", indptr, np.array(edges, np.int32)))
    assert mgg("partition", "g.h5", "-n", "2", "--order", method) == 0
    assert mgg("verify", "g.h5") == 0
    assert facts("g.h5", capsys)["edges"] == len(edges)


def test_what_is_printed_is_what_was_gained(rng, capsys):
    graph = random_graph(rng, nodes=3000, edges=9000)
    write("g.h5", graph)
    assert mgg("partition", "g.h5", "--order", "community") == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # not a terminal
    found = re.findall(r"([\d.]+)%? before, ([\d.]+)%? after", printed.out)
    with open_graph("g.h5") as opened:
        rows = opened.slice(0, 3000)
    for at, part in enumerate((graph, rows)):
        lengths = np.abs(np.repeat(np.arange(3000), np.diff(part.indptr)) - part.indices)
        assert float(found[0][at]) == pytest.approx(np.log2(1 + lengths).mean(), abs=0.051)
        assert float(found[1][at]) == pytest.approx(100 * (lengths <= 1024).mean(), abs=0.051)


def test_wrong_input_is_one_line(rng, capsys, monkeypatch):
    write("g.h5", random_graph(rng))
    Path("cut.h5").write_bytes(Path("g.h5").read_bytes()[:-100])
    Path("damaged.h5").write_bytes(Path("g.h5").read_bytes())
    with h5py.File("damaged.h5", "r+") as file:
        file["node/x"][3, 1] += 1
    for arguments, message in [
        ("g.h5", "nothing to do; expected -n with a number of parts"),
        ("g.h5 -n 0", "0 is not in the range"),
        ("g.h5 --order size", "'size' is not one of 'none', 'degree'"),
        ("g.h5 --order rcm --memory 100M", "and has 100 MiB: give more by --memory"),
        ("g.h5 --method ldg", "--method ldg needs -n"),
        ("g.h5 -n 2 --method given", "--method given needs --assignment"),
        ("g.h5 --assignment a.npy --method metis", "--assignment does not go with --method metis"),
        ("none.h5 --order rcm", "none.h5 does not exist"),
        ("cut.h5 --order rcm", "cut.h5 is not a graph file"),
        ("damaged.h5 --order rcm", "/node/x is damaged"),
    ]:
        assert message in refused(capsys, "partition", *arguments.split())
    monkeypatch.setitem(sys.modules, "mgg_hpc._graph", None)
    monkeypatch.delattr("mgg_hpc._graph", raising=False)
    assert "does not load" in refused(capsys, "partition", "g.h5", "--order", "community")
    monkeypatch.setattr("os.sysconf", lambda _: 4)
    line = refused(capsys, "partition", "g.h5", "--order", "rcm")
    assert "takes 293 MiB of memory at least, and has 0 MiB: give more by --memory" in line


@pytest.mark.slow
def test_a_killed_command_leaves_the_file_whole(rng):
    """Killed at any instant, the file is the old one or the new one, and sound."""
    write("g.h5", random_graph(rng, nodes=20_000, edges=300_000))
    before = Path("g.h5").read_bytes()
    script = """
        import time
        from mgg_hpc.__main__ import main
        from mgg_hpc.data import writer
        fill_in = writer.fill_in
        def slowly(*arguments):
            fill_in(*arguments)
            print("written", flush=True)
            time.sleep(60)
        writer.fill_in = slowly
        main(["partition", "g.h5", "--order", "degree"])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert Path("g.h5").read_bytes() == before
    (left,) = [path for path in Path().iterdir() if path.name != "g.h5"]
    assert left.name.startswith(".g.h5.") and left.suffix == ".tmp"  # what `mgg clean` removes
