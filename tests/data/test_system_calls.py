"""Files when calls of the system move fewer bytes than were asked for, and the order in which they are committed."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
from jobs import dense
from system_calls import Commits, move_little

from mgg_hpc.data import user_cache
from mgg_hpc.data.assembly import build_graph, runs, work
from mgg_hpc.data.assembly import graph as build
from mgg_hpc.data.export import row_files
from mgg_hpc.data.export.matrix_market import write_mtx
from mgg_hpc.data.export.npz import write_npz
from mgg_hpc.data.readers.npy import open_array
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.streams import Imported
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import write, write_bounds

from .assembly.test_build import Listed, expected
from .graphs import random_graph, same

BOUNDS = np.array([0, 11, 40])


@pytest.mark.parametrize("copies", [None, errno.EXDEV], ids=["copied by the kernel", "copied by hand"])
def test_a_graph_file_is_written_read_and_copied_whole(rng, path, monkeypatch, copies):
    graph = random_graph(rng, sparse=True, weighted=True)
    write(path, graph)
    whole = path.read_bytes()
    move_little(monkeypatch, rng, copies=copies)
    write(path, graph, force=True)
    assert path.read_bytes() == whole
    write_bounds(path, 2, BOUNDS, "edges", [1, 2])
    with open_graph(path) as opened:
        part = opened.slice(3, 31)
    assert same(part.weight, graph.weight[graph.indptr[3] : graph.indptr[31]])
    assert same(dense(part.x), dense(graph.x)[3:31])
    verify(path)


@pytest.fixture
def built(rng, tmp_path, monkeypatch):
    """What builds a graph file in so little memory that all goes through files, and the bytes that it should have."""
    for module, name, value in ((build, "LEAST_MEMORY", 0), (build, "PROGRAM", 0), (runs, "LEAST_EDGES", 1)):
        monkeypatch.setattr(module, name, value)
    listed = Listed(*rng.integers(50, size=(2, 700)), nodes=50)
    listed.weight = rng.normal(size=700).astype(np.float32)
    write(tmp_path / "whole.h5", expected(listed, 50))

    def make():
        build_graph(Imported("g", listed), tmp_path / "g.h5", memory=9000, key="k")
        return tmp_path / "g.h5"

    return make, (tmp_path / "whole.h5").read_bytes()


def test_a_build_has_all_edges(rng, monkeypatch, built):
    make, whole = built
    move_little(monkeypatch, rng, unit=16)
    assert make().read_bytes() == whole


def test_an_array_is_read_whole(rng, tmp_path, monkeypatch):
    values = rng.standard_normal((300, 3))
    np.save(tmp_path / "a.npy", values)
    move_little(monkeypatch, rng)
    assert same(open_array(tmp_path / "a.npy").whole(), values)


def graph_file(path, graph):
    write(path, graph, force=True)
    return [path]


def ranges(path, graph):
    write_bounds(path, 2, BOUNDS, "edges", [1, 2])
    return [path]


def document(path, graph):
    assert user_cache.write("a.json", {"one": 1})
    assert json.loads((user_cache.folder() / "a.json").read_text()) == {"one": 1}
    return [user_cache.folder() / "a.json"]


def archive(path, graph):
    with open_graph(path) as opened:
        write_npz(opened, path.with_name("a.npz"))
    return [path.with_name("a.npz")]


def matrix(path, graph):
    with open_graph(path) as opened:
        return write_mtx(opened, path.with_name("a.mtx"))


class Alone:
    rank, size = 0, 1


def rows_of_nodes(path, graph):
    named, ids = [], np.arange(graph.nodes)
    for name in ("rows.h5", "rows.npy"):
        arrays = {"embedding": np.asarray(graph.x)}
        row_files.write(Alone, path.with_name(name), ids, arrays, np.array([0, graph.nodes]), {})
        named.append(path.with_name(name))
    return named


@pytest.mark.parametrize("commit", [graph_file, ranges, document, archive, matrix, rows_of_nodes])
def test_what_gets_a_name_is_on_disk_and_so_is_the_name(rng, path, monkeypatch, commit):
    graph = random_graph(rng)
    write(path, graph)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent))
    commits = Commits(monkeypatch)
    commits.check(*commit(path, graph))


def test_what_a_manifest_names_is_on_disk_before_it(monkeypatch, built):
    """The runs of a build, and the parts of its CSR."""
    make, whole = built
    monkeypatch.setattr(work, "KEEP_SECONDS", 0)
    commits = Commits(monkeypatch, with_files=(work.MANIFEST,))
    target = make()
    *manifests, last = commits.named
    assert len(manifests) > 3
    commits.check(*[work.folder_of(target) / work.MANIFEST] * len(manifests), target)
    assert last.read_bytes() == whole
