"""Edges that are listed more than once, in each format: --combine says what their weights become."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from command import mgg, refused

import mgg_hpc

pytestmark = pytest.mark.usefixtures("here")

NODES = 12


def text(ends, weight, path, *, first=0, between=" "):
    lines = (f"{u + first}{between}{v + first}{between}{w}\n" for u, v, w in zip(*ends, weight, strict=True))
    Path(path).write_text("".join(lines), encoding="utf-8")
    return [path, "--nodes", str(NODES), *(["--first", "1"] if first else [])]


def named(ends, weight, path):
    """Ids are words; each node comes first in the order of its number."""
    loops = "".join(f"n{v} n{v} 0\n" for v in range(NODES))
    words = "".join(f"n{u} n{v} {w}\n" for u, v, w in zip(*ends, weight, strict=True))
    Path(path).write_text(loops + words, encoding="utf-8")
    return [path, "--map-ids"]


def arrays(ends, weight, path):
    np.save(path, np.stack(ends))
    np.save("w.npy", weight.astype(np.float64))
    np.save("y.npy", np.zeros(NODES, int))
    return [path, "--edge-data", "weight=w.npy", "--labels", "y.npy"]


def archive(ends, weight, path):
    np.savez(path, edge_index=np.stack(ends), edge_weight=weight, y=np.zeros(NODES, int))
    return [path]


def matrix(ends, weight, path):
    sp.save_npz(path, sp.coo_array((weight, ends), shape=(NODES, NODES)))
    return [path]


def market(ends, weight, path):
    lines = "".join(f"{u + 1} {v + 1} {w}\n" for u, v, w in zip(*ends, weight, strict=True))
    head = f"%%MatrixMarket matrix coordinate real general\n{NODES} {NODES} {len(weight)}\n"
    Path(path).write_text(head + lines, encoding="utf-8")
    return [path]


def metis(ends, weight, path):
    """The neighbours of a vertex are the sources of its edges."""
    lists = [
        " ".join(f"{u + 1} {w}" for u, end, w in zip(*ends, weight, strict=True) if end == v)
        for v in range(NODES)
    ]
    Path(path).write_text("\n".join([f"{NODES} {len(weight) // 2} 001", *lists, ""]), encoding="utf-8")
    return [path]


FORMATS = {
    "text": lambda *edges: text(*edges, "e.txt"),
    "text from 1 on": lambda *edges: text(*edges, "e.csv", first=1, between=","),
    "names": lambda *edges: named(*edges, "e.txt"),
    "npy": lambda *edges: arrays(*edges, "e.npy"),
    "npz": lambda *edges: archive(*edges, "e.npz"),
    "matrix of SciPy": lambda *edges: matrix(*edges, "e.npz"),
    "Matrix Market": lambda *edges: market(*edges, "e.mtx"),
    "METIS": lambda *edges: metis(*edges, "e.graph"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_combines_or_refuses(name, rng, capsys):
    """Weights are eighths, whose sums are exact; a matrix of SciPy adds up what is listed twice."""
    ends = tuple(rng.integers(NODES, size=(2, 200)))
    weight = rng.integers(1, 9, size=200) / 8
    listed = sp.coo_array((weight, ends), shape=(NODES, NODES)).toarray()
    options = FORMATS[name](ends, weight)
    loops = [0.0] * (name == "names")  # that list each node
    both = listed + listed.T - np.diag(np.diag(listed))
    for asked, wanted in (("--symmetric", both), ("--simple", listed - np.diag(np.diag(listed)))):
        said = refused(capsys, "import", *options, asked, "-o", "g.h5", "--force")
        words = re.search(
            r"duplicates of [0-9]+ edges have different weights, such as ([0-9.]+) and ([0-9.]+) of "
            r"'?(\w+)'? -> '?(\w+)'?; --combine sum, mean, max, min or first",
            said,
        )
        assert words is not None, said
        # METIS and Matrix Market number nodes from 1, too.
        shift = {"text from 1 on": 1, "Matrix Market": 1, "METIS": 1}.get(name, 0)
        u, v = (int(word.removeprefix("n")) - shift for word in words.groups()[2:])
        of = (ends[0] == u) & (ends[1] == v)
        of |= (ends[0] == v) & (ends[1] == u) if asked == "--symmetric" else False
        assert {float(word) for word in words.groups()[:2]} <= {*weight[of], *loops}
        assert mgg("import", *options, asked, "--combine", "sum", "-o", "g.h5", "--force") == 0
        assert np.array_equal(mgg_hpc.to_scipy("g.h5").toarray(), wanted)
        with h5py.File("g.h5") as file:
            stored = (wanted > 0) | (np.eye(NODES) * len(loops) * (asked == "--symmetric") > 0)
            assert len(file["graph/indices"]) == stored.sum()


@pytest.mark.parametrize("name", FORMATS)
def test_edges_that_are_listed_both_ways_are_not_added_to_their_reverses(name, rng, capsys):
    """Each one's reverse has the same weight; some are listed more than once."""
    ends, weight = rng.integers(NODES, size=(2, 100)), rng.integers(1, 9, size=100) / 8
    ends, weight = np.append(ends, ends[::-1], axis=1), np.append(weight, weight)
    listed = sp.coo_array((weight, tuple(ends)), shape=(NODES, NODES)).toarray()
    options = FORMATS[name](tuple(ends), weight)
    assert mgg("import", *options, "--symmetric", "--combine", "sum", "-o", "g.h5") == 0
    assert np.array_equal(mgg_hpc.to_scipy("g.h5").toarray(), listed)
    said = " lists each edge in both directions, with the same weight: a sum counts both as one\n"
    assert said in capsys.readouterr().out


