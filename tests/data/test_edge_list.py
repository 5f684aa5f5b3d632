"""Edge lists, and the features and labels beside them."""

from __future__ import annotations

import gzip
import itertools
import re

import numpy as np
import pytest

from mgg_hpc.data.readers import edge_list
from mgg_hpc.data.readers.edge_list import read_edge_list
from mgg_hpc.data.readers.node_arrays import read_node_arrays
from mgg_hpc.errors import InputError

from .graphs import edge_set, refused


@pytest.fixture(params=["one block", "small blocks", "line by line"])
def blocks(request, monkeypatch):
    """Each way in which a list may be read."""
    if request.param == "small blocks":
        monkeypatch.setattr(edge_list, "BLOCK_BYTES", 50)
    if request.param == "line by line":
        monkeypatch.setattr(edge_list, "_parse_block", lambda *_: None)


def written_edges(rng, edges: int, *, weighted: bool, separator: str, noise: bool) -> tuple[str, list]:
    """Text, and what it says: (source, destination, weight) of each line."""
    listed, lines = [], []
    for source, destination in rng.integers(30, size=(edges, 2)).tolist():
        words = [str(source), str(destination)]
        weight = 1.0
        if weighted:
            words.append(rng.choice(["0.5", "-2", "1e-3", "+.25", "3.14159265358979", "1E2"]))
            weight = float(np.float32(words[-1]))
        line = separator.join(words)
        if noise:
            line = rng.choice(["", " ", "\t"]) + line + rng.choice(["", " ", "\r"])
            lines += [rng.choice(["", "   ", "# comment 1 2", "  % 3"])] * (rng.random() < 0.2)
        lines.append(line)
        listed.append((source, destination, weight))
    return "\n".join(lines) + ("" if noise else "\n"), listed


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("separator", [" ", "\t", ",", ", ", "   "])
def test_an_edge_list_says_what_its_lines_say(packed, noise, weighted, separator, rng, tmp_path, blocks):
    text, listed = written_edges(rng, 200, weighted=weighted, separator=separator, noise=noise)
    path = tmp_path / "some.edges.txt"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    graph = read_edge_list(path)
    assert (graph.name, graph.directed, graph.edges) == ("some", True, 200)
    assert graph.nodes == 1 + max(max(u, v) for u, v, _ in listed)
    expected = sorted((v, u, w) for u, v, w in listed)
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr)).tolist()
    weights = [1.0] * 200 if graph.weight is None else graph.weight.tolist()
    assert (graph.weight is not None) == weighted
    assert sorted(zip(rows, graph.indices.tolist(), weights, strict=True)) == expected


def test_symmetric_and_simple_lists(rng, tmp_path, blocks):
    text, listed = written_edges(rng, 100, weighted=False, separator=" ", noise=False)
    path = tmp_path / "e.txt"
    path.write_text(text)
    pairs = {(u, v) for u, v, _ in listed}
    both = pairs | {(v, u) for u, v in pairs}
    for options, expected in [
        ({"symmetric": True}, both),
        ({"simple": True}, {(u, v) for u, v in pairs if u != v}),
        ({"symmetric": True, "simple": True}, {(u, v) for u, v in both if u != v}),
    ]:
        graph = read_edge_list(path, **options)
        assert edge_set(graph) == expected and graph.edges == len(expected)
        assert graph.directed != options.get("symmetric", False)
    assert read_edge_list(path, nodes=77).nodes == 77


