"""Check that a graph file is sound: structure and values first, then digests."""

from __future__ import annotations

import os

from .schema import VERSION
from .store import open_graph
from .structure import Progress, check


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> list[str]:
    """Check a graph file, and return one line for each fact that holds.

    ``progress(done, total)`` counts bytes. Raises InputError for the first wrong value, with its row, or else for the
    first block whose digest differs.
    """
    with open_graph(path) as opened:
        datasets = opened.contents.datasets
        size = sum(layout.nbytes for layout in datasets.values())  # each byte is read twice

        def report(done: int, _: int = 0) -> None:
            if progress:
                progress(done, 2 * size)

        facts = [f"types and shapes follow version {VERSION} of the format"]
        facts += check(opened, report)
        done = size
        for name, layout in datasets.items():
            opened.check_digests(name)
            done += layout.nbytes
            report(done)
        facts.append(f"the digests of all {len(datasets)} datasets agree")
    return facts
