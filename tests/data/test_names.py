"""Names of nodes in graph files: they are checked, read in slices, and go with their rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import mgg

from mgg_hpc.data import schema
from mgg_hpc.data.export import names
from mgg_hpc.data.graph import from_edges
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import graph_file

from .graphs import refused

WORDS = ["a", "", "größer", "", "日本", "x y", "🜚", ""]


def named(path: Path, **arrays: np.ndarray) -> None:
    """Write a graph of 8 nodes, and further datasets."""
    edges = np.arange(8), (np.arange(8) + 1) % 8
    graph = from_edges(*edges, 8)
    more = {name.replace("__", "/"): array for name, array in arrays.items()}
    layouts = {name: schema.Layout(array.dtype, array.shape) for name, array in more.items()}
    held = schema.contents(graph)
    held = replace(held, datasets={**held.datasets, **layouts})
    with graph_file(path, held, force=True) as file:
        for name, array in {**schema.arrays(graph), **more}.items():
            file.put(name, [array])


def as_csr(words: list[bytes]) -> dict[str, np.ndarray]:
    text = np.frombuffer(b"".join(words), np.uint8)
    return {"node__name__offsets": np.cumsum([0, *map(len, words)]), "node__name__text": text}


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_names_are_read_in_slices(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(names, "ROWS", rows)
    named(tmp_path / "g.h5", **as_csr([word.encode() for word in WORDS]))
    assert any("UTF-8" in fact for fact in verify(tmp_path / "g.h5"))
    with open_graph(tmp_path / "g.h5") as opened:
        assert names.kind_of(opened.contents) == "name"
        for low in range(8):
            for high in range(low, 9):
                found = names.read(opened, low, high)
                assert [word.decode() for word in found.tolist()] == WORDS[low:high]
    named(tmp_path / "g.h5", node__id=np.arange(8) * 10**12)
    with open_graph(tmp_path / "g.h5") as opened:
        assert names.kind_of(opened.contents) == "id"
        assert names.read(opened, 2, 4).tolist() == [2 * 10**12, 3 * 10**12]
    named(tmp_path / "g.h5")
    with open_graph(tmp_path / "g.h5") as opened:
        assert names.kind_of(opened.contents) == "" and names.read(opened, 0, 8) is None


LETTERS = [b"a"] * 8
WRONG = {
    "no text": ({"node__name__offsets": np.arange(9)}, "/node/name/text is missing; names of nodes are offsets"),
    "no offsets": ({"node__name__text": np.zeros(9, np.uint8)}, "/node/name/offsets is missing"),
    "both": (as_csr(LETTERS) | {"node__id": np.arange(8)}, "has both /node/id and /node/name/text"),
    "other ids": ({"node__id": np.arange(9)}, r"/node/id is int64 \[9\]; expected int64 \[8\]"),
    "other text": (as_csr(LETTERS) | {"node__name__text": np.arange(8)}, "/node/name/text is int64"),
    "decreasing": (
        as_csr(LETTERS) | {"node__name__offsets": np.array([0, 1, 2, 1, 4, 5, 6, 7, 8])},
        "/node/name/offsets decreases at row 2",
    ),
    "short": (as_csr([b""] * 8) | {"node__name__text": np.zeros(1, np.uint8)}, "/node/name/offsets ends with 0"),
    "bytes": (as_csr([*LETTERS[:5], b"a\xff", b"", b"b"]), "/node/name/text is not UTF-8 in row 5"),
    "within a letter": (as_csr([*LETTERS[:6], b"\xc3", b"\xa9"]), "/node/name/text is not UTF-8 in row 7"),
    "half a letter": (as_csr([*LETTERS[:6], b"\xc3", b"a"]), "/node/name/text is not UTF-8 in row 6"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_names_that_are_none_are_refused(tmp_path, case):
    arrays, reason = WRONG[case]
    named(tmp_path / "g.h5", **arrays)
    with refused(rf"g\.h5: .*{reason}"):
        verify(tmp_path / "g.h5")
    with refused(rf"g\.h5: .*{reason}"), open_graph(tmp_path / "g.h5") as opened:
        names.read(opened, 0, 8)


@pytest.mark.parametrize("kind", ["words", "numbers"])
def test_names_go_with_renumbered_rows(rng, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    words = [f"n{node}é" if kind == "words" else str(10**9 - 7 * node) for node in range(30)]
    pairs = rng.integers(30, size=(200, 2))
    Path("e.csv").write_text("".join(f"{words[u]},{words[v]}\n" for u, v in pairs))
    assert mgg("import", "e.csv", "--map-ids", "-o", "g.h5") == 0

    def edges() -> set[tuple[str, str]]:
        with open_graph("g.h5") as opened:
            part, found = opened.slice(0, opened.nodes), names.read(opened, 0, opened.nodes).tolist()
        text = [name.decode() if isinstance(name, bytes) else str(name) for name in found]
        rows = np.repeat(np.arange(len(part.indptr) - 1), np.diff(part.indptr))
        return {(text[u], text[v]) for u, v in zip(part.indices, rows, strict=True)}

    wanted = {(words[u], words[v]) for u, v in pairs}
    assert edges() == wanted
    assert mgg("partition", "g.h5", "--order", "degree") == 0
    assert edges() == wanted and mgg("verify", "g.h5") == 0
