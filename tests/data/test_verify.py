"""Verification names the first value that is wrong; what no value shows, the digests do."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import h5py
import numpy as np
import pytest

from mgg_hpc.data import schema, structure
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.data.structure import ArraySource, check, edge_slices
from mgg_hpc.data.symmetry import unpaired_edge
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import graph_file, write, write_bounds
from mgg_hpc.errors import InputError

from .graphs import edge_set, random_graph, refused


@pytest.fixture(params=["one slice", "small slices"])
def slices(request, monkeypatch):
    """The same checks with slices that end everywhere."""
    if request.param == "small slices":
        monkeypatch.setattr(structure, "SLICE_BYTES", 56)
        monkeypatch.setattr(structure, "SLICE_ROWS", 3)


@pytest.fixture
def path(rng, path):
    """A file with every kind of content but sparse features and several labels."""
    write(path, random_graph(rng, permuted=True, weighted=True, symmetric=False))
    write_bounds(path, 2, np.array([0, 20, 40]), "edges", [100, 100])
    return path


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("multilabel", [False, True])
def test_a_sound_file_is_proven_sound(sparse, multilabel, rng, tmp_path, slices):
    graph = random_graph(rng, sparse=sparse, multilabel=multilabel, weighted=True, permuted=True)
    write(tmp_path / "g.h5", graph)
    told = []
    facts = verify(tmp_path / "g.h5", lambda done, total: told.append((done, total)))
    said = ["indptr", "indices", "weight is finite", "reverse", "labels", "two masks", "node/x", "digests"]
    for fact in said:
        assert any(fact in line for line in facts), (fact, facts)
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(told))
    assert told[-1][0] == told[-1][1] > 0


def edit(path, dataset: str, index, value) -> None:
    """Change a value behind the digests' back."""
    with h5py.File(path, "r+") as file:
        file[dataset][index] = value


ROW = 17
SPARSE, MULTILABEL = {"sparse": True}, {"multilabel": True}  # in a file that is written for the edit
EDITS = [
    ("graph/indptr", 0, 3, "starts with 3; expected 0"),
    ("graph/indptr", 40, 2**40, "ends with 1099511627776; expected the 200 stored"),
    ("graph/indptr", ROW + 1, 0, r"decreases at row 17 \(from \d+ to 0\)"),
    ("graph/indptr", ROW, 999, r"(decreases at row 17 \(from 999|has 999 at row 17)"),
    ("graph/weight", 5, -1.0, "is damaged: the digest of block 0"),  # a sound value
    ("graph/weight", 5, np.inf, r"has inf in row \d+ \(entry 5\); expected finite"),
    ("node/x", (ROW, 3), np.nan, "has nan at row 17, column 3; expected finite"),
    ("node/y", ROW, 5, r"has label 5 in row 17; expected 0 \.\. 4, or -1 where unlabelled"),
    ("node/y", ROW, -2, "has label -2 in row 17"),
    ("node/y", ROW, None, r"is damaged: the digest of block 0 \(entries 0 \.\. 39\)"),
    ("order/permutation", ROW, 40, "has 40 in row 17; expected 0 .. 39"),
    ("order/permutation", ROW, -1, "has -1 in row 17"),
    ("partition/2/bounds", 0, 1, "goes from row 1 to 40; expected 0 to 40"),
    ("partition/2/bounds", 2, 39, "goes from row 0 to 39"),
    ("partition/2/bounds", 1, 50, "decreases at part 1 .from 50 to 40."),
    ("partition/2/bounds", 1, 19, "is damaged: the digest of block 0"),
    ("node/x/indptr", 40, 0, "decreases at row", SPARSE),
    ("node/x/indices", 3, 6, r"has column 6 in row \d+ \(entry 3\); expected 0 \.\. 5", SPARSE),
    ("node/x/data", 3, np.nan, r"has nan in row \d+ \(entry 3\)", SPARSE),
    ("node/y", (ROW, 2), 0.5, r"has 0\.5 in row 17; multi-label values are 0 or 1", MULTILABEL),
]


