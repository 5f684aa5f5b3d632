"""Kernels over edges on CPUs (the protocol is ../edges.py), over the native module's schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ..arguments import Rows
from ..edges import Attention, EdgeKernels
from ..tape import Tape


class HostEdges(EdgeKernels):
    """Native kernels. schedule, called: `HostBackend.schedule` and `HostBackend.called`."""

    def __init__(
        self,
        schedule: Callable[[Plan, RowFormat], Any],
        called: Callable[[Plan, Rows], AbstractContextManager[dict[str, Any]]],
    ) -> None:
        self._schedule, self._called = schedule, called

    def _run(self, plan: Plan, name: str, src: Rows, **given: Any) -> None:
        kernel = getattr(self._schedule(plan, src.format), f"{name}_{src.format.dtype.name}")
        with self._called(plan, src) as source:
            kernel(**source, **{name: _carried(value) for name, value in given.items() if value is not None})

    def attend(self, plan: Plan, how: Attention, src: Rows, out: Any, **given: Any) -> None:
        self._run(plan, "attend", src, out=out, **_call(how), **given)

    def attend_back(
        self, plan: Plan, how: Attention, src: Rows, out: Any, *, at_source: bool, **given: Any
    ) -> None:
        self._run(plan, "attend_back", src, out=out, at_source=at_source, **_call(how), **given)

    def max_ties(self, plan: Plan, src: Rows, out: Any, ties: Any) -> None:
        self._run(plan, "max_ties", src, out=out, ties=ties)

    def max_back(self, plan: Plan, src: Rows, x: Any, out: Any) -> None:
        self._run(plan, "max_back", src, x=x, out=out)

    def weighted(self, plan: Plan, src: Rows, weight: Any, out: Any) -> None:
        self._run(plan, "weighted", src, weight=weight, out=out)

    def sddmm(self, plan: Plan, src: Rows, dst: Any, out_edge: Any) -> None:
        self._run(plan, "sddmm", src, y=dst, out=out_edge)

    def propagate(
        self,
        plan: Plan,
        tape: Tape,
        src: Rows,
        *,
        near: Sequence[Any],
        shared: Any,
        out: Sequence[Any],
        edge: Any = None,
    ) -> None:
        values, steps, outputs = tape.packed
        self._run(
            plan,
            "propagate",
            src,
            columns=tape.columns,
            far_columns=tape.far_columns,
            values=values,
            steps=steps,
            outputs=outputs,
            registers=tape.registers,
            reduce=tape.reduce,
            near=list(near),
            shared=shared,
            edge=edge,
            out=list(out),
        )


def _call(how: Attention) -> dict[str, Any]:
    """Return the arguments of native calls for an Attention."""
    call: dict[str, Any] = {
        "heads": how.heads,
        "channels": how.channels,
        "slope": how.negative_slope,
        "scale": how.scale,
    }
    if how.key is not None:
        key = how.key
        call |= {"p": key.p, "seed": key.seed, "epoch": key.epoch, "stream": key.stream, "ids": how.ids}
    return call


def _carried(value: Any) -> Any:
    """Return an array as native calls take it: half rows as their bits."""
    return value.view(np.uint16) if isinstance(value, np.ndarray) and value.dtype.itemsize == 2 else value
