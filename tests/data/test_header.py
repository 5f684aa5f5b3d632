"""Files that are no sound graph files are refused by name before anything is read from them."""

from __future__ import annotations

import os
from dataclasses import replace

import h5py
import numpy as np
import pytest

from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write

from .graphs import random_graph
from .graphs import refused as one_line

N = 40  # nodes of the file that tests change


@pytest.fixture
def path(rng, path):
    """A sound file, and another with features that it might take."""
    graph = random_graph(rng, weighted=True)
    write(path, replace(graph, edge={"class": np.zeros(graph.edges, np.uint8)}))
    with h5py.File(path.with_name("other.h5"), "w") as file:
        file["x"] = np.zeros((N, 6), np.float32)
    return path


def refused(path, reason: str) -> None:
    with one_line(reason) as caught:
        open_graph(path)
    assert str(path) in str(caught.value)


def test_paths_without_a_graph_file(tmp_path):
    (tmp_path / "text.h5").write_text("0 1\n1 2\n")
    (tmp_path / "empty.h5").touch()
    os.mkfifo(tmp_path / "pipe.h5")  # would have its reader wait for ever; and a device has no end
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    for name, reason in [
        ("none.h5", "none.h5 does not exist"),
        ("", "is a folder; expected a graph file"),
        ("text.h5", "text.h5 is not a graph file: it is not HDF5"),
        ("empty.h5", "empty.h5 is not a graph file"),
        ("other.h5", "is not a graph file: its attribute format is ''"),
        ("pipe.h5", "pipe.h5 is not a regular file; expected a graph file"),
        ("/dev/zero", "/dev/zero is not a regular file"),
    ]:
        refused(tmp_path / name, reason)


