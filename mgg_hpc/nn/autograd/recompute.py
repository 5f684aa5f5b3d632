"""Layers whose intermediate values are not kept for the backward but computed again (Chen et al., arXiv:1604.06174).

Only a layer's input is kept. Random draws are functions of counters (random.py) and sums have a fixed order, so the
second pass has the bits of the first. Its exchanges take place once more, on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..graph.view import GraphView
from ..inputs.host import Input

_Rows = TypeVar("_Rows", bound=Input)
_Value = TypeVar("_Value")


@dataclass
class _Pass:
    """Results of `once` in the first pass of a layer, in order.

    next: index of the next result in the second pass; None in the first pass. outer: the pass that contains this one.
    """

    values: list[Any] = field(default_factory=list)
    outer: _Pass | None = None
    next: int | None = None


_pass: ContextVar[_Pass | None] = ContextVar("pass", default=None)


def again() -> bool:
    """Return whether this is the second pass of a layer, which must not update statistics and counters."""
    here = _pass.get()
    while here is not None and here.next is None:
        here = here.outer
    return here is not None


def once(make: Callable[[], _Value]) -> _Value:
    """Return make() in the first pass of a layer, and the same results in the same order in the second pass."""
    here = _pass.get()
    if here is None:
        return make()
    if here.next is None:
        with _within(here.outer):
            here.values.append(once(make))
        return here.values[-1]
    here.next += 1
    return here.values[here.next - 1]


def recomputed(run: Callable[[_Rows, GraphView], Tensor], x: _Rows, graph: GraphView) -> Tensor:
    """Return run(x, graph) for rows x [n, F] and keep only x for the backward. Collective if ``run`` is."""
    out: Tensor = checkpoint(
        run, x, graph, use_reentrant=False, preserve_rng_state=False, context_fn=_both_passes
    )
    return out


def _both_passes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    first = _Pass(outer=_pass.get())
    return _within(first), _within(_Pass(first.values, next=0))


@contextmanager
def _within(here: _Pass | None) -> Iterator[None]:
    token = _pass.set(here)
    try:
        yield
    finally:
        _pass.reset(token)
