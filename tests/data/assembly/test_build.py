"""Graph files built in little memory equal those of all edges at once, also where the build was stopped or killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from io import FileIO
from typing import Any

import numpy as np
import pyarrow
import pytest
from jobs import python
from system_calls import Commits

from mgg_hpc.data import native, schema
from mgg_hpc.data.assembly import build_graph, runs, work
from mgg_hpc.data.assembly import graph as build
from mgg_hpc.data.edge_stream import EdgeBlock, Imported, Rows
from mgg_hpc.data.graph import from_edges
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import write

from ..graphs import refused


@dataclass
class Listed:
    """A stream of edges that are in memory, in blocks of some edges; it stops in front of block ``stop``."""

    sources: np.ndarray
    destinations: np.ndarray
    weight: np.ndarray | None = None
    data: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: int | None = None
    step: int = 97
    marked: bool = True
    stop: int = 1 << 40
    where: str = "listed"
    started: list[Any] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.sources)

    def blocks(self, mark=None, progress=None):
        self.started.append(mark)
        for low in range(mark or 0, len(self.sources), self.step):
            if low >= self.stop:
                raise KeyboardInterrupt
            cut = slice(low, low + self.step)
            yield EdgeBlock(
                self.sources[cut],
                self.destinations[cut],
                None if self.weight is None else self.weight[cut],
                {name: each[cut] for name, each in self.data.items()},
                low + self.step if self.marked else None,
            )
            if progress:
                progress(low)


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Return built(listed, ...), which makes g.h5 in so little memory that some hundred edges need several runs."""
    monkeypatch.setattr(build, "LEAST_MEMORY", 0)
    monkeypatch.setattr(build, "PROGRAM", 0)
    monkeypatch.setattr(build, "PIECE", 33)
    monkeypatch.setattr(runs, "BUCKETS", 8)
    monkeypatch.setattr(runs, "LEAST_EDGES", 1)

    def make(listed, rows=(), *, classes=0, directed=True, memory=4000, from_one="", notes=None, **options):
        said = {"from_one": from_one, "notes": [] if notes is None else notes}
        imported = Imported("g", listed, rows or {}, classes=classes, directed=directed, **said)
        build_graph(imported, tmp_path / "g.h5", memory=memory, **options)
        return tmp_path / "g.h5"

    return make


def uniform(rng, edges: int = 3000, *, nodes: int = 50, weighted: bool = False, **options: Any) -> Listed:
    listed = Listed(*rng.integers(nodes, size=(2, edges)), nodes=nodes, **options)
    listed.weight = rng.normal(size=edges).astype(np.float32) if weighted else None
    return listed


def expected(path, listed: Listed, symmetric: bool = False, simple: bool = False, **fields: Any) -> bytes:
    """The file of all edges at once."""
    fields |= {"name": "g", "weight": listed.weight, "edge": listed.data, "symmetric": symmetric}
    fields |= {"drop_duplicates": simple, "drop_self_loops": simple}
    write(path, from_edges(listed.sources, listed.destinations, listed.nodes, **fields), force=True)
    return path.read_bytes()


def node_rows(rng, nodes):
    """Datasets of nodes in pieces, of other sizes each, and the same as fields of a Graph."""
    kind = rng.integers(4, size=nodes)
    fields = {
        "x": rng.normal(size=(nodes, 3)).astype(np.float32),
        "y": np.where(kind == 3, -1, rng.integers(5, size=nodes)),
        "train": kind == 0,
        "val": kind == 1,
        "test": kind == 2,
    }

    def rows(array):
        step = int(rng.integers(1, 20))
        pieces = lambda: (array[low : low + step] for low in range(0, nodes, step))  # noqa: E731
        return Rows(schema.Layout(array.dtype, array.shape), pieces)

    return {f"node/{name}": rows(array) for name, array in fields.items()}, fields


