"""What a reader gives, as arrays: all edges of a stream, and from a mark on; the datasets of nodes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from mgg_hpc.data.streams import Imported


def edges_of(imported: Imported, mark: object = None) -> SimpleNamespace:
    """Sources, destinations, weight and data of all edges, and the marks of the blocks."""
    reported: list[int] = []
    blocks = list(imported.edges.blocks(mark, reported.append))
    assert reported == sorted(reported) and (not reported or reported[-1] <= imported.edges.total)
    names = blocks[0].data.keys() if blocks else ()
    weighted = bool(blocks) and blocks[0].weight is not None
    return SimpleNamespace(
        sources=np.concatenate(
            [np.asarray(block.sources, np.int64) for block in blocks] or [np.zeros(0, int)]
        ),
        destinations=np.concatenate([np.asarray(block.destinations, np.int64) for block in blocks] or [[]]),
        weight=np.concatenate([block.weight for block in blocks]) if weighted else None,
        data={name: np.concatenate([block.data[name] for block in blocks]) for name in names},
        lengths=[len(block) for block in blocks],
        marks=[block.mark for block in blocks],
    )


def rows_of(imported: Imported) -> dict[str, np.ndarray]:
    """The datasets of nodes by path; each is as its layout says."""
    rows = imported.rows() if callable(imported.rows) else imported.rows
    return {path: whole(each) for path, each in rows.items()}


def whole(rows) -> np.ndarray:
    """All of a dataset."""
    found = np.concatenate(list(rows.pieces()))
    assert found.dtype == rows.layout.dtype and found.shape == rows.layout.shape
    return found


def check_marks(imported: Imported) -> None:
    """From each mark on a stream gives what lies behind it."""
    every = edges_of(imported)
    for number, mark in enumerate(every.marks):
        behind, rest = sum(every.lengths[: number + 1]), edges_of(imported, mark)
        np.testing.assert_array_equal(rest.sources, every.sources[behind:])
        np.testing.assert_array_equal(rest.destinations, every.destinations[behind:])
        for name, values in rest.data.items():
            np.testing.assert_array_equal(values, every.data[name][behind:])
