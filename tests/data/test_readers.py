"""Digits and archives, against slow readings of the same."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers.digits import nearest, read_digits
from mgg_hpc.data.readers.npz import read_npz
from mgg_hpc.errors import InputError

from .graphs import edge_set, random_graph, refused


def test_digits_are_joined_to_their_nearest():
    graph = read_digits(seed=3)
    pixels, y = load_digits(return_X_y=True)
    assert graph.x.dtype == np.float32 and np.array_equal(graph.x, pixels)
    assert np.array_equal(graph.y, y) and (graph.classes, graph.directed, graph.name) == (10, False, "digits")
    pairs = edge_set(graph)
    assert all((v, u) in pairs and u != v for u, v in pairs) and len(pairs) == graph.edges
    # scikit-learn's own search, as distances: it may take another of equally near images.
    distances, _ = NearestNeighbors(n_neighbors=9).fit(pixels).kneighbors(pixels)
    for row in range(len(y)):
        own = np.sort([((pixels[row] - pixels[u]) ** 2).sum() ** 0.5 for u, v in pairs if v == row])
        assert len(own) >= 8 and np.allclose(own[:8], distances[row, 1:])
        if row == 20:
            break
    for label in range(10):
        assert [np.count_nonzero(mask & (y == label)) for mask in (graph.train, graph.val)] == [20, 30]
    assert np.array_equal(graph.test, ~graph.train & ~graph.val)


def test_each_edge_of_the_digits_is_one_of_the_nearest():
    """At least one end of each edge counts the other among its 8 nearest."""
    graph = read_digits()
    pixels = load_digits().data
    limit = NearestNeighbors(n_neighbors=9).fit(pixels).kneighbors(pixels)[0][:, -1]
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    distance = np.sqrt(((pixels[rows] - pixels[graph.indices]) ** 2).sum(axis=1))
    assert (distance <= np.maximum(limit[rows], limit[graph.indices]) + 1e-9).all()


def test_ties_go_to_the_lower_id():
    points = np.array([[0], [1], [-1], [1], [5]])
    assert sorted(nearest(points, 2)[0].tolist()) == [1, 2]
    assert sorted(nearest(points, 1)[1].tolist()) == [3]


# --- archives


def save(path, graph: Graph, **changed) -> None:
    arrays = {"indptr": graph.indptr, "indices": graph.indices, "x": graph.x, "y": graph.y}
    arrays |= {f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")} | changed
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_an_archive_is_read(multilabel, symmetric, rng, tmp_path):
    graph = random_graph(rng, multilabel=multilabel, symmetric=symmetric, weighted=True)
    save(tmp_path / "some.npz", graph, weight=graph.weight)
    found = read_npz(tmp_path / "some.npz")
    for field in ("indptr", "indices", "weight", "x", "y", "train", "val", "test"):
        assert np.array_equal(getattr(found, field), getattr(graph, field)), field
        assert getattr(found, field).dtype == getattr(graph, field).dtype
    pairs = edge_set(graph)
    assert found.directed == any((v, u) not in pairs for u, v in pairs)
    assert (found.name, found.classes) == ("some", 5 if multilabel else graph.y.max() + 1)


def test_other_types_are_converted(rng, tmp_path):
    graph = random_graph(rng)
    wide = {
        "x": graph.x.astype(">f8"),
        "y": graph.y.astype(np.uint8),
        "indices": graph.indices.astype(np.uint64),
    }
    save(tmp_path / "g.npz", graph, **wide, indptr=np.asfortranarray(graph.indptr.astype(">i4")))
    found = read_npz(tmp_path / "g.npz")
    for field, dtype in [("x", np.float32), ("y", np.int64), ("indices", np.int32), ("indptr", np.int64)]:
        assert np.array_equal(getattr(found, field), getattr(graph, field))
        assert getattr(found, field).dtype == dtype and getattr(found, field).dtype.isnative


@pytest.mark.data
def test_real_archives(data_folder):
    cora = read_npz(data_folder / "cora" / "cora.npz")
    assert (cora.nodes, cora.edges, cora.features) == (2708, 10556, 1433)
    assert (cora.classes, cora.directed) == (7, False)
    assert [mask.sum() for mask in (cora.train, cora.val, cora.test)] == [140, 500, 1000]
    assert len(cora.x.data) == 49216
    blog = read_npz(data_folder / "blogcatalog_asu" / "blogcatalog_asu.npz")
    assert (blog.nodes, blog.classes, blog.multilabel, blog.train) == (10312, 39, True, None)


@pytest.mark.data
def test_a_real_archive_with_several_splits(data_folder):
    path = data_folder / "tolokers" / "tolokers.npz"
    with np.load(path) as arrays:
        for split in (0, 7):
            found = read_npz(path, split=split)
            for name in ("train", "val", "test"):
                assert np.array_equal(getattr(found, name), arrays[f"{name}_masks"][split])
    with refused(r"has splits 0 \.\. 9; there is no split 10"):
        read_npz(path, split=10)


@pytest.mark.parametrize("name", ["train_mask", "train_masks"])
@pytest.mark.parametrize("by_node", [True, False])
def test_splits_are_columns_or_rows(name, by_node, rng, tmp_path):
    kinds = rng.integers(3, size=(4, 6))
    masks = {split: kinds == i for i, split in enumerate(("train", "val", "test"))}
    path, suffix = tmp_path / "a.npz", name.removeprefix("train")
    arrays = {f"{split}{suffix}": mask.T if by_node else mask for split, mask in masks.items()}
    np.savez(path, indptr=np.zeros(7, np.int64), indices=np.zeros(0, np.int32), y=np.zeros(6, int), **arrays)
    for split in range(4):
        found = read_npz(path, split=split)
        for part, mask in masks.items():
            assert np.array_equal(getattr(found, part), mask[split])
    with refused(r"has splits 0 \.\. 3; there is no split 4"):
        read_npz(path, split=4)
    if name == "train_mask":
        with refused("train_mask holds several splits; choose one, as by --split 0"):
            read_npz(path)


@pytest.mark.data
def test_the_directed_original_of_a_real_archive(data_folder):
    path = data_folder / "cnr_2000" / "cnr_2000.npz"
    whole, original = read_npz(path), read_npz(path, directed=True)
    assert (whole.edges, whole.directed) == (5477938, False)
    assert (original.edges, original.directed) == (3216152, True)


BAD_ARRAYS = {
    "indptr missing": ({"indptr": None}, "the array indptr is missing"),
    "decreasing": ({"indptr": np.array([0] + [5, 3] * 20)}, "/graph/indptr decreases at row 1"),
    "out of range": ({"indices": np.full(7, 40)}, r"indices has 40 at entry 0; expected 0 \.\. 39"),
    "float ids": ({"indices": np.zeros(7)}, r"indices is float64 \[7\]; expected int \[any\]"),
    "short mask": ({"val_mask": np.zeros(39, bool)}, r"val_mask is bool \[39\]; expected bool \[40\]"),
    "other rows": ({"x": np.zeros((39, 2))}, r"x is float64 \[39, 2\]; expected number \[40, any\]"),
    "objects": ({"x": np.array([{}] * 40)}, r"x is object \[40\]; expected number"),
    "float labels": ({"y": np.zeros(40)}, r"y is float64 \[40\]; expected integers \[nodes\]"),
    "overlap": (dict.fromkeys(["train_mask", "val_mask"], np.ones(40, bool)), "row 0 is in /node/train and"),
    "NaN": ({"x": np.full((40, 2), np.nan)}, "x has nan at row 0, column 0; expected finite"),
}


@pytest.mark.parametrize("change", BAD_ARRAYS)
def test_an_archive_that_is_wrong(change, rng, tmp_path):
    changed, reason = BAD_ARRAYS[change]
    save(tmp_path / "g.npz", random_graph(rng), **changed)
    with refused(rf"g\.npz:? .*{reason}"):
        read_npz(tmp_path / "g.npz")


@pytest.fixture
def archive(rng, tmp_path):
    """An archive that is sound."""
    save(tmp_path / "g.npz", random_graph(rng))
    return tmp_path / "g.npz"


def test_files_that_are_no_archives(rng, archive):
    whole = archive.read_bytes()
    with refused(r"none\.npz cannot be read: No such file"):
        read_npz(archive.with_name("none.npz"))
    for content in (b"text", *(whole[:length] for length in rng.integers(len(whole), size=20))):
        archive.write_bytes(content)
        with refused(r"g\.npz is not a NumPy archive"):
            read_npz(archive)


def test_a_damaged_archive_never_gives_another_error(rng, archive):
    whole, errors = archive.read_bytes(), []
    for _ in range(200):
        data = bytearray(whole)
        for at in rng.integers(len(data), size=4):
            data[at] = rng.integers(256)
        archive.write_bytes(data)
        try:
            read_npz(archive)
        except InputError as error:
            errors.append(str(error))
    assert len(errors) > 50 and not any("\n" in error for error in errors)


@pytest.mark.parametrize(
    ("header", "changes", "reason"),
    [
        (b"PK\x01\x02", {8: 1}, "encrypted"),  # the flag in the first entry of the directory
        (b"PK\x03\x04", {7: 8, 31: 0xA8}, "utf-8"),  # an entry's own header: flags at 6, its name at 30
    ],
)
def test_an_archive_that_claims_what_it_is_not(header, changes, reason, archive):
    """Encryption, and a name in UTF-8."""
    data = bytearray(archive.read_bytes())
    entry = data.find(header)
    for at, value in changes.items():
        data[entry + at] = value if at == 31 else data[entry + at] | value
    archive.write_bytes(data)
    with refused(rf"g\.npz is not a NumPy archive .*{reason}"):
        read_npz(archive)


def test_a_size_that_is_not_there_is_not_allocated(tmp_path):
    said = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,)}"
    header = b"\x93NUMPY\x01\x00\x76\x00" + said
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("indptr.npy", header.ljust(127) + b"\n" + bytes(64))
    with refused(r"indptr claims int64 \[1099511627776\], which it does not hold"):
        read_npz(tmp_path / "g.npz")
