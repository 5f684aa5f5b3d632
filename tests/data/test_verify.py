"""Verification names the first wrong value or edge without its reverse; what no value shows, the digests do."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import h5py
import numpy as np
import pytest

from mgg_hpc.data import schema, symmetry
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.symmetry import EdgeSlice, unpaired_edge
from mgg_hpc.data.verify import ArraySource, check, edge_slices, verify
from mgg_hpc.data.writer import write, write_bounds

from .graphs import edge_set, random_graph, refused, rows_of_edges


@pytest.fixture(params=["one slice", "small slices"])
def slices(request, monkeypatch) -> None:
    """Checks of a graph go through slices that end everywhere."""
    if request.param == "small slices":
        monkeypatch.setattr("mgg_hpc.data.verify.SLICE_BYTES", 56)
        monkeypatch.setattr("mgg_hpc.data.verify.SLICE_ROWS", 3)


@pytest.fixture
def sound(rng, path):
    """A file with every kind of content but sparse features and several labels."""
    graph = random_graph(rng, permuted=True, weighted=True, symmetric=False)
    write(path, replace(graph, edge={"flow": rng.random((200, 3)).astype(np.float32)}))
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


ROW, ENTRY = 17, 5
SPARSE, MULTILABEL = {"sparse": True}, {"multilabel": True}  # in a file that is written for the edit
EDITS = [
    ("graph/indptr", 0, 3, "starts with 3; expected 0"),
    ("graph/indptr", 40, 2**40, "ends with 1099511627776; expected the 200 stored"),
    ("graph/indptr", ROW + 1, 0, r"decreases at row 17 \(from \d+ to 0\)"),
    ("graph/indptr", ROW, 999, r"(decreases at row 17 \(from 999|has 999 at row 17)"),
    *(
        ("graph/indices", ENTRY, source, rf"has source {source} in row ROW \(entry 5\)")
        for source in (40, -1, 2**31 - 1, -(2**31))
    ),
    ("graph/weight", ENTRY, -1.0, "is damaged: the digest of block 0"),  # a sound value
    ("graph/weight", ENTRY, np.inf, r"has inf in row ROW \(entry 5\); expected finite"),
    ("edge/flow", (ENTRY, 2), np.nan, r"has nan in row ROW \(entry 5, column 2\); expected finite"),
    ("node/x", (ROW, 3), np.nan, "has nan at row 17, column 3; expected finite"),
    ("node/y", ROW, 5, r"has label 5 in row 17; expected 0 \.\. 4, or -1 where unlabelled"),
    ("node/y", ROW, lambda y: (y[ROW] + 1) % 5, r"is damaged: the digest of block 0 \(entries 0 \.\. 39\)"),
    ("order/permutation", ROW, 40, "has 40 in row 17; expected 0 .. 39"),
    # Twice within a slice, and in slices far apart.
    ("order/permutation", ROW, lambda ids: ids[ROW - 1], r"has \d+ again in row 17; each original id"),
    ("order/permutation", ROW, lambda ids: ids[0], r"has \d+ again in row 17; each original id"),
    ("partition/2/bounds", 0, 1, "goes from row 1 to 40; expected 0 to 40"),
    ("partition/2/bounds", 1, 50, "decreases at part 1 .from 50 to 40."),
    ("partition/2/bounds", 1, 19, "is damaged: the digest of block 0"),
    ("node/x/indptr", 40, 0, "decreases at row", SPARSE),
    ("node/x/indices", 3, 6, r"has column 6 in row \d+ \(entry 3\); expected 0 \.\. 5", SPARSE),
    ("node/x/data", 3, np.nan, r"has nan in row \d+ \(entry 3\)", SPARSE),
    ("node/y", (ROW, 2), 0.5, r"has 0\.5 in row 17; multi-label values are 0 or 1", MULTILABEL),
]


@pytest.mark.parametrize("change", EDITS, ids=lambda change: f"{change[0]} {change[3][:20]}")
def test_the_first_wrong_value_is_named(rng, change, sound, slices):
    """Changed behind the digests' back."""
    dataset, index, value, reason, *options = change
    if options:
        write(sound, random_graph(rng, **options[0]), force=True)
    with h5py.File(sound, "r+") as file:
        row = np.searchsorted(file["graph/indptr"][:], ENTRY, side="right") - 1
        file[dataset][index] = value(file[dataset][:]) if callable(value) else value
    with refused(f"{re.escape(str(sound))}: /{dataset} {reason.replace('ROW', str(row))}"):
        verify(sound)


def test_masks_are_apart_and_on_labelled_rows(sound, slices):
    with h5py.File(sound, "r+") as file:
        for mask in ("train", "val", "test"):
            file[f"node/{mask}"][ROW] = True
    with refused("row 17 is in /node/train and /node/val and /node/test; a row is in one mask at most"):
        verify(sound)
    with h5py.File(sound, "r+") as file:
        file["node/train"][ROW] = file["node/test"][ROW] = False
        file["node/y"][ROW] = -1
        at = file["node/val"].id.get_offset() + ROW
    with refused("row 17 is in /node/val and has no label"):
        verify(sound)
    np.memmap(sound, np.uint8, "r+")[at] = 2
    with refused("/node/val has byte 2 in row 17; expected 0 or 1"):
        verify(sound)


