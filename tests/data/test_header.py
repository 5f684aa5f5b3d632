"""Files that are no sound graph files are refused by name before anything is read from them."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write

from .graphs import random_graph
from .graphs import refused as one_line


@pytest.fixture
def path(rng, path):
    """A sound file."""
    write(path, random_graph(rng))
    return path


def refused(path, reason: str) -> None:
    with one_line(reason) as caught:
        open_graph(path)
    assert str(path) in str(caught.value)


def test_paths_without_a_graph_file(tmp_path):
    refused(tmp_path / "none.h5", "none.h5 does not exist")
    refused(tmp_path, "is a folder; expected a graph file")
    (tmp_path / "text.h5").write_text("0 1\n1 2\n")
    refused(tmp_path / "text.h5", "text.h5 is not a graph file: it is not HDF5")
    (tmp_path / "empty.h5").touch()
    refused(tmp_path / "empty.h5", "empty.h5 is not a graph file")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    refused(tmp_path / "other.h5", "is not a graph file: its attribute format is ''")


def test_a_file_truncated_anywhere(path, rng):
    whole = path.read_bytes()
    cut = path.with_name("cut.h5")
    for length in [*range(0, 200, 8), *rng.integers(200, len(whole), size=60).tolist(), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        refused(cut, "cut.h5 is not a graph file")
    cut.write_bytes(whole[: len(whole) // 2])
    refused(cut, "it is truncated")


def replace(file: h5py.File, name: str, data, **options) -> None:
    del file[name]
    file.create_dataset(name, data=data, **options)


N = 40  # nodes of the file that these change


def put(name, data, **options):
    return lambda file: replace(file, name, data, **options)


def cut(name):
    return lambda file: file.__delitem__(name)


def group(name):
    return lambda file: (file.pop(name, None), file.create_group(name))


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


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
    "no nodes": (put("graph/indptr", np.zeros(1, np.int64)), "one node at least"),
    "features for other nodes": (
        put("node/x", np.zeros((N + 1, 6), np.float32)),
        r"/node/x is float32 \[41, 6\]; expected float32 \[40, 6\] or float16 \[40, 6\]",
    ),
    "double features": (put("node/x", np.zeros((N, 3))), r"/node/x is float64 \[40, 3\]; expected float32"),
    "no feature columns": (
        lambda file: (replace(file, "node/x", np.zeros((N, 0), np.float32)),
                      replace(file, "digest/node/x", np.zeros(0, np.uint64))),
        r"/node/x is float32 \[40, 0\]; expected float32 \[40, 1\]",
    ),
    "a scalar": (put("node/y", np.int64(3)), "/node/y has no dimensions"),
    "text for labels": (put("node/y", np.array([b"a"] * N)), r"/node/y is bytes8 \[40\]; expected int64 \[40\]"),
    "text of any length": (put("node/y", ["a"] * N), "/node/y claims"),
    "labels without classes": (attribute("classes", 0), "there is a /node/y, but the attribute classes is 0"),
    "classes without labels": (cut("node/y"), "attribute classes is 5, but there is no /node/y"),
    "multi-label that is not": (attribute("multilabel", True), r"is int64 \[40\]; expected float32 \[40, 5\]"),
    "masks of numbers": (put("node/val", np.zeros(N, np.uint8)), r"/node/val is uint8 \[40\]; expected bool"),
    "two masks of three": (cut("node/test"), "/node/test is missing; the train, val"),
    "compression": (put("node/x", np.zeros((N, 6), np.float32), compression="gzip"), "is chunked or compressed"),
    "a partition with a name": (group("partition/four"), "/partition/four is not named by a number"),
    "a partition without bounds": (group("partition/4"), "/partition/4/bounds is missing"),
    "CSR features without a shape": (group("node/x"), "the attribute shape of /node/x is None"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_does_not_follow_the_schema(change, path):
    apply, reason = CHANGES[change]
    with h5py.File(path, "r+") as file:
        apply(file)
    refused(path, reason)


def test_nothing_outside_of_the_file_is_read(path, tmp_path):
    """External links and storage, virtual datasets and soft links, to data that would fit."""
    rows = np.zeros((N, 6), np.float32)
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = rows
    (tmp_path / "raw").write_bytes(rows.tobytes())
    layout = h5py.VirtualLayout((N, 6), np.float32)
    layout[:] = h5py.VirtualSource(str(other), "x", (N, 6))
    raw = [(str(tmp_path / "raw"), 0, rows.nbytes)]
    for name, make, reason in [
        ("external link", lambda at: at.__setitem__("x", h5py.ExternalLink("other.h5", "/x")), "is a link"),
        ("soft link", lambda at: at.__setitem__("x", h5py.SoftLink("/node/copy")), "is a link"),
        (
            "raw",
            lambda at: at.create_dataset("x", rows.shape, rows.dtype, external=raw),
            "is stored in another file",
        ),
        ("virtual", lambda at: at.create_virtual_dataset("x", layout), "is stored in another file"),
    ]:
        changed = tmp_path / f"{name}.h5"
        changed.write_bytes(path.read_bytes())
        with h5py.File(changed, "r+") as file:
            file.move("node/x", "node/copy")
            make(file["node"])
        refused(changed, f"/node/x {reason}")
    with h5py.File(path, "r+") as file:
        file.move("node", "elsewhere")
        file["node"] = h5py.SoftLink("/elsewhere")
    refused(path, "/node is a link")


def test_sizes_are_not_believed(path):
    """A dataset of 2**60 rows without storage: refused, not allocated."""
    with h5py.File(path, "r+") as file:
        del file["graph/indices"]
        space = h5py.h5s.create_simple((2**60,))
        h5py.h5d.create(file["graph"].id, b"indices", h5py.h5t.NATIVE_INT32, space)
    refused(path, rf"/graph/indices claims int32 \[{2**60}\], {2**62} bytes; the file does not hold them")


def test_what_is_no_regular_file(tmp_path):
    """A pipe would have its reader wait for ever, and a device has no end."""
    os.mkfifo(tmp_path / "pipe.h5")
    refused(tmp_path / "pipe.h5", "pipe.h5 is not a regular file; expected a graph file")
    refused(Path("/dev/zero"), "/dev/zero is not a regular file")


def test_words_of_a_file_stay_short_and_on_their_line(path):
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = "a\nb" * 1000
    with one_line(r"its attribute format is 'a\\nba\\nb.*\.\.\.'") as caught:
        open_graph(path)
    assert len(str(caught.value)) < 200 + len(str(path))


def test_groups_whose_links_go_through_a_filter(path):
    with h5py.File(path, "r+", libver=("v108", "v108")) as file:
        plan = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        filters = h5py.h5p.PropDCID(plan.id)
        h5py.h5i.inc_ref(filters)  # both close the list
        filters.set_deflate(9)
        h5py.h5g.create(file.id, b"partition", gcpl=plan)
    refused(path, "the links of /partition go through a filter; a graph file has none")


def test_a_file_that_is_larger_than_memory(path):
    """A file with a hole: long enough, but no machine has its 2.5 TiB."""
    shape = (N, 2**34)
    with h5py.File(path, "r+") as file:
        del file["node/x"], file["digest/node/x"]
        file["digest/node/x"] = np.zeros(-(-4 * N * 2**34 // 2**16), np.uint64)
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple(shape)
        h5py.h5d.create(file["node"].id, b"x", h5py.h5t.NATIVE_FLOAT, space, plan)
    with (
        open_graph(path) as opened,
        one_line(r"rows 0 \.\. 39 of /node/x take 2,560\.0 GiB, more memory than"),
    ):
        opened.slice(0, N)
