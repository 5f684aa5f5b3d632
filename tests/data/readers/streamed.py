"""What a reader gives, as arrays: all edges of a stream, and from a mark on; the datasets of nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from mgg_hpc.data.edge_stream import Imported


def edges_of(imported: Imported, mark: object = None) -> SimpleNamespace:
    """Sources, destinations, weight and data of all edges, and the lengths and marks of the blocks."""
    reported: list[int] = []
    blocks = list(imported.edges.blocks(mark, reported.append))
    assert reported == sorted(reported) and (not reported or reported[-1] <= imported.edges.total)
    weighted = bool(blocks) and blocks[0].weight is not None
    names = blocks[0].data if blocks else ()
    return SimpleNamespace(
        sources=np.concatenate([np.zeros(0, np.int64), *(block.sources for block in blocks)]),
        destinations=np.concatenate([np.zeros(0, np.int64), *(block.destinations for block in blocks)]),
        weight=np.concatenate([block.weight for block in blocks]) if weighted else None,
        data={name: np.concatenate([block.data[name] for block in blocks]) for name in names},
        lengths=[len(block) for block in blocks],
        marks=[block.mark for block in blocks],
    )


def lists(imported: Imported) -> tuple[list[int], list[int], list[float] | None]:
    """Sources, destinations and weights of all edges."""
    found = edges_of(imported)
    weights = None if found.weight is None else found.weight.tolist()
    return found.sources.tolist(), found.destinations.tolist(), weights


def rows_of(imported: Imported) -> dict[str, np.ndarray]:
    """The datasets of nodes by path; each is as its layout says."""
    rows = imported.rows() if callable(imported.rows) else imported.rows
    return {path: whole(each) for path, each in rows.items()}


def whole(rows) -> np.ndarray:
    """All of a dataset."""
    found = np.concatenate(list(rows.pieces()))
    assert found.dtype == rows.layout.dtype and found.shape == rows.layout.shape
    return found


def read_all(imported: Imported) -> None:
    edges_of(imported)
    rows_of(imported)


def check_marks(open_: Callable[[], Imported], text: bytes = b"") -> None:
    """From each mark on a stream that is opened again gives what lies behind it; marks of a text know their line."""

    def arrays(found: SimpleNamespace) -> dict[str, np.ndarray | None]:
        return {"u": found.sources, "v": found.destinations, "weight": found.weight, **found.data}

    every = edges_of(open_())
    for mark, behind in zip(every.marks, np.cumsum(every.lengths), strict=True):
        rest = arrays(edges_of(open_(), json.loads(json.dumps(mark))))
        assert len(rest["u"]) == len(every.sources) - behind
        for name, values in arrays(every).items():
            if len(rest["u"]):
                np.testing.assert_equal(rest[name], None if values is None else values[behind:])
        assert not text or mark["line"] == 1 + (text + b"\n")[: mark["offset"]].count(b"\n")