KINDS = {
    "uniform": lambda rng, n, e: rng.integers(n, size=(2, e)),
    "a hub of most edges": lambda rng, n, e: (rng.integers(n, size=e), (rng.random(e) < 0.8) * (n // 2)),
    "copies of few edges": lambda rng, n, e: rng.integers(2, size=(2, e)),
    "loops alone": lambda rng, n, e: (np.arange(e) % n, np.arange(e) % n),
}
ASKED: dict[str, dict[str, bool]] = {
    "as listed": {},
    "symmetric": {"symmetric": True},
    "simple": {"simple": True},
    "symmetric and simple": {"symmetric": True, "simple": True},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_file_equals_that_of_all_edges_at_once(rng, path, built, kind, asked, weighted):
    """With weights go data of edges, and of nodes, which come in pieces."""
    nodes, edges = int(rng.integers(2, 90)), int(rng.integers(1, 700))
    listed, rows, fields = Listed(*KINDS[kind](rng, nodes, edges), nodes=nodes), {}, {}
    if rng.random() < 0.3:
        listed.sources = listed.sources.astype(rng.choice([np.int32, np.uint32, np.uint8]))
    if weighted:
        listed.weight = rng.normal(size=edges).astype(np.float32)
        listed.data = {
            "b": rng.integers(9, size=(edges, 3)).astype(np.int16),
            "a": rng.normal(size=edges).astype(np.float16),
        }
        rows, fields = node_rows(rng, nodes)
        fields["classes"] = 5
    first = {"combine": "first"} if weighted and ASKED[asked] else {}
    whole = expected(path, listed, **ASKED[asked], **fields)
    for memory in (600, 3000, 1 << 20):
        options = {"classes": 5 * weighted, "memory": memory, "force": True, **ASKED[asked], **first}
        assert built(listed, (lambda: rows) if memory == 600 else rows, **options).read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]
    verify(path)


def stop(rng, built, listed: Listed, where: str, **options: Any) -> None:
    """Stop a build in this phase, after up to five reports of its progress."""
    remaining = int(rng.integers(1, 6))

    def stopping(phase, done, total):
        nonlocal remaining
        remaining -= phase == where
        if not remaining:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(listed, **options, progress=stopping)


@pytest.mark.sampled
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("where", ["reading", "sorting", "writing"])
def test_a_build_that_was_stopped_goes_on_where_it_was(rng, path, built, monkeypatch, where, marked):
    monkeypatch.setattr(work, "KEEP_SECONDS", float(rng.choice([0, 1e9])))  # or only as it ends
    listed, phases = uniform(rng, weighted=True, marked=marked), []
    left = work.folder_of(path)
    options: dict[str, Any] = {"symmetric": True, "combine": "first", "key": "k"}
    stop(rng, built, listed, where, **options)
    assert left.is_dir() == (marked or where != "reading")  # what is of no use is gone
    assert not path.exists()
    built(listed, **options, progress=lambda phase, done, total: phases.append((phase, done)))
    found = path.read_bytes()
    assert found == expected(path, listed, symmetric=True) and not left.exists()
    if where == "reading":
        assert (listed.started[1] is not None) == marked
    else:
        assert listed.started == [None]  # nothing was read again
    if where == "writing":
        assert "sorting" not in dict(phases) or phases[0][1] == 3000


def grouped_by_arrow(listed: Listed, combine: str, symmetric: bool, simple: bool) -> Any:
    """Return the sorted edges (destination, source, weight) of pyarrow's groups; a self loop is its own reverse."""
    u, v, w = listed.sources, listed.destinations, listed.weight
    assert w is not None
    if simple:
        u, v, w = (each[listed.sources != listed.destinations] for each in (u, v, w))
    if symmetric:
        once = np.flatnonzero(u != v)
        at = np.append(np.arange(len(u)), once)
        order = np.argsort(at, kind="stable")  # an edge and its reverse side by side
        u, v, w = (each[order] for each in (np.append(u, v[once]), np.append(v, u[once]), w[at]))
    table = pyarrow.table({"v": v, "u": u, "w": w.astype(np.float64)})
    groups = (
        table.group_by(["v", "u"], use_threads=False)
        .aggregate([("w", combine)])
        .sort_by([("v", "ascending"), ("u", "ascending")])
    )
    return [groups[name].to_numpy() for name in ("v", "u", f"w_{combine}")]


@pytest.mark.sampled
@pytest.mark.parametrize("combine", build.COMBINE)
@pytest.mark.parametrize("asked", [name for name in ASKED if ASKED[name]])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_duplicates_are_those_of_groups(rng, path, built, kind, asked, combine):
    """In any memory with the same bits; within rounding to float32 those of pyarrow. Rounded whole ones are counted."""
    nodes, edges = int(rng.integers(2, 40)), int(rng.integers(1, 400))
    listed = Listed(*KINDS[kind](rng, nodes, edges), nodes=nodes)
    drawn = rng.integers(2**24, size=edges) if rng.random() < 0.5 else rng.normal(size=edges)
    listed.weight = drawn.astype(np.float32)
    found, counted = set[bytes](), list[str]()
    for memory in (600, 3000, 1 << 20):
        rules = {"combine": combine, **ASKED[asked]}
        found.add(built(listed, memory=memory, force=True, notes=counted, **rules).read_bytes())
    assert len(found) == 1
    verify(path)
    options = {"symmetric": False, "simple": False, **ASKED[asked]}
    v, u, w = grouped_by_arrow(listed, combine, **options)
    with open_graph(path) as opened:
        rows = opened.slice(0, nodes)
    assert np.array_equal(np.repeat(np.arange(nodes), np.diff(rows.indptr)), v)
    assert np.array_equal(rows.indices, u)
    weight = np.zeros(0) if rows.weight is None else rows.weight
    np.testing.assert_allclose(weight, w, rtol=1e-6, atol=1e-6)
    rounded = (w == np.round(w)) & (w != w.astype(np.float32)) & ((u <= v) | (not options["symmetric"]))
    line = f"listed: {rounded.sum()} of the weights w"
    assert len(counted) == 3 * rounded.any() and all(each.startswith(line) for each in counted)


@pytest.mark.parametrize("combine", ["sum", "mean", "max"])
def test_many_threads_combine_weights_as_one(rng, tmp_path, combine):
    edges = 120_000
    np.savez(
        tmp_path / "g.npz",
        edge_index=rng.integers(300, size=(2, edges)),
        edge_weight=rng.normal(size=edges).astype(np.float32),
        y=np.zeros(300, int),
    )
    for threads in ("1", "3"):
        command = ["import", "g.npz", "--symmetric", "--combine", combine, "-o", f"{threads}.h5"]
        done = python("-m", "mgg_hpc", *command, folder=tmp_path, OMP_NUM_THREADS=threads)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()


@pytest.mark.sampled
@pytest.mark.parametrize("where", ["reading", "sorting"])
@pytest.mark.parametrize("combine", ["sum", "mean", "min"])
def test_a_build_that_was_stopped_combines_all_weights(rng, path, built, monkeypatch, where, combine):
    monkeypatch.setattr(work, "KEEP_SECONDS", 0.0)
    one_way = uniform(rng, 1500)
    ends = one_way.sources, one_way.destinations
    weight = rng.integers(2**22, 2**24, size=1500).astype(np.float32)
    listed = Listed(np.append(*ends), np.append(*ends[::-1]), np.append(weight, weight), nodes=50)
    options: dict[str, Any] = {"symmetric": True, "combine": combine, "directed": None, "key": "k"}
    notes: list[list[str]] = [[], []]
    whole = built(listed, notes=notes[0], **options).read_bytes()
    path.unlink()
    stop(rng, built, listed, where, **options)
    assert work.folder_of(path).is_dir()
    assert built(listed, notes=notes[1], **options).read_bytes() == whole
    assert notes[0] == notes[1] and len(notes[0]) == 2 * (combine == "sum")


@pytest.mark.parametrize("memory", [3000, 1 << 20])
@pytest.mark.parametrize("symmetric", [True, False])
def test_duplicates_that_differ_are_refused(rng, built, symmetric, memory):
    """With an example and their number, where all are in memory; and nothing is left of the build."""
    rules = {"symmetric": symmetric, "simple": not symmetric, "memory": memory, "force": True}
    u, v = rng.integers(30, size=(2, 400))
    u, v = u[u != v], v[u != v]
    pair = np.sort(np.stack([u, v], axis=1), axis=1) if symmetric else np.stack([u, v], axis=1)
    _, group = np.unique(pair, axis=0, return_inverse=True)
    group = group.reshape(-1)
    weight = group.astype(np.float32)  # the same for each pair
    listed = Listed(u, v, weight=weight, nodes=30, data={"a": np.stack([group, -group], axis=1)})
    target = built(listed, **rules)
    several = np.flatnonzero(np.bincount(group) > 1)[:3]
    last = [int(np.flatnonzero(group == each)[-1]) for each in several]

    changed = weight.copy()
    changed[last] += 0.5
    count = "1 edge|2 edges|3 edges" if memory < 1 << 20 else "3 edges"
    with refused(rf"listed: duplicates of (at least )?({count}) have different weights, such as") as caught:
        built(replace(listed, weight=changed), **rules)
    words = re.search(
        r"as (\S+) and (\S+) of (\d+) -> (\d+); --combine sum, mean, max, min or first", str(caught.value)
    )
    assert words is not None
    low, high, source, destination = words.groups()
    assert {float(low) + 0.5, float(high)} in [{weight[each] + 0.5} for each in last]
    assert [int(source), int(destination)] in pair[last].tolist()
    assert list(target.parent.iterdir()) == [target]

    data = {"a": listed.data["a"].copy()}
    data["a"][last[0], 1] += 1
    for combine in ("", "sum"):
        with refused("have different data a, such as .* of .*; --combine first keeps those of the first"):
            built(replace(listed, data=data), **rules, combine=combine)
    built(replace(listed, data=data, weight=changed), **rules, combine="first")
    built(listed, **rules, combine="sum")  # equal data stay
    with refused("listed has no weights, which --combine sum is for"):
        built(replace(listed, weight=None, data={}), **rules, combine="sum")


def test_a_sum_counts_each_edge_once(built):
    """Also a self loop, and one of which all have their reverse listed; a weight beyond float32 is refused."""
    ends = np.array([0, 1, 0, 1, 2]), np.array([1, 0, 1, 0, 2])
    listed = Listed(*ends, weight=np.array([1, 1, 3, 3, 7], np.float32), nodes=3, step=2)
    other = replace(listed, weight=np.array([1, 1, 3, 2, 7], np.float32))
    pairs = ["listed lists each edge in both directions, with the same weight: a sum counts both as one"]
    for given, directed, wanted, said in [
        (listed, False, [4, 4, 7], []),
        (listed, None, [4, 4, 7], pairs),
        (listed, True, [8, 8, 7], []),
        (other, None, [7, 7, 7], []),
    ]:
        for memory in (80, 1 << 20):
            notes: list[str] = []
            options = {"directed": directed, "symmetric": True, "combine": "sum", "force": True}
            with open_graph(built(given, memory=memory, notes=notes, **options)) as opened:
                assert opened.slice(0, 3).weight.tolist() == wanted and not opened.directed
            assert notes == said
    with refused("listed: the graph is said to be undirected, but some edge has no equal one"):
        built(other, directed=False, symmetric=True, combine="sum", force=True)
    large = replace(listed, weight=np.full(5, 3e38, np.float32))
    with refused("listed: /graph/weight has inf at row 0; expected finite"):
        built(large, symmetric=True, combine="sum", force=True)


def test_what_an_unfinished_build_left_is_not_used_in_silence(rng, path, built, capfd, monkeypatch):
    monkeypatch.setattr(work, "KEEP_SECONDS", 0.0)
    manifest = work.folder_of(path) / work.MANIFEST
    for changes, key, said in [
        ({"version": work.VERSION - 1}, "k", "of another version of mgg"),
        ({}, "another", "of other options or files"),
        ({"digest": ""}, "k", "damaged"),
        ({}, "k", ""),
    ]:
        with pytest.raises(KeyboardInterrupt):
            built(replace(uniform(rng), stop=2000), key="k", force=True)
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
        capfd.readouterr()
        built(uniform(rng), key=key, force=True)
        line = f"mgg: {path} is begun anew: what an unfinished build of it left is {said}\n"
        assert capfd.readouterr().err == (line if said else "")


@pytest.mark.parametrize(
    "damage",
    [
        lambda sound: {},
        lambda sound: [],
        lambda sound: sound | {"state": {"runs": 7}},
        lambda sound: sound | {"state": sound["state"] | {"largest": 4}},
        None,
    ],
    ids=["empty", "a list", "other runs", "other ids", "of another key"],
)
def test_what_is_damaged_or_of_another_key_is_not_taken(rng, path, built, damage):
    listed, manifest = uniform(rng), work.folder_of(path) / work.MANIFEST
    with pytest.raises(KeyboardInterrupt):
        built(replace(listed, stop=2000), key="k")
    if damage:
        manifest.write_text(json.dumps(damage(json.loads(manifest.read_text()))))
    listed.started.clear()
    found = built(listed, key="k" if damage else "another").read_bytes()
    assert found == expected(path, listed) and (damage or listed.started == [None])


@pytest.mark.parametrize("first", [0, 1])
def test_the_smallest_id_of_all_blocks_tells_whether_ids_begin_at_1(rng, path, built, first):
    """Also of those that a build has gathered before it was stopped."""
    listed = uniform(rng)
    ends = np.maximum(listed.sources, 1), np.maximum(listed.destinations, 1)
    ends[0][7] = first  # in the first block
    listed = replace(listed, sources=ends[0], destinations=ends[1])
    for stop in (2000, 1 << 40):
        notes: list[str] = []
        with pytest.raises(KeyboardInterrupt) if stop == 2000 else nullcontext():
            built(replace(listed, stop=stop), key="k", from_one="begins at 1", notes=notes)
    assert notes == ["begins at 1"] * first


def test_folders_of_others_and_of_running_builds_are_left(rng, path, built):
    with work.WorkFolder(path, None) as other:
        other.file("run0").touch()
        with refused("belongs to another process that makes the same file"):
            built(uniform(rng))
    folder = work.folder_of(path)
    (folder / "mine").mkdir(parents=True)
    with refused("has files of others, and a build of .*g.h5 would use it"):
        built(uniform(rng))
    assert (folder / "mine").is_dir()


def test_wrong_edges_leave_nothing_and_wrong_data_of_nodes_leave_the_edges(rng, path, built):
    listed = uniform(rng)
    with refused("edge 2990 has the node id 50"):
        built(replace(listed, sources=np.where(np.arange(3000) == 2990, 50, listed.sources)), key="k")
    assert not list(path.parent.iterdir())
    rows, fields = node_rows(rng, 50)
    fields["x"][49, 0], kept = np.nan, fields["x"][49, 0]
    listed.started.clear()
    with refused("listed: /node/x has nan at row 49, column 0"):
        built(listed, rows, classes=5, key="k")
    fields["x"][49, 0] = kept
    found = built(listed, rows, classes=5, key="k").read_bytes()
    assert listed.started == [None]  # the edges were not read again
    assert found == expected(path, listed, classes=5, **fields)


def test_many_nodes_of_few_edges_take_bounded_memory(tmp_path):
    """Pieces are of bounded rows too, and degrees in a file."""
    program = """
        import sys, numpy as np
        from mgg_hpc.data.assembly import build_graph
        from mgg_hpc.data.edge_stream import EdgeBlock, Imported
        class Few:
            where, nodes, total = "few", 20_000_000, 1
            def blocks(self, mark=None, progress=None):
                yield EdgeBlock(np.array([5]), np.array([19_999_999]))
        build_graph(Imported("g", Few()), __import__("pathlib").Path("g.h5"), memory=256 << 20)
        print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
    """
    done = python("-c", textwrap.dedent(program), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 256 << 10


WRONG = {
    "a label": (["y"], 47, 5, "listed: /node/y has label 5 in row 47; expected 0 .. 4"),
    "masks": (["train", "val"], 40, True, "listed: row 40 is in /node/train and /node/val"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_data_of_nodes_are_named(rng, path, built, kind):
    rows, fields = node_rows(rng, 50)
    names, at, value, message = WRONG[kind]
    fields["y"][40], fields["test"][40] = 1, False
    for name in names:
        fields[name][at] = value
    with refused(message):
        built(uniform(rng), rows, classes=5)
    assert not path.exists()


def test_ids_tell_the_number_of_nodes_and_wrong_ones_are_named(built):
    ids = np.array([3, 0, 9, 2])
    with open_graph(built(Listed(ids, ids[::-1].copy()))) as opened:
        assert opened.nodes == 10
    for bad, nodes, message in [
        (-1, None, "listed: edge 2 has the node id -1; expected 0 or more"),
        (10, 10, "listed: edge 2 has the node id 10; expected 0 .. 9"),
        (10**9, None, "node id 1000000000 but only 4 edges; number the nodes from 0"),
    ]:
        with refused(message):
            built(Listed(np.where(ids == 9, bad, ids), ids, nodes=nodes), force=True)
    with refused("listed holds no edges"):
        built(Listed(ids[:0], ids[:0]), force=True)


def test_an_undirected_graph_is_found_out(rng, built):
    """Where the reader does not know it, or promises it wrongly."""
    one_way = uniform(rng, 400, nodes=30)
    ends = one_way.sources, one_way.destinations
    both = Listed(np.append(*ends), np.append(*ends[::-1]), nodes=30)
    for directed, listed, found in [(None, both, 0), (False, both, 0), (True, both, 1), (None, one_way, 1)]:
        target = built(listed, directed=directed, force=True)
        with open_graph(target) as opened:
            assert opened.directed == found
        verify(target)
    with refused("listed: the graph is said to be undirected, but some edge has no equal one"):
        built(one_way, directed=False, force=True)


def test_ids_of_more_than_32_bits_take_all_steps(rng, built):
    """Edges of rows near 2**40, sorted as those of the same rows less that number."""
    base, rows_there, edges = 2**40 - 3, 40, 900
    u, v = rng.integers(2**33, size=edges), rng.integers(rows_there, size=edges)
    columns = v.astype(np.uint64) + np.uint64(base), u.astype(np.uint64), np.zeros(0, np.uint8)
    made = runs.grouped(columns, 0, base, base + rows_there - 1, by_source=False)
    columns, starts = made.section(0, len(made.offsets) - 1, made.shift)
    degree, out = np.zeros(rows_there, np.int64), np.empty(edges, np.int64)
    native.load().sort_buckets(
        [(*columns, starts)], 0, base, made.shift, "all", False, 1, degree, out, np.zeros(0, np.uint8)
    )
    order = np.lexsort((u, v))
    assert np.array_equal(out, u[order]) and np.array_equal(degree, np.bincount(v, minlength=rows_there))


@pytest.mark.parametrize("by_source", [False, True])
def test_many_edges_are_grouped_by_several_threads(rng, by_source):
    """In the order of the stream within each bucket, with their data; some threads have no edge of a bucket."""
    edges = 200_000
    ends = rng.integers(20_000, size=(2, edges), dtype=np.uint32)
    ends[:, : edges // 2] //= 2
    payload = rng.integers(256, size=3 * edges, dtype=np.uint8)
    run = runs.grouped((*ends, payload), 3, 0, 19_999, by_source=by_source)
    order = np.argsort(ends[int(by_source)] >> run.shift, kind="stable")
    wanted = *ends[:, order], payload.reshape(-1, 3)[order].reshape(-1)
    for found, right in zip(run.edges(0, edges), wanted, strict=True):
        assert np.array_equal(found, right)
    counts = np.bincount(ends[int(by_source)] >> run.shift, minlength=len(run.offsets) - 1)
    assert np.array_equal(run.offsets, np.append(0, np.cumsum(counts)))


def test_a_write_of_few_bytes_is_followed_by_others(rng, tmp_path):
    """As calls of the system may write less than asked for."""

    class Few(FileIO):
        def write(self, data):
            return super().write(data[: int(rng.integers(1, 40))])

    values = rng.normal(size=(100, 3))
    with Few(tmp_path / "run0", "w") as file:
        work._write(file, values)
    assert np.array_equal(work.read_column(tmp_path / "run0", values.dtype, (3,), 0, 7, 90), values[7:90])
    with refused("run0 has become shorter"):
        work.read_column(tmp_path / "run0", values.dtype, (3,), 0, 7, 101)


def test_what_a_manifest_names_is_on_disk_before_it(rng, monkeypatch, built):
    """The runs of a build, and the parts of its CSR."""
    monkeypatch.setattr(work, "KEEP_SECONDS", 0)
    commits = Commits(monkeypatch, with_files=(work.MANIFEST,))
    target = built(uniform(rng, 700), memory=9000, key="k")
    manifests = len(commits.named) - 1
    assert manifests > 3
    commits.check(*[work.folder_of(target) / work.MANIFEST] * manifests, target)


IMPORT = """
    import sys
    from mgg_hpc.__main__ import main
    from mgg_hpc.data.assembly import rows, runs, work
    from mgg_hpc.data.readers import compressed
    runs.MOST_EDGES, rows.MOST_EDGES, work.KEEP_SECONDS, compressed.BLOCK_BYTES = 5000, 3000, 0.2, 30_000
    print("ready", flush=True)
    sys.exit(main(["import", "edges.txt", "--symmetric", "-o", sys.argv[1]]))
"""


def started(folder, name: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(IMPORT), name]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.trials(2, torture=40)
def test_a_killed_import_goes_on(rng, tmp_path, trials):
    """Killed at any instant, it gives the same file when the same command is given again."""
    pairs = rng.integers(2000, size=(60_000, 2))
    (tmp_path / "edges.txt").write_text("".join(f"{u} {v}\n" for u, v in pairs))
    began = time.monotonic()
    with started(tmp_path, "whole.h5") as process:
        assert process.wait() == 0
    took = time.monotonic() - began
    for _ in range(trials):
        for _ in range(int(rng.integers(1, 4))):
            with started(tmp_path, "g.h5") as process:
                time.sleep(rng.random() * took)
                process.kill()
            if (tmp_path / "g.h5").exists():
                break
        else:
            with started(tmp_path, "g.h5") as process:
                assert process.wait() == 0
        assert (tmp_path / "g.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
        (tmp_path / "g.h5").unlink()
        shutil.rmtree(tmp_path / ".g.h5.build", ignore_errors=True)  # killed between the file and its end