BAD_LINES = {
    "a word": ("3 x", "'x' is not a node id; expected a whole number"),
    "a decimal": ("3 4.0", "'4.0' is not a node id"),
    "a negative id": ("-3 4", "the node id -3 is negative"),
    "a missing column": ("3", "1 columns; expected 2: source, destination"),
    "a column too many": ("3 4 5", "3 columns; expected 2: source, destination"),
    "two edges": ("3 4 5 6", "4 columns; expected 2"),
    "an empty column": ("3,,4", "2 columns; expected 2: source, destination"),
    "a trailing comma": ("3,4,", "2 columns; expected 2"),
    "a huge id": ("3 1000000000000000", "the node id 1000000000000000 is too large"),
    "a very huge id": ("3 99999999999999999999999999", "the node id 99999999999999999999999999 is too large"),
    "an endless id": ("3 " + "9" * 5000, "a node id of 5000 digits is too large"),
    "a comment behind": ("3 4 # x", "4 columns; expected 2"),
    "not text": ("3 \xff", "'\ufffd' is not a node id"),
    "another script's digit": ("3 \u0663", "'\u0663' is not a node id"),
    "an underscore": ("3 1_0", "'1_0' is not a node id"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", [1, 57, 199])
@pytest.mark.parametrize("line", BAD_LINES)
def test_a_wrong_line_is_named_by_its_number(line, place, packed, tmp_path, blocks):
    bad, reason = BAD_LINES[line]
    lines = ["# header", "", *["12 3"] * 200]
    lines[2 + place] = bad
    path = tmp_path / "e.txt"
    data = "\n".join(lines).encode("latin1" if line == "not text" else "utf-8")
    path.write_bytes(gzip.compress(data) if packed else data)
    with refused(re.escape(f"e.txt:{place + 3}: {reason}")):
        read_edge_list(path)


def test_a_first_line_of_one_column_is_wrong(tmp_path, blocks):
    (tmp_path / "e.txt").write_text("# header\n7\n8\n")
    with refused(r"e\.txt:2: 1 columns; expected 2: source, destination"):
        read_edge_list(tmp_path / "e.txt")


@pytest.mark.parametrize("bad", ["abc", "nan", "inf", "1e39", "0x10", "1_0", "١"])
def test_a_wrong_weight_is_named_by_its_line(bad, tmp_path, blocks):
    lines = ["0 1 0.5"] * 20
    lines[13] = f"0 1 {bad}"
    (tmp_path / "e.txt").write_text("\n".join(lines))
    with refused(rf"e\.txt:14: .*{bad}"):
        read_edge_list(tmp_path / "e.txt")


def test_lines_and_blocks_agree_on_random_text(rng, tmp_path, monkeypatch):
    """Any text gives the same edges or the same error, whether blocks or lines are parsed."""
    alphabet = list("0123456789") * 3 + list("  \t\n\n\n,,.-+e#%x")
    for _ in range(400):
        path = tmp_path / "e.txt"
        lines = ["1 2\n"] * rng.integers(3) + rng.choice(alphabet, size=rng.integers(1, 20)).tolist()
        path.write_text("".join(lines))
        results = []
        for parse in (edge_list._parse_block, lambda *_: None):
            with monkeypatch.context() as patched:
                patched.setattr(edge_list, "_parse_block", parse)
                try:
                    graph = read_edge_list(path)
                    weights = None if graph.weight is None else graph.weight.tolist()
                    results.append((graph.indptr.tolist(), graph.indices.tolist(), weights))
                except InputError as error:
                    results.append(str(error))
        assert results[0] == results[1], path.read_text()


WHOLE = gzip.compress(b"1 2\n" * 1000, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "nodes", "reason"),
    [
        ("none.txt", None, None, "cannot be read: No such file"),
        ("empty.txt", b"# nothing\n\n", None, "holds no edges"),
        ("cut.txt.gz", WHOLE[:-6], None, "is damaged gzip"),
        ("gap.txt", b"0 1\n5 100000000\n", None, "has the node id 100000000 but only 2 edges"),
        ("few.txt", b"0 1\n5 7\n", 7, r":2: the node id 7 is too large; expected 0 \.\. 6"),
    ],
)
def test_lists_that_cannot_be_read(tmp_path, name, content, nodes, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(rf"{name}:? ?{reason}"):
        read_edge_list(tmp_path / name, nodes=nodes)


# --- features and labels beside an edge list


def test_features_and_labels(rng, tmp_path):
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    for features, labels in itertools.product(
        [rng.normal(size=(9, 3)), rng.integers(5, size=(9, 3)), rng.normal(size=(9, 3)).astype(np.float16)],
        [rng.integers(4, size=9).astype(np.uint8), np.eye(9)[:, :4], np.full(9, -1)],
    ):
        np.save(x, features)
        np.save(y, labels)
        nodes, fields = read_node_arrays(x, y)
        kept = np.float16 if features.dtype == np.float16 else np.float32
        assert nodes == 9 and fields["x"].dtype == kept
        assert np.array_equal(fields["x"], features.astype(fields["x"].dtype))
        assert np.array_equal(fields["y"], labels)
        assert fields["classes"] == (4 if labels.ndim == 2 else max(int(labels.max()), 0) + 1)
    assert read_node_arrays(None, None) == (None, {})


def test_features_and_labels_that_do_not_fit(rng, tmp_path):
    for array, reason in [
        (np.zeros(3), r"x\.npy is float64 \[3\]; expected numbers \[nodes, features\]"),
        (np.array([["a"]]), r"x\.npy is <U1 \[1, 1\]; expected numbers"),
        (np.array([[{}]]), r"x\.npy is object \[1, 1\]; expected numbers"),
    ]:
        np.save(tmp_path / "x.npy", array)
        with refused(reason):
            read_node_arrays(tmp_path / "x.npy", None)
    np.save(tmp_path / "x.npy", np.zeros((3, 1)))
    np.save(tmp_path / "y.npy", np.zeros(4, int))
    with refused(r"y\.npy is int64 \[4\]; .*x\.npy has 3 rows"):
        read_node_arrays(tmp_path / "x.npy", tmp_path / "y.npy")
    (tmp_path / "z.npy").write_bytes(b"")
    for name, reason in (("none", "cannot be read"), ("z", "is not a NumPy array")):
        with refused(rf"{name}\.npy {reason}"):
            read_node_arrays(None, tmp_path / f"{name}.npy")
