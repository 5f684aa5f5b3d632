"""Archives as streams, against what NumPy and SciPy read of them."""

from __future__ import annotations

import io
import re
import struct
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

from mgg_hpc.data import schema
from mgg_hpc.data.readers.npz import open_npz, read_npz
from mgg_hpc.errors import InputError

from ..graphs import random_graph, refused
from .streamed import check_marks, edges_of, rows_of

SAVERS = {"stored": np.savez, "deflated": np.savez_compressed}


def save(path, graph, how="deflated", **changed) -> None:
    """Write a graph's arrays under the project's names."""
    arrays = {"indptr": graph.indptr, "indices": graph.indices, "weight": graph.weight, "y": graph.y}
    if sp.issparse(graph.x) or hasattr(graph.x, "indptr"):
        x = graph.x
        arrays |= {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data, "x_shape": x.shape}
    else:
        arrays["x"] = graph.x
    arrays |= {f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")} | changed
    SAVERS[how](path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize("how", SAVERS)
@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"multilabel": True}, {"half": True}], ids=str)
def test_a_stream_has_what_the_archive_has(rng, tmp_path, blocks, options, how):
    graph = random_graph(rng, weighted=bool(rng.integers(2)), symmetric=False, **options)
    flow, kind = rng.normal(size=(graph.edges, 3)), rng.integers(9, size=graph.edges).astype(np.int16)
    more = {"edge/flow": flow, "edge/kind": kind, "node/id": np.arange(40) * 7}
    save(tmp_path / "g.npz", graph, how, **more)
    imported = open_npz(tmp_path / "g.npz")
    found, rows = edges_of(imported), rows_of(imported)
    np.testing.assert_array_equal(found.sources, graph.indices)
    np.testing.assert_array_equal(found.destinations, np.repeat(np.arange(40), np.diff(graph.indptr)))
    assert (found.weight is None) == (graph.weight is None)
    if graph.weight is not None:
        np.testing.assert_array_equal(found.weight, graph.weight)
    np.testing.assert_array_equal(found.data["flow"], flow.astype(np.float32))
    np.testing.assert_array_equal(found.data["kind"], kind)
    expected = {path: each for path, each in schema.arrays(graph).items() if not path.startswith("graph/")}
    expected["node/id"] = more["node/id"]
    assert rows.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(rows[path], array)
        assert rows[path].dtype == array.dtype
    assert imported.multilabel == graph.multilabel and imported.directed is None
    check_marks(imported)


def test_attributes_that_an_archive_tells(rng, tmp_path):
    graph = random_graph(rng)
    name = np.frombuffer("Größe".encode(), np.uint8)
    save(tmp_path / "g.npz", graph, **{"graph/name": name, "graph/classes": 30, "graph/directed": False})
    imported = open_npz(tmp_path / "g.npz")
    assert (imported.name, imported.classes, imported.directed) == ("Größe", 30, False)
    save(tmp_path / "g.npz", graph, name=np.array(["x"]), **{"graph/directed": True})
    imported = open_npz(tmp_path / "g.npz")
    assert (imported.name, imported.classes, imported.directed) == ("g", graph.y.max() + 1, True)


def test_arrays_of_other_orders(rng, tmp_path, blocks):
    graph = random_graph(rng)
    save(tmp_path / "g.npz", graph, x=np.asfortranarray(graph.x), indices=graph.indices.astype(">u8"))
    imported = open_npz(tmp_path / "g.npz")
    np.testing.assert_array_equal(rows_of(imported)["node/x"], graph.x)
    np.testing.assert_array_equal(edges_of(imported).sources, graph.indices)


