"""Every format that an import reads gives what was written: by other programs, or line by line in Python."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from command import mgg

from data.graphs import random_graph, refused
from mgg_hpc.data import native
from mgg_hpc.data.readers import compressed
from mgg_hpc.data.readers.array_edges import WithData
from mgg_hpc.data.readers.edge_list import open_edge_list, warn_of_one_direction
from mgg_hpc.data.readers.node_arrays import node_rows
from mgg_hpc.data.readers.npy import open_array
from mgg_hpc.data.readers.npz import open_npz
from mgg_hpc.data.readers.planetoid import read_planetoid
from mgg_hpc.data.store import open_graph
from mgg_hpc.errors import InputError

from . import formats
from .formats import (
    FORMATS,
    PACKINGS,
    TEXTS,
    Sound,
    check_marks,
    edges_of,
    lists,
    opened,
    rows_of,
    whole,
    write,
)


def check(sound: Sound, open_: Callable[[], SimpleNamespace]) -> None:
    """Compare edges, their data and datasets of nodes, which may be read before the edges, too."""
    imported = open_()
    found = edges_of(imported)
    ends = [found.sources, found.destinations, found.weight]
    expected = [*sound.edges, sound.weight]
    if not sound.ordered:
        for each in (ends, expected):
            order = np.lexsort(each[:2])
            each[:] = [array if array is None else array[order] for array in each]
    for array, known in zip(ends, expected, strict=True):
        np.testing.assert_equal(array, known)
    assert found.data.keys() == sound.data.keys()
    for name, array in sound.data.items():
        np.testing.assert_array_equal(found.data[name], array)
    for rows in (rows_of(imported), rows_of(open_())):
        assert rows.keys() == sound.rows.keys()
        for path, array in sound.rows.items():
            np.testing.assert_array_equal(rows[path], array)
            assert rows[path].dtype == array.dtype, path
    assert {name: getattr(imported, name) for name in sound.facts} == sound.facts
    assert imported.edges.nodes == sound.nodes


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_read_is_what_was_written(name, blocks, rng, tmp_path):
    for trial in range(6):
        sound = FORMATS[name](rng, int(rng.choice([8, 60, 200])))
        packing = list(PACKINGS)[trial % 3] if name in TEXTS else "plain"
        path = write(tmp_path / str(trial) / name, sound.content, packing)
        open_ = partial(opened, path, **sound.options)
        check(sound, open_)
        if not name.startswith("nodes."):
            found = edges_of(open_())
            assert open_().name == path.name.partition(".")[0]
            assert len(found.marks) > 1 or len(found.sources) < 60 or blocks != "small blocks"
            if name != "names.txt":
                check_marks(open_, sound.content if name in TEXTS else b"")


# --- texts: more than one thread, weights, and lines that one reader or another takes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("list.txt", {}),
        ("names.txt", {"numbers": False}),
        ("names.txt", {"numbers": True}),
        ("matrix.mtx", {}),
        ("metis.graph", {"kind": "111"}),
        # A vertex whose line is longer than a part of a block, and than a line of other formats may be.
        ("metis.graph", {"kind": "000", "more": compressed.LONGEST_LINE // 2}),
    ],
)
def test_threads_and_blocks_change_nothing(name, options, rng, tmp_path, monkeypatch):
    """The same edges, and of two wrong lines the same is named: the first."""
    sound, openmp = FORMATS[name](rng, 90_000, **options), ctypes.CDLL("libgomp.so.1")
    path = write(tmp_path / name, sound.content)
    lines = sound.content.decode().split("\n")
    lines[31_000] = lines[40_000] = "x"
    wrong = write(tmp_path / "wrong" / name, "\n".join(lines))
    threads = openmp.omp_get_max_threads()
    try:
        for count, size in ((1, 8 << 20), (2, 300_000), (3, 8 << 20), (7, 300_000)):
            openmp.omp_set_num_threads(count)
            monkeypatch.setattr(compressed, "BLOCK_BYTES", size)
            check(sound, partial(opened, path, **sound.options))
            with refused(f"{name}:31001: "):
                edges_of(opened(wrong))
    finally:
        openmp.omp_set_num_threads(threads)


def test_weights_round_as_python_does(rng, tmp_path):
    """Decimals next to the middle between two floats of single precision, and any spelling of others."""
    middle = rng.integers(0x00800000, 0x7F000000, size=2000).astype(np.int32).view(np.float32).astype(float)
    middle += np.spacing(middle.astype(np.float32)) / 2
    values = [*middle, *np.nextafter(middle, 0), *np.nextafter(middle, np.inf)]
    spellings = [".17e", ".25g", ".40f", "+.9E"]
    words = ["0." + "1" * 100_000, *(f"{value:{spellings[at % 4]}}" for at, value in enumerate(values))]
    path = write(tmp_path / "e.txt", "".join(f"0 1 {word}\n" for word in words))
    assert lists(open_edge_list(path))[2] == [np.float32(float(word)) for word in words]


def test_lines_and_blocks_agree_on_random_text(rng, tmp_path, monkeypatch):
    """Any text gives the same edges or the same error, whether blocks or lines are parsed."""
    alphabet = list("0123456789") * 3 + list("  \t\n\n\n,,;.-+e#%x\r\x0b\0")
    for _ in range(400):
        lines = ["1 2\n"] * rng.integers(3) + rng.choice(alphabet, size=rng.integers(1, 20)).tolist()
        path, results = write(tmp_path / "e.txt", "".join(lines)), []
        for parse in (native.load().parse_edges, lambda *_: (0, 0, 0, 0)):
            with monkeypatch.context() as patched:
                patched.setattr(native.load(), "parse_edges", parse)
                try:
                    results.append(lists(open_edge_list(path)))
                except InputError as error:
                    results.append(str(error))
        assert results[0] == results[1], path.read_text()


HEAD = "%%matrixmarket MATRIX Coordinate Pattern General"
BOM, EDGE = b"\xef\xbb\xbf", ([1], [2], None)
SMALL = [
    ("list.txt", "", ([], [], None)),
    ("list.txt", "% symbols\n\n", ([], [], None)),
    ("list.txt", BOM + b"1 2\n", EDGE),
    ("list.txt", BOM + b"# comment\n1 2\n", EDGE),
    ("list.txt", "1 2\r\n3 4\r", ([1, 3], [2, 4], None)),
    ("list.txt", "% sym unweighted\n% 1 2 2\n1 2\n", EDGE),
    ("names.txt", BOM + b"1 2\n", ([0], [1], None)),
    ("names.txt", "% asym unweighted\n% 1 2 2\n1 2\n", ([0], [1], None)),
    ("names.txt", "source,x\nx,target\n", ([0, 1], [1, 2], None)),
    ("names.txt", "a b\nx,y z;w\n", ([0, 2], [1, 3], None)),
    ("matrix.mtx", BOM + HEAD.encode() + b"\n3 3 1\n2 3\n", EDGE),
    ("edges.npy", np.array([[1, 2], [3, 4]]), ([1, 2], [3, 4], None)),
    # Entries that are stored twice are two edges.
    ("matrix.mtx", HEAD + "\r\n\r\n 3  3\t3 \r\n3 1\r\n 3\t1 \r\n% end\r\n1 1", ([2, 2, 0], [0, 0, 0], None)),
]


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_small_texts_say(packing, tmp_path, blocks, capsys):
    for name, text, expected in SMALL:
        path = write(tmp_path / name, text, packing if name in TEXTS else "plain")
        assert lists(opened(path)) == expected, text
        warn_of_one_direction(path)  # as KONECT says it
        assert ("lists each undirected edge once" in capsys.readouterr().err) == ("% sym " in str(text))


def test_data_go_on_behind_each_block(rng, tmp_path, small_blocks):
    path = write(tmp_path / "e.txt", "1 2\n" * 60)
    np.save(tmp_path / "d.npy", rng.integers(1000, size=(60, 2)))
    data = {"d": open_array(tmp_path / "d.npy")}
    check_marks(lambda: SimpleNamespace(edges=WithData(open_edge_list(path).edges, data)))


# --- arrays


def test_attributes_that_an_archive_tells(rng, tmp_path):
    graph = random_graph(rng)
    name = np.frombuffer("Größe".encode(), np.uint8)
    for more, expected in (
        ({"graph/name": name, "graph/classes": 30, "graph/directed": False}, ("Größe", 30, False)),
        ({"name": np.array(["x"]), "graph/directed": True}, ("g", graph.y.max() + 1, True)),
    ):
        formats.archive(tmp_path / "g.npz", graph, **more)
        imported = open_npz(tmp_path / "g.npz")
        assert (imported.name, imported.classes, imported.directed) == expected


def test_a_line_of_names_and_empty_lines(tmp_path, blocks):
    names, path = "\n a, 1b,c d\r\n\n\n", tmp_path / "x.csv"
    path.write_text(names + "1,2,3\r\n 4 , +5e0 , -.6 \n\n" + " \n" * 60)
    _, rows, _ = node_rows(features=path)
    np.testing.assert_array_equal(whole(rows["node/x"]), np.array([[1, 2, 3], [4, 5, -0.6]], np.float32))
    path.write_bytes(b"1" + b",1" * 200_000 + b"\n" * 2_000_000)
    assert whole(node_rows(features=path)[1]["node/x"]).shape == (1, 200_001)


def test_features_of_planetoid_keep_the_order_of_their_entries(rng, tmp_path):
    """Unsorted ones and duplicates, too: sums over features have the same bits."""
    columns = [rng.integers(9, size=(rows, 4)) for rows in (5, 3)]
    matrices = [
        sp.csr_matrix(
            (rng.normal(size=4 * len(each)), each.ravel(), np.arange(len(each) + 1) * 4), (len(each), 9)
        )
        for each in columns
    ]
    one_hot, order = np.eye(2, dtype=int)[rng.integers(2, size=8)], [7, 5, 6]
    parts = {"allx": matrices[0], "tx": matrices[1], "x": matrices[0][:2], "graph": {0: [1]}}
    parts |= {"ally": one_hot[:5], "ty": one_hot[order], "y": one_hot[:2]}
    for part, value in parts.items():
        (tmp_path / f"ind.g.{part}").write_bytes(pickle.dumps(value, 2))
    (tmp_path / "ind.g.test.index").write_text("".join(f"{node}\n" for node in order))
    x = read_planetoid(tmp_path, "g").x
    rows = np.concatenate([columns[0], columns[1][[1, 2, 0]]])
    values = np.concatenate([matrices[0].data, matrices[1].data.reshape(3, 4)[[1, 2, 0]].ravel()])
    np.testing.assert_array_equal(x.indices, rows.ravel())
    np.testing.assert_array_equal(x.data, values.astype(np.float32))


@pytest.mark.parametrize("name", ["ogbn_arxiv", "ogbn_papers100M"])
def test_a_dataset_of_ogb_becomes_a_graph_file(rng, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    sound = FORMATS[name](rng, 200)
    write(tmp_path / name, sound.content)
    assert mgg("import", name, "-o", "g.h5") == 0
    told = capsys.readouterr()
    edges = "200 edges (directed)"
    assert told.out == f"g.h5: {name}, 60 nodes, {edges}, 5 features, {sound.facts['classes']} classes\n"
    assert "left out, since no graph file has it: node_year" in told.err and told.err.count("\n") == 1
    assert mgg("verify", "g.h5") == 0
    with open_graph("g.h5") as opened_:
        part = opened_.slice(0, 60)
    order = np.lexsort((np.arange(200), *sound.edges))
    np.testing.assert_array_equal(part.indices, sound.edges[0][order])
    for data, values in sound.data.items():
        np.testing.assert_array_equal(part.edge[data], values[order])
