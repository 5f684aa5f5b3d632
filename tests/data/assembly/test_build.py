"""Graph files that are built in little memory equal those of all edges at once."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from mgg_hpc.data import native, schema
from mgg_hpc.data.assembly import build_graph, runs, work
from mgg_hpc.data.assembly import graph as build
from mgg_hpc.data.graph import Graph, from_edges
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.streams import EdgeBlock, Imported, Rows
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
def little(monkeypatch):
    """So little memory that some hundred edges need several runs, pieces and regroupings."""
    monkeypatch.setattr(build, "LEAST_MEMORY", 0)
    monkeypatch.setattr(build, "PROGRAM", 0)
    monkeypatch.setattr(build, "PIECE", 33)
    monkeypatch.setattr(runs, "BUCKETS", 8)
    monkeypatch.setattr(runs, "LEAST_EDGES", 1)


KINDS = {
    "uniform": lambda rng, n, e: (rng.integers(n, size=e), rng.integers(n, size=e)),
    "a hub of most edges": lambda rng, n, e: (
        rng.integers(n, size=e),
        np.where(rng.random(e) < 0.8, n // 2, 0),
    ),
    "copies of few edges": lambda rng, n, e: (rng.integers(2, size=e), rng.integers(2, size=e)),
    "loops alone": lambda rng, n, e: (np.arange(e) % n, np.arange(e) % n),
}
ASKED = {
    "as listed": {},
    "symmetric": {"symmetric": True},
    "simple": {"simple": True},
    "symmetric and simple": {"symmetric": True, "simple": True},
}


def expected(listed: Listed, nodes: int, symmetric: bool = False, simple: bool = False) -> Graph:
    return from_edges(
        listed.sources,
        listed.destinations,
        nodes,
        name="g",
        weight=listed.weight,
        edge=listed.data,
        symmetric=symmetric,
        drop_duplicates=simple,
        drop_self_loops=simple,
    )


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_file_equals_that_of_all_edges_at_once(rng, tmp_path, little, kind, asked, weighted):
    nodes, edges = int(rng.integers(2, 90)), int(rng.integers(1, 700))
    listed = Listed(*KINDS[kind](rng, nodes, edges), nodes=nodes)
    if rng.random() < 0.3:
        listed.sources = listed.sources.astype(rng.choice([np.int32, np.uint32, np.uint8]))
    if weighted:
        listed.weight = rng.normal(size=edges).astype(np.float32)
        listed.data = {
            "b": rng.integers(9, size=(edges, 3)).astype(np.int16),
            "a": rng.normal(size=edges).astype(np.float16),
        }
    write(tmp_path / "whole.h5", expected(listed, nodes, **ASKED[asked]))
    for memory in (600, 3000, 1 << 20):
        target = tmp_path / f"{memory}.h5"
        build_graph(Imported("g", listed), target, memory=memory, **ASKED[asked])
        assert target.read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1048576.h5", "3000.h5", "600.h5", "whole.h5"]
    verify(tmp_path / "600.h5")


@pytest.mark.sampled
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("where", ["reading", "sorting", "writing"])
def test_a_build_that_was_stopped_goes_on_where_it_was(rng, tmp_path, little, monkeypatch, where, marked):
    monkeypatch.setattr(work, "KEEP_SECONDS", float(rng.choice([0, 1e9])))  # or only as it ends
    nodes, edges = 50, 3000
    listed = Listed(*KINDS["uniform"](rng, nodes, edges), nodes=nodes, marked=marked)
    listed.weight = rng.normal(size=edges).astype(np.float32)
    write(tmp_path / "whole.h5", expected(listed, nodes, symmetric=True))
    target = tmp_path / "g.h5"
    limits = {phase: int(rng.integers(1, 6)) for phase in ("reading", "sorting", "writing")}

    def stopping(phase, done, total):
        if phase == where:
            limits[phase] -= 1
            if not limits[phase]:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_graph(Imported("g", listed), target, memory=4000, symmetric=True, key="k", progress=stopping)
    left = work.folder_of(target)
    assert (
        left.is_dir() == (marked or where != "reading") and not target.exists()
    )  # what is of no use is gone
    phases = []
    build_graph(
        Imported("g", listed),
        target,
        memory=4000,
        symmetric=True,
        key="k",
        progress=lambda phase, done, total: phases.append((phase, done)),
    )
    assert target.read_bytes() == (tmp_path / "whole.h5").read_bytes() and not left.exists()
    if where != "reading":
        assert listed.started == [None]  # nothing was read again
    else:
        assert (listed.started[1] is not None) == marked
    if where == "writing":
        assert "sorting" not in dict(phases) or phases[0][1] == edges


def test_what_a_build_of_another_key_left_is_not_taken(rng, tmp_path, little):
    first, second = (
        Listed(*KINDS["uniform"](rng, 50, 3000), nodes=50, stop=stop) for stop in (2000, 1 << 40)
    )
    target = tmp_path / "g.h5"
    with pytest.raises(KeyboardInterrupt):
        build_graph(Imported("g", first), target, memory=4000, key="first")
    build_graph(Imported("g", second), target, memory=4000, key="second")
    assert second.started == [None]
    write(tmp_path / "whole.h5", expected(second, 50))
    assert target.read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_a_damaged_manifest_is_not_believed(rng, tmp_path, little):
    listed = Listed(*KINDS["uniform"](rng, 50, 3000), nodes=50)
    write(tmp_path / "whole.h5", expected(listed, 50))
    stopped = Listed(listed.sources, listed.destinations, nodes=50, stop=2000)
    manifest = work.folder_of(tmp_path / "g.h5") / work.MANIFEST
    with pytest.raises(KeyboardInterrupt):
        build_graph(Imported("g", stopped), tmp_path / "g.h5", memory=4000, key="k")
    sound = json.loads(manifest.read_text())
    for damaged in (
        {},
        [],
        sound | {"state": {"runs": 7}},
        sound | {"state": sound["state"] | {"largest": 4}},
    ):
        with pytest.raises(KeyboardInterrupt):
            build_graph(Imported("g", stopped), tmp_path / "g.h5", memory=4000, key="k")
        manifest.write_text(json.dumps(damaged))
        build_graph(Imported("g", listed), tmp_path / "g.h5", memory=4000, key="k")
        assert (tmp_path / "g.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
        (tmp_path / "g.h5").unlink()


def test_files_of_others_are_left_where_they_are(rng, tmp_path, little):
    listed = Listed(*KINDS["uniform"](rng, 50, 3000), nodes=50)
    folder = work.folder_of(tmp_path / "g.h5")
    (folder / "mine").mkdir(parents=True)
    with refused("has files of others, and a build of .*g.h5 would use it"):
        build_graph(Imported("g", listed), tmp_path / "g.h5", memory=4000)
    assert (folder / "mine").is_dir()


def test_wrong_edges_leave_nothing_and_wrong_data_of_nodes_leave_the_edges(rng, tmp_path, little):
    ids = KINDS["uniform"](rng, 50, 3000)
    wrong = Listed(ids[0].copy(), ids[1], nodes=50)
    wrong.sources[2990] = 50
    with refused("edge 2990 has the node id 50"):
        build_graph(Imported("g", wrong), tmp_path / "g.h5", memory=4000, key="k")
    assert not list(tmp_path.iterdir())
    listed, (of_nodes, fields) = Listed(*ids, nodes=50), node_rows(rng, 50)
    fields["x"][49, 0], kept = np.nan, fields["x"][49, 0]
    with refused("/node/x has nan at row 49"):
        build_graph(Imported("g", listed, of_nodes, classes=5), tmp_path / "g.h5", memory=4000, key="k")
    fields["x"][49, 0] = kept
    build_graph(Imported("g", listed, of_nodes, classes=5), tmp_path / "g.h5", memory=4000, key="k")
    assert listed.started == [None]  # the edges were not read again
    write(tmp_path / "whole.h5", replace(expected(listed, 50), classes=5, **fields))
    assert (tmp_path / "g.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_many_nodes_of_few_edges_take_bounded_memory(tmp_path):
    """Pieces are of bounded rows too, and degrees in a file."""
    program = """
        import sys, numpy as np
        from mgg_hpc.data.assembly import build_graph
        from mgg_hpc.data.streams import EdgeBlock, Imported
        class Few:
            where, nodes, total = "few", 20_000_000, 1
            def blocks(self, mark=None, progress=None):
                yield EdgeBlock(np.array([5]), np.array([19_999_999]))
        build_graph(Imported("g", Few()), __import__("pathlib").Path("g.h5"), memory=256 << 20)
        print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 256 << 10