BAD = {
    "decreasing": ({"indptr": np.array([0] + [5, 3] * 20)}, r"/indptr decreases at row 1 \(from 5 to 3\)"),
    "not from 0": ({"indptr": np.arange(1, 42)}, "/indptr starts with 1; expected 0"),
    "too short": ({"indptr": np.arange(41)}, "/indptr ends with 40; expected the 200 stored entries"),
    "too long": ({"indptr": np.arange(41) * 30}, "/indptr (ends with|has) "),
    "an id": (
        {"indices": np.array([0] * 150 + [40] + [0] * 49)},
        r"indices has 40 at entry 150; expected 0 \.\. 39",
    ),
    "a negative id": (
        {"indices": np.array([-1] + [0] * 199)},
        r"indices has -1 at entry 0; expected 0 \.\. 39",
    ),
    "no node": ({"indptr": np.zeros(1, int)}, "indptr is of no nodes"),
    "no offset": ({"indptr": np.zeros(0, int)}, "indptr is of no nodes"),
    "edge data": ({"edge/a": np.zeros(199)}, r"edge/a is float64 \[199\]; expected any number \[200\]"),
    "a name": ({"edge/a b": np.zeros(200)}, "data of edges is named 'a b'"),
    "ids": ({"node/id": np.zeros(41, int)}, r"node/id is int64 \[41\]; expected int \[40\]"),
    "infinite": ({"x": np.full((40, 2), np.inf)}, "x has inf at row 0, column 0; expected finite numbers"),
    "large": (
        {"x": np.full((40, 2), 1e300)},
        r"x has 1e\+300 at row 0, column 0, which float32 does not hold",
    ),
    "labels": ({"y": np.array([0] * 17 + [-2] + [1] * 22)}, "y has the label -2 at row 17; expected a class"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(rng, tmp_path, blocks, name):
    changed, reason = BAD[name]
    save(tmp_path / "g.npz", random_graph(rng, symmetric=False), **changed)
    with refused(rf"g\.npz.*{reason}"):
        imported = open_npz(tmp_path / "g.npz")
        edges_of(imported)
        rows_of(imported)


def test_damage_within_packed_data_is_found(rng, tmp_path):
    """In members that are unpacked in several steps."""
    path = tmp_path / "g.npz"
    save(path, random_graph(rng, nodes=3000, edges=20_000))
    whole, said = path.read_bytes(), set()
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename: (info.header_offset, info.compress_size) for info in archive.infolist()}
    first = infos["indices.npy"][0] + 30 + sum(struct.unpack_from("<HH", whole, infos["indices.npy"][0] + 26))
    for trial in range(80):
        offset, size = infos[str(rng.choice(["indices.npy", "x.npy", "y.npy"]))]
        data = bytearray(whole)
        at, length = offset + size // 2 + int(rng.integers(size // 4)), int(rng.choice([1, 400]))
        data[at : at + length] = rng.integers(256, size=length, dtype=np.uint8).tobytes()
        if not trial:  # a block of a type that deflate has not
            data = bytearray(whole)
            data[first] |= 0b110
        path.write_bytes(data)
        if data == whole:
            continue
        with pytest.raises(InputError, match=r"g\.npz") as caught:
            imported = open_npz(path)
            edges_of(imported)
            rows_of(imported)
        said.add(re.sub(r"[-0-9.]+", "N", str(caught.value).partition("npz")[2])[:90])
    assert any("Error N while decompressing" in each for each in said), said


def test_a_member_that_ends_early_is_truncated(rng, tmp_path):
    """Its checksum is right, and the directory claims the length that its array needs."""
    path, out = tmp_path / "g.npz", io.BytesIO()
    save(path, random_graph(rng, symmetric=False))
    np.save(out, np.zeros(200, np.int32))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["indices.npy"] = out.getvalue()[:-400]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\1\2", 0, data.rfind(b"indices.npy"))
    data[entry + 24 : entry + 28] = struct.pack("<I", len(out.getvalue()))
    path.write_bytes(data)
    with refused(r"g\.npz: indices is truncated"):
        edges_of(open_npz(path))


# --- SciPy's


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["csr_array", "csc_matrix", "coo_array"])
def test_matrices_of_scipy(rng, tmp_path, blocks, form, weighted, compressed):
    dense = np.where(rng.random((30, 30)) < 0.2, rng.integers(1, 9, (30, 30)) if weighted else 1, 0)
    sp.save_npz(tmp_path / "m.npz", getattr(sp, form)(dense), compressed=compressed)
    imported = open_npz(tmp_path / "m.npz")
    found = edges_of(imported)
    assert (found.weight is not None) == weighted and imported.directed is None
    values = np.zeros((30, 30))
    np.add.at(values, (found.destinations, found.sources), 1 if found.weight is None else found.weight)
    np.testing.assert_array_equal(values, dense)
    assert (imported.edges.nodes, imported.name) == (30, "m")
    check_marks(imported)


def test_matrices_that_are_no_graphs(rng, tmp_path):
    path = tmp_path / "m.npz"
    for matrix, reason in [
        (sp.csr_array((3, 4)), r"the matrix is \[3, 4\]; expected as many columns as rows"),
        (sp.eye_array(4).todia(), "is a matrix in the form 'dia'; expected csr, csc, coo"),
        (sp.csr_array(np.eye(3) * 1j), r"data is complex128 \[3\]; expected numbers"),
    ]:
        sp.save_npz(path, matrix)
        with refused(rf"m\.npz:? .*{reason}"):
            open_npz(path)
    with refused("m.npz is a matrix of SciPy; make a graph file of it first"):
        read_npz(path)
    np.savez(path, format=b"coo", shape=(2**60, 2**60), data=np.ones(1), row=[0], col=[0])
    with refused("a graph of 1152921504606846976 nodes needs .* GiB of memory"):
        open_npz(path)
