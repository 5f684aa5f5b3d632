"""Files when calls move fewer bytes than asked for, the order in which they are committed, bytes beyond 4 GiB."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import dense
from system_calls import Commits, move_little

from mgg_hpc.data import atomic_write, row_files, schema, user_cache, writer
from mgg_hpc.data.assembly import work
from mgg_hpc.data.digest import LARGE_BLOCK
from mgg_hpc.data.export import write_mtx, write_npz
from mgg_hpc.data.readers.npy import open_array
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import write, write_bounds

from .graphs import flip_byte, random_graph, refused, same

COPIED = pytest.mark.parametrize(
    "copies", [None, errno.EXDEV], ids=["copied by the kernel", "copied by hand"]
)
BOUNDS = np.array([0, 11, 40])


@COPIED
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


def document(path, graph):
    assert user_cache.write("a.json", {"one": 1})
    assert json.loads((user_cache.folder() / "a.json").read_text()) == {"one": 1}
    return [user_cache.folder() / "a.json"]


def exported(write, name):
    def commit(path, graph):
        with open_graph(path) as opened:
            return write(opened, path.with_name(name)) or [path.with_name(name)]

    return commit


def rows_of_nodes(path, graph):
    named, ids = [path.with_name("rows.h5"), path.with_name("rows.npy")], np.arange(graph.nodes)
    alone = SimpleNamespace(rank=0, size=1)
    for name in named:
        row_files.write(alone, name, ids, {"embedding": graph.x}, np.array([0, graph.nodes]), {})
    return named


COMMITS = {
    "graph file": lambda path, graph: write(path, graph, force=True) or [path],
    "row ranges": lambda path, graph: write_bounds(path, 2, BOUNDS, "edges", [1, 2]) or [path],
    "document": document,
    "archive": exported(write_npz, "a.npz"),
    "matrix": exported(write_mtx, "a.mtx"),
    "rows of nodes": rows_of_nodes,
}


@pytest.mark.parametrize("kind", COMMITS)
def test_what_gets_a_name_is_on_disk_and_so_is_the_name(rng, path, monkeypatch, kind):
    graph = random_graph(rng)
    write(path, graph)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent))
    commits = Commits(monkeypatch)
    commits.check(*COMMITS[kind](path, graph))


# --- beyond 4 GiB: files of which only what is written is there

FAR = 1 << 32


def test_a_graph_file_of_more_than_4_gib(rng, path, monkeypatch):
    """Its features alone are larger, of a digest block each; labels and masks lie behind them."""
    for module in (atomic_write, writer):
        monkeypatch.setattr(module, "reserve", os.truncate)
    nodes, columns, digest = 1100, 1 << 20, writer.BlockDigests(LARGE_BLOCK)
    graph = random_graph(rng, nodes=nodes, edges=3000)
    row, zeros = np.zeros((3, columns), np.float32), np.zeros(LARGE_BLOCK, np.uint8)
    row[0], row[2, rng.integers(columns)] = rng.standard_normal(columns), 1
    held = schema.contents(graph)
    layout = schema.Layout(schema.FLOAT32, (nodes, columns))
    held = replace(held, datasets={**held.datasets, schema.X: layout})
    digests = np.full(nodes, digest.update(zeros)[0], np.uint64)
    digests[-3:] = digest.update(row.reshape(-1).view(np.uint8))
    with writer.graph_file(path, held, digests={schema.X: digests}, block=LARGE_BLOCK) as file:
        for name, array in schema.arrays(graph).items():
            if name != schema.X:
                file.put(name, [array])
        file._write(row.view(np.uint8).reshape(-1), file._offsets[schema.X] + (nodes - 3) * LARGE_BLOCK)
    assert path.stat().st_blocks * 512 < 64 << 20
    with open_graph(path) as opened:
        assert opened.offset(schema.Y) > FAR
        part = opened.slice(nodes - 4, nodes)
        assert same(part.x[1:], row) and not part.x[0].any()
        assert same(part.y, graph.y[-4:]) and same(part.train, graph.train[-4:])
        into = [np.empty((2, columns), np.float32) for _ in range(2)]
        assert same(np.concatenate(list(opened.feature_blocks(nodes - 3, nodes, into))), row)
    flip_byte(path, schema.X, (nodes - 2) * LARGE_BLOCK + 5)
    with open_graph(path) as opened, refused(f"the digest of block {nodes - 2} "):
        opened.slice(nodes - 3, nodes)


def test_arrays_of_a_build_beyond_4_gib(rng, tmp_path):
    """What grows at its end, and what is read of the middle of a file."""
    held, values = FAR // 8 + 3, rng.integers(1, 1 << 40, (2, 500))
    column = work.ColumnFile(tmp_path / "degree", np.dtype(np.int64), length=held)
    for part in values:
        column.append(part)
    found = work.read_column(tmp_path / "degree", np.dtype(np.int64), (), 0, held, held + 1000)
    assert same(found, values.reshape(-1))
    again = work.read_column(tmp_path / "degree", np.dtype(np.int64), (), 8 * held, 400, 700)
    assert same(again, values.reshape(-1)[400:700])
    column.close()


@pytest.mark.parametrize("fortran", [False, True])
def test_an_array_of_more_than_4_gib_is_read_where_it_lies(rng, tmp_path, fortran):
    rows, values = FAR // 24 + 100, rng.standard_normal((40, 3))
    header = {"descr": "<f8", "fortran_order": fortran, "shape": (rows, 3)}
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        begin = file.tell()
        for column in range(3 if fortran else 1):
            last = (column * rows if fortran else 0) + (rows - 40) * (1 if fortran else 3)
            file.seek(begin + 8 * last)
            file.write((values[:, column] if fortran else values).tobytes())
    with open_array(tmp_path / "a.npy").reading(rows - 40) as take:
        assert same(np.concatenate([take(17), take(23)]), values)
