"""Prove that a graph file is sound: structure and values first, then digests."""

from __future__ import annotations

import os

from .schema import VERSION
from .store import open_graph
from .structure import Progress, check


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> list[str]:
    """What is proven of a graph file, one line each.

    ``progress(done, total)`` counts bytes. Raises InputError at the first offender: a value that is wrong
    is named with its row; a value that is only not the one that was written shows in its block's digest.
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