def test_values_come_before_digests(sound):
    """The first dataset is damaged in a way that only its digest shows, the last by a value: that is named."""
    with h5py.File(sound, "r+") as file:
        file["graph/weight"][0] = 0.125
        file["partition/2/bounds"][2] = 39
    with refused("bounds goes from row 0 to 39"):
        verify(sound)


# --- each edge's reverse


def mixed(h: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA '14), a bijection of uint64."""
    h = h + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@pytest.mark.parametrize("ids", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("most", [3000, 50_000], ids=["by one thread", "by several"])
def test_the_native_sum_is_that_of_the_formula(rng, ids, weighted, most):
    count = int(rng.integers(0.8 * most, most))
    v, u = rng.integers(2**31 - 1, size=(2, count))
    u[: count // 3] = v[: count // 3]
    weight = rng.choice([0.0, -0.0, 1.5, -2.0], size=count).astype(np.float32) if weighted else None
    low, high = np.sort(np.stack([u, v]).astype(np.uint64), axis=0)
    key = mixed(mixed(low) + high)
    if weighted:
        key = mixed(key + (weight + np.float32(0)).view(np.uint32))
    plus, minus = (int(key[chosen].sum(dtype=np.uint64)) for chosen in (u < v, u > v))
    assert symmetry.imbalance(EdgeSlice(v, u.astype(ids), weight)) == (plus - minus) % 2**64


def test_rows_are_found_block_by_block(rng, monkeypatch):
    graph = random_graph(rng, symmetric=False, weighted=True)
    rows = rows_of_edges(graph.indptr) + 7
    expected = symmetry.imbalance(EdgeSlice(rows, graph.indices, graph.weight))
    for block in (1, 3, 64, 1 << 20):
        monkeypatch.setattr(symmetry, "EXPANDED", block)
        assert symmetry.csr_imbalance(7, graph.indptr, graph.indices, graph.weight) == expected


def alone(graph: Graph) -> tuple[int, int] | None:
    """An edge of the graph whose reverse is missing."""
    return unpaired_edge(lambda: edge_slices(ArraySource(graph)))


def test_an_edge_without_its_reverse_is_found(rng, slices):
    """One edge of a symmetric graph removed: the search names the edge that is alone."""
    graph = random_graph(rng, nodes=30, edges=100)
    rows = rows_of_edges(graph.indptr)
    assert alone(graph) is None
    for _ in range(20):
        entry = int(rng.choice(np.flatnonzero(rows != graph.indices)))
        indptr, indices, _ = csr_from_edges(np.delete(graph.indices, entry), np.delete(rows, entry), 30)
        changed = Graph("g", indptr, indices)
        gone = int(graph.indices[entry]), int(rows[entry])
        assert gone not in edge_set(changed)
        assert alone(changed) == gone[::-1]


def test_reverses_have_the_same_weight(rng, slices):
    graph = random_graph(rng, weighted=True)
    assert "each edge's reverse is there" in " ".join(check(ArraySource(graph)))
    rows = rows_of_edges(graph.indptr)
    entry = int(rng.choice(np.flatnonzero(rows != graph.indices)))
    graph.weight[entry] += 1
    u, v = graph.indices[entry], rows[entry]
    with refused(
        rf"reverse of the edge from ({u} \(in row {v}|{v} \(in row {u})\).* is missing, or has another weight"
    ):
        check(ArraySource(graph))


@pytest.mark.parametrize(
    ("indptr", "indices", "weight", "found"),
    [
        ([0, 1, 2], [1, 0], [0.0, -0.0], None),  # zeros of either sign are the same weight
        ([0, 2, 4], [1, 1, 0, 0], None, None),  # duplicates pair with duplicates
        ([0, 2, 3], [1, 1, 0], None, (1, 0)),
    ],
)
def test_equal_edges_pair(indptr, indices, weight, found):
    weight = None if weight is None else np.array(weight, np.float32)
    assert alone(Graph("g", np.array(indptr), np.array(indices, np.int32), weight)) == found


CHANGES = {
    "none": lambda file: None,
    "other edges": lambda file: file["digest/graph/indices"].__setitem__(0, 1),
    "other weights": lambda file: file["digest/graph/weight"].__setitem__(0, 1),
    "no proof": lambda file: file.attrs.__delitem__(schema.PROOF),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("ranges", [False, True])
def test_a_file_proves_its_symmetry_unless_its_edges_were_changed(rng, path, change, ranges):
    """Row ranges that are added prove nothing more, and nothing less."""
    write(path, random_graph(rng, weighted=True))
    with h5py.File(path, "r+") as file:
        CHANGES[change](file)
    if ranges:
        write_bounds(path, 2, np.array([0, 10, 40]), "edges", [5, 6])
    with open_graph(path) as opened:
        assert opened.proved_undirected() == (change == "none")


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_directed_file_proves_nothing(rng, path, symmetric):
    """Not even where it is said to be undirected afterwards."""
    write(path, replace(random_graph(rng, symmetric=symmetric), directed=True))
    for directed in (True, False):
        with h5py.File(path, "r+") as file:
            file.attrs.modify("directed", np.bool_(directed))
        write_bounds(path, 2, np.array([0, 10, 40]), "edges", [5, 6])
        with open_graph(path) as opened:
            assert opened.directed == directed and not opened.proved_undirected()