@pytest.mark.parametrize("change", EDITS, ids=str)
def test_the_first_wrong_value_is_named(rng, change, path, slices):
    dataset, index, value, reason, *options = change
    if options:
        write(path, random_graph(rng, **options[0]), force=True)
    if value is None:
        with h5py.File(path) as file:
            value = (file[dataset][index] + 1) % 5
    edit(path, dataset, index, value)
    with refused(f"{re.escape(str(path))}: /{dataset} {reason}"):
        verify(path)


@pytest.mark.parametrize(
    ("parts", "bounds", "counts"), [(2, [0, 40], 2), (2, [0, 9, 20, 40], 2), (2, [0, 20, 40], 3)]
)
def test_bounds_are_written_of_as_many_parts_as_are_said(path, parts, bounds, counts):
    before = path.read_bytes()
    with pytest.raises(ValueError, match="2 parts have 3 bounds and 2 edge counts"):
        write_bounds(path, parts, np.array(bounds), "edges", [100] * counts)
    assert path.read_bytes() == before


@pytest.mark.parametrize("bad", [40, -1, 2**31 - 1, -(2**31)])
def test_a_source_out_of_range_is_named_with_its_row(bad, path, slices, rng):
    with h5py.File(path) as file:
        degrees = np.diff(file["graph/indptr"][:])
        row = int(rng.choice(np.flatnonzero(degrees)))
        entry = int(file["graph/indptr"][row])
    edit(path, "graph/indices", entry, bad)
    with refused(rf"/graph/indices has source {bad} in row {row} \(entry {entry}\)"):
        verify(path)


@pytest.mark.parametrize("earlier", [0, ROW - 1])
def test_an_original_id_comes_once(earlier, path, slices):
    """Twice within a slice, and in slices far apart."""
    with h5py.File(path) as file:
        value = file["order/permutation"][earlier]
    edit(path, "order/permutation", ROW, value)
    with refused(f"/order/permutation has {value} again in row 17; each original id"):
        verify(path)


def test_masks_are_apart_and_on_labelled_rows(path, slices):
    with h5py.File(path, "r+") as file:
        for mask in ("train", "val", "test"):
            file[f"node/{mask}"][ROW] = True
    with refused("row 17 is in /node/train and /node/val and /node/test; a row is in one mask at most"):
        verify(path)
    for mask in ("train", "test"):
        edit(path, f"node/{mask}", ROW, False)
    edit(path, "node/y", ROW, -1)
    with refused("row 17 is in /node/val and has no label"):
        verify(path)


def test_a_mask_holds_only_zeros_and_ones(path, slices):
    with h5py.File(path) as file:
        at = file["node/val"].id.get_offset() + ROW
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\x02")
    with refused("/node/val has byte 2 in row 17; expected 0 or 1"):
        verify(path)


def test_values_come_before_digests(path):
    """The first dataset is damaged in a way that only its digest shows, the last by a value: that is named."""
    edit(path, "graph/weight", 0, 0.125)
    edit(path, "partition/2/bounds", 2, 39)
    with refused("bounds goes from row 0 to 39"):
        verify(path)


def named(graph: Graph, path) -> None:
    """Write a graph with data of its edges, and with a number and a word for each row."""
    words = np.arange(graph.nodes + 1) * 2
    more = {
        schema.NODE_ID: np.arange(graph.nodes) * 10**10,
        schema.NAME_OFFSETS: words,
        schema.NAME_TEXT: np.frombuffer(b"xy" * graph.nodes, np.uint8),
    }
    graph = replace(graph, edge={"flow": np.ones((graph.edges, 2), np.float32), "kind": graph.indices.copy()})
    held = schema.contents(graph)
    layouts = {name: schema.Layout(each.dtype, each.shape) for name, each in more.items()}
    with graph_file(path, replace(held, datasets={**held.datasets, **layouts}), force=True) as file:
        for name, array in {**schema.arrays(graph), **more}.items():
            file.put(name, [array])