def test_two_builds_of_one_file_are_kept_apart(rng, tmp_path, little):
    listed = Listed(*KINDS["uniform"](rng, 50, 3000), nodes=50)
    with work.WorkFolder(tmp_path / "g.h5", None) as other:
        other.file("run0").touch()
        with refused("belongs to another process that makes the same file"):
            build_graph(Imported("g", listed), tmp_path / "g.h5", memory=4000)


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
    paths = dict(zip((schema.X, schema.Y, *schema.MASKS), fields.values(), strict=True))

    def pieces(array):
        step = int(rng.integers(1, 20))
        return lambda: (array[low : low + step] for low in range(0, len(array), step))

    of_nodes = {
        path: Rows(schema.Layout(array.dtype, array.shape), pieces(array)) for path, array in paths.items()
    }
    return of_nodes, fields


def test_data_of_nodes_come_in_pieces(rng, tmp_path, little):
    listed = Listed(*KINDS["uniform"](rng, 80, 900), nodes=80)
    of_nodes, fields = node_rows(rng, 80)
    build_graph(Imported("g", listed, lambda: of_nodes, classes=5), tmp_path / "g.h5", memory=4000)
    write(tmp_path / "whole.h5", replace(expected(listed, 80), classes=5, **fields))
    assert (tmp_path / "g.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


WRONG = {
    "a feature": (schema.X, (41, 2), np.nan, "listed: /node/x has nan at row 41, column 2"),
    "a label": (schema.Y, 77, 5, "listed: /node/y has label 5 in row 77; expected 0 .. 4"),
    "two masks": (schema.MASKS, 50, True, "listed: row 50 is in /node/train and /node/val and /node/test"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_data_of_nodes_are_named(rng, tmp_path, little, kind):
    listed = Listed(*KINDS["uniform"](rng, 80, 900), nodes=80)
    of_nodes, fields = node_rows(rng, 80)
    paths, at, value, message = WRONG[kind]
    fields["y"][50] = 1
    for path in (paths,) if isinstance(paths, str) else paths:
        fields[path.removeprefix("node/")][at] = value
    with refused(message):
        build_graph(Imported("g", listed, of_nodes, classes=5), tmp_path / "g.h5", memory=4000)
    assert not (tmp_path / "g.h5").exists()


def test_ids_tell_the_number_of_nodes_and_wrong_ones_are_named(tmp_path, little):
    ids = np.array([3, 0, 9, 2])
    held = build_graph(Imported("g", Listed(ids, ids[::-1].copy())), tmp_path / "g.h5", memory=4000)
    assert held.nodes == 10
    for bad, nodes, message in [
        (-1, None, "listed: edge 2 has the node id -1; expected 0 or more"),
        (10, 10, "listed: edge 2 has the node id 10; expected 0 .. 9"),
        (10**9, None, "node id 1000000000 but only 4 edges; number the nodes from 0"),
    ]:
        wrong = ids.copy()
        wrong[2] = bad
        with refused(message):
            build_graph(Imported("g", Listed(wrong, ids, nodes=nodes)), tmp_path / "w.h5", memory=4000)
    with refused("listed holds no edges"):
        build_graph(Imported("g", Listed(ids[:0], ids[:0])), tmp_path / "w.h5", memory=4000)


def test_an_undirected_graph_is_found_out(rng, tmp_path, little):
    """Where the reader does not know it, or promises it wrongly."""
    u, v = KINDS["uniform"](rng, 30, 400)
    both = Listed(np.append(u, v), np.append(v, u), nodes=30)
    for directed, listed, found in [
        (None, both, False),
        (False, both, False),
        (True, both, True),
        (None, Listed(u, v, nodes=30), True),
    ]:
        build_graph(Imported("g", listed, directed=directed), tmp_path / "g.h5", memory=4000, force=True)
        with open_graph(tmp_path / "g.h5") as opened:
            assert opened.directed == found
        verify(tmp_path / "g.h5")
    with refused("listed: the graph is said to be undirected, but some edge has no equal one"):
        build_graph(Imported("g", Listed(u, v, nodes=30), directed=False), tmp_path / "w.h5", memory=4000)


def test_ids_of_more_than_32_bits_take_all_steps(rng, little):
    """Edges of rows near 2**40, sorted as those of the same rows less that number."""
    base, rows_there, edges = 2**40 - 3, 40, 900
    u, v = rng.integers(2**33, size=edges), rng.integers(rows_there, size=edges)
    made = runs.grouped(
        (v.astype(np.uint64) + np.uint64(base), u.astype(np.uint64), np.zeros(0, np.uint8)),
        0,
        base,
        base + rows_there - 1,
        by_source=False,
    )
    section = made.section(0, len(made.offsets) - 1, 1)
    degree, out = np.zeros(rows_there, np.int64), np.empty(edges, np.int64)
    given = [(section.destinations, section.sources, section.payload, section.offsets)]
    native.load().sort_buckets(given, 0, base, made.shift, False, degree, out, np.zeros(0, np.uint8))
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