def test_a_symmetric_matrix_is_not_added_to_itself():
    dense = np.triu(np.arange(1.0, 17).reshape(4, 4))
    dense += np.triu(dense, 1).T
    scipy.io.mmwrite("m.mtx", sp.coo_array(np.tril(dense)), symmetry="general")
    body = Path("m.mtx").read_text().replace("general", "symmetric")
    Path("m.mtx").write_text(body)
    for options in ([], ["--symmetric"], ["--symmetric", "--combine", "sum"]):
        assert mgg("import", "m.mtx", "-o", "g.h5", "--force", *options) == 0
        assert np.array_equal(mgg_hpc.to_scipy("g.h5").toarray(), dense)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--combine", "sum"], "--combine needs --symmetric or --simple"),
        (["--simple", "--combine", "sum"], "e.txt has no weights, which --combine sum is for; leave it out"),
    ],
)
def test_a_rule_without_use_is_refused(options, said, capsys):
    Path("e.txt").write_text("0 1\n0 1\n", encoding="utf-8")
    assert said in refused(capsys, "import", "e.txt", "-o", "g.h5", *options)
    assert mgg("import", "e.txt", "-o", "g.h5", "--simple") == 0


# Two whole numbers that float32 does not hold; fractions are not counted.
ROUNDED = np.array([2**24 + 1, 2**53 + 2**20, 1 / 3])
PATH = np.array([0, 1, 2]), np.array([1, 2, 0])


@pytest.mark.parametrize("name", FORMATS)
def test_rounded_weights_are_counted_by_each_format(name, capsys):
    ends = tuple(np.append(end, other) for end, other in zip(PATH, PATH[::-1], strict=True))
    options = FORMATS[name](ends, np.append(ROUNDED, ROUNDED))
    assert mgg("import", *options, "-o", "g.h5") == 0
    assert "4 of the weights were rounded: float32 does not hold" in capsys.readouterr().out


def test_whole_numbers_of_text_are_compared_as_written(capsys):
    """Of 2^60 + 1 float64 has 2^60 already, which float32 holds."""
    Path("e.txt").write_text(f"0 1 {2**60 + 1}\n1 2 {2**60}\n2 0 1e20\n0 2 0.1\n", encoding="utf-8")
    assert mgg("import", "e.txt", "-o", "g.h5") == 0
    assert "e.txt: 2 of the weights were rounded" in capsys.readouterr().out