@pytest.mark.slow
@pytest.mark.parametrize(("contents", "count"), [("dense", 10), ("sparse", 11), ("named", 13)])
def test_a_flipped_bit_of_any_dataset_is_found(path, rng, contents, count):
    """In all datasets, which are indptr, indices, weight, x, y, 3 masks and so on, and in their digests."""
    if contents == "sparse":
        write(path, random_graph(rng, sparse=True, multilabel=True, weighted=True, permuted=True), force=True)
    if contents == "named":
        named(random_graph(rng, weighted=True, symmetric=False), path)
    whole = path.read_bytes()
    with h5py.File(path) as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        spans = [(file[name].id.get_offset(), file[name].nbytes) for name in names if file[name].nbytes]
    assert len(spans) == 2 * count
    for offset, length in spans:
        data = bytearray(whole)
        data[offset + int(rng.integers(length))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        with pytest.raises(InputError):
            verify(path)


def test_edge_slices_are_all_edges_in_order(rng, slices):
    degrees = rng.integers(4, size=50)
    degrees[20] = 100  # a hub of more edges than a slice
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(50, size=indptr[-1]).astype(np.int32)
    parts = list(edge_slices(ArraySource(Graph("g", indptr, indices))))
    assert np.concatenate([part.sources for part in parts]).tolist() == indices.tolist()
    destinations = np.concatenate([part.destinations for part in parts])
    assert destinations.tolist() == np.repeat(range(50), degrees).tolist()
    assert [part.position for part in parts] == [0, *np.cumsum([len(part.sources) for part in parts])[:-1]]


def test_an_edge_without_its_reverse_is_found(rng, slices):
    """One edge of a symmetric graph removed, or one added: the search names an edge that is alone."""
    graph = random_graph(rng, nodes=30, edges=100)
    rows = np.repeat(np.arange(30), np.diff(graph.indptr))
    assert unpaired_edge(lambda: edge_slices(ArraySource(graph))) is None
    for _ in range(20):
        entry = int(rng.choice(np.flatnonzero(rows != graph.indices)))
        indptr, indices, _ = csr_from_edges(np.delete(graph.indices, entry), np.delete(rows, entry), 30)
        changed = Graph("g", indptr, indices)
        gone = int(graph.indices[entry]), int(rows[entry])
        assert gone not in edge_set(changed)
        assert unpaired_edge(lambda changed=changed: edge_slices(ArraySource(changed))) == gone[::-1]


def test_reverses_have_the_same_weight(rng, slices):
    graph = random_graph(rng, weighted=True)
    assert "each edge's reverse is there" in " ".join(check(ArraySource(graph)))
    rows = np.repeat(np.arange(40), np.diff(graph.indptr))
    entry = int(rng.choice(np.flatnonzero(rows != graph.indices)))
    graph.weight[entry] += 1
    u, v = graph.indices[entry], rows[entry]
    with refused(r"reverse of the edge .* is missing, or has another weight") as caught:
        check(ArraySource(graph))
    assert f"from {u} (in row {v})" in str(caught.value) or f"from {v} (in row {u})" in str(caught.value)


def test_zeros_of_either_sign_are_the_same_weight():
    graph = Graph("g", np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([0.0, -0.0], np.float32))
    assert unpaired_edge(lambda: edge_slices(ArraySource(graph))) is None


def test_duplicates_pair_with_duplicates():
    twice = Graph("g", np.array([0, 2, 4]), np.array([1, 1, 0, 0], np.int32))
    assert unpaired_edge(lambda: edge_slices(ArraySource(twice))) is None
    uneven = Graph("g", np.array([0, 2, 3]), np.array([1, 1, 0], np.int32))
    assert unpaired_edge(lambda: edge_slices(ArraySource(uneven))) == (1, 0)