def test_a_file_truncated_anywhere(path, rng):
    whole = path.read_bytes()
    cut = path.with_name("cut.h5")
    for length in [*range(0, 200, 8), *rng.integers(200, len(whole), size=60).tolist(), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        refused(cut, "cut.h5 is not a graph file")
    cut.write_bytes(whole[: len(whole) // 2])
    refused(cut, "it is truncated")


def put(name, data, **options):
    return lambda file: (file.pop(name, None), file.create_dataset(name, data=data, **options))


def cut(name):
    return lambda file: file.__delitem__(name)


def link(name, target):
    """Have a link go to where what it replaces is then, or to another file."""
    return lambda file: (file.move(name, "elsewhere"), file.__setitem__(name, target))


def unstored(name, kind, shape, plan=None):
    """Put a dataset in another's place, of which nothing is written."""

    def apply(file):
        del file[name]
        folder, _, last = name.rpartition("/")
        h5py.h5d.create(file[folder].id, last.encode(), kind, h5py.h5s.create_simple(shape), plan)

    return apply


def group(name):
    return lambda file: (file.pop(name, None), file.create_group(name))


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


VIRTUAL = h5py.VirtualLayout((N, 6), np.float32)
VIRTUAL[:] = h5py.VirtualSource("other.h5", "x", (N, 6))
CHANGES = {
    "a later version": (attribute("version", 3), "format version 3; this program reads versions 1 to 2"),
    "no version": (lambda file: file.attrs.__delitem__("version"), "attribute version is missing from /"),
    "a version that is text": (attribute("version", "1"), "is '1'; expected a int"),
    "another format": (attribute("format", "x"), "format is 'x', not 'mgg-graph'"),
    "no indptr": (cut("graph/indptr"), "/graph/indptr is missing"),
    "a group for a dataset": (group("graph/indices"), "/graph/indices is missing"),
    "no digests": (cut("digest/node/x"), "/digest/node/x is missing"),
    "short digests": (put("digest/node/x", np.zeros(0, np.uint64)), r"is uint64 \[0\]; expected uint64 \[1\]"),
    "narrow indptr": (put("graph/indptr", np.zeros(N + 1, np.int32)), r"is int32 \[41\]; expected int64 \[41\]"),
    "blocks of no bytes": (attribute("digest_block", 0), "digest_block is 0; expected a power of two from 4,096"),
    "large blocks": (attribute("digest_block", 2**23), "digest_block is .*; expected .* to 4,194,304"),
    "odd blocks": (attribute("digest_block", 2**16 + 1), "digest_block is .*; expected a power of two"),
    "long words": (attribute("format", "a\nb" * 1000), r"its attribute format is 'a\\nba\\nb.{,150}\.\.\.'"),
    "no nodes": (put("graph/indptr", np.zeros(1, np.int64)), "one node at least"),
    "features for other nodes": (
        put("node/x", np.zeros((N + 1, 6), np.float32)),
        r"/node/x is float32 \[41, 6\]; expected float32 \[40, 6\] or float16 \[40, 6\]",
    ),
    "double features": (put("node/x", np.zeros((N, 3))), r"/node/x is float64 \[40, 3\]; expected float32"),
    "no feature columns": (
        lambda file: (put("node/x", np.zeros((N, 0), np.float32))(file),
                      put("digest/node/x", np.zeros(0, np.uint64))(file)),
        r"/node/x is float32 \[40, 0\]; expected float32 \[40, 1\]",
    ),
    "a scalar": (put("node/y", np.int64(3)), "/node/y has no dimensions"),
    "text for labels": (put("node/y", np.array([b"a"] * N)), r"/node/y is bytes8 \[40\]; expected int64 \[40\]"),
    "text of any length": (put("node/y", ["a"] * N), r"/node/y is object \[40\]; expected int64"),
    "labels without classes": (attribute("classes", 0), "there is a /node/y, but the attribute classes is 0"),
    "classes without labels": (cut("node/y"), "attribute classes is 5, but there is no /node/y"),
    "multi-label that is not": (attribute("multilabel", True), r"is int64 \[40\]; expected float32 \[40, 5\]"),
    "masks of numbers": (put("node/val", np.zeros(N, np.uint8)), r"/node/val is uint8 \[40\]; expected bool"),
    "two masks of three": (cut("node/test"), "/node/test is missing; the train, val"),
    "compression": (put("node/x", np.zeros((N, 6), np.float32), compression="gzip"), "is chunked or compressed"),
    "a partition with a name": (group("partition/four"), "/partition/four is not named by a number"),
    "a partition without bounds": (group("partition/4"), "/partition/4/bounds is missing"),
    "a group among data of edges": (group("edge/more"), "/edge/more is not an array"),
    "a name of data of edges": (put("edge/a b", [1]), "named 'a b'"),
    "data of edges without digests": (put("edge/more", np.zeros(3, "i4")), "/digest/edge/more is missing"),
    "a link among data of edges": (link("edge/class", h5py.SoftLink("/graph/weight")), "/edge/class is a link"),
    "few data of edges": (
        put("edge/class", np.zeros(3, "u1")), r"/edge/class is uint8 \[3\]; expected float32, float16 or integers",
    ),
    # Nothing outside of the file is read.
    "an external link": (link("node/x", h5py.ExternalLink("other.h5", "/x")), "/node/x is a link"),
    "a soft link": (link("node/x", h5py.SoftLink("/elsewhere")), "/node/x is a link"),
    "a group that is a link": (link("node", h5py.SoftLink("/elsewhere")), "/node is a link"),
    "external storage": (
        put("node/x", None, shape=(N, 6), dtype=np.float32, external=[("/dev/zero", 0, 24 * N)]),
        "/node/x is stored in another file",
    ),
    "a virtual dataset": (
        lambda file: (file.pop("node/x"), file.create_virtual_dataset("node/x", VIRTUAL)),
        "/node/x is stored in another file",
    ),
    "a size without storage": (  # refused, not allocated
        unstored("graph/indices", h5py.h5t.NATIVE_INT32, (2**60,)),
        rf"/graph/indices claims int32 \[{2**60}\], {2**62} bytes; the file does not hold them",
    ),
    "CSR features without a shape": (group("node/x"), "the attribute shape of /node/x is None"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_does_not_follow_the_schema(change, path):
    apply, reason = CHANGES[change]
    with h5py.File(path, "r+") as file:
        apply(file)
    refused(path, reason)


def test_a_file_that_is_larger_than_memory(path):
    """A file with a hole: long enough, but no machine has its 2.5 TiB."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "r+") as file:
        unstored("node/x", h5py.h5t.NATIVE_FLOAT, (N, 2**34), plan)(file)
        put("digest/node/x", np.zeros(4 * N * 2**34 // 2**16, np.uint64))(file)
    with (
        open_graph(path) as opened,
        one_line(r"rows 0 \.\. 39 of /node/x take 2,560\.0 GiB, more memory than"),
    ):
        opened.slice(0, N)
