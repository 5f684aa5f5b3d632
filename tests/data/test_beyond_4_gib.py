"""Bytes beyond 4 GiB of files: sparse ones, of which only what is written is there."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest
from system_calls import move_little

from mgg_hpc.data import atomic_write, schema, writer
from mgg_hpc.data.assembly import work
from mgg_hpc.data.checked import CheckedFile
from mgg_hpc.data.digest import LARGE_BLOCK
from mgg_hpc.data.header import Span
from mgg_hpc.data.readers.npy import open_array
from mgg_hpc.data.store import open_graph

from .graphs import flip_byte, random_graph, refused, same

FAR = 1 << 32


@pytest.fixture
def sparse(monkeypatch):
    """Nothing is allocated that is not written."""
    for module in (atomic_write, writer):
        monkeypatch.setattr(module, "reserve", os.truncate)


def test_a_graph_file_of_more_than_4_gib(rng, path, sparse):
    """Its features alone are larger, of a digest block each; labels and masks lie behind them."""
    nodes, columns, digest = 1100, 1 << 20, writer.BlockDigests(LARGE_BLOCK)
    graph = random_graph(rng, nodes=nodes, edges=3000)
    row, zeros = np.zeros((3, columns), np.float32), np.zeros(LARGE_BLOCK, np.uint8)
    row[0], row[2, rng.integers(columns)] = rng.standard_normal(columns), 1
    layout = schema.Layout(schema.FLOAT32, (nodes, columns))
    held = schema.contents(graph)
    held = schema.Contents(
        "far", False, held.classes, False, {**held.datasets, schema.X: layout}, partitions=()
    )
    digests = np.full(nodes, digest.update(zeros)[0], np.uint64)
    digests[-3:] = digest.update(row.reshape(-1).view(np.uint8))
    arrays = schema.arrays(graph)
    with writer.graph_file(path, held, digests={schema.X: digests}, block=LARGE_BLOCK) as file:
        for name, array in arrays.items():
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


@pytest.mark.parametrize("copies", [None, errno.EXDEV], ids=["copied by the kernel", "copied by hand"])
def test_datasets_beyond_4_gib_are_written_read_and_copied(rng, tmp_path, monkeypatch, copies):
    values = rng.integers(1, 1 << 40, 3000)
    layout = schema.Layout(schema.INT64, values.shape)
    move_little(monkeypatch, rng, unit=512, copies=copies)
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    place, digest = FAR - 4096, FAR + (1 << 20)
    made = writer.GraphWriter(files[0], {"a": layout}, {"a": place})
    made.put("a", [values[:1000], values[1000:]])
    of_digests = schema.Layout(np.dtype(np.uint64), made.digests["a"].shape)
    writer.GraphWriter(files[0], {"d": of_digests}, {"d": digest}).put("d", [made.digests["a"]])
    spans = {"a": Span(layout, place)}
    header = SimpleNamespace(spans=spans, digests={"a": Span(of_digests, digest)}, block=writer.BLOCK)
    source = CheckedFile(files[0], "a", header)
    assert same(source.checked("a", 700, 2900), values[700:2900])
    source.copy(spans["a"], files[1], place + 24)
    found = CheckedFile(
        files[1], "b", SimpleNamespace(spans={"a": Span(layout, place + 24)}, digests={}, block=1)
    )
    assert same(found.read("a", 0, 3000), values)
    for each in (source, found):
        each.close()


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
