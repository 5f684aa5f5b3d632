"""A watch over the cells of a benchmark: a program that must name what hangs puts its own here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Watch = Callable[[str], AbstractContextManager[None]]


class Watched:
    """The watch of this process. over: makes the context in which a cell of that name is measured."""

    over: Watch = staticmethod(lambda _: nullcontext())


@contextmanager
def cell(*names: object) -> Iterator[None]:
    """Measure a cell under the watch. names: what tells it from others, as graph, type and width. Cells do not nest."""
    with Watched.over(", ".join(map(str, names))):
        yield
