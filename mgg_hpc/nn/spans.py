"""Names for what runs, by layer and stage: NVTX ranges where this process drives a GPU, and spans of torch's profiler.

A layer that is named by `layer` stands before the names of what runs within it: "layer 1 forward: aggregate".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.autograd import profiler

_layer: ContextVar[str] = ContextVar("layer", default="")


def current() -> str:
    """Return the name of the layer that runs; "" outside of layers."""
    return _layer.get()


@contextmanager
def layer(name: str) -> Iterator[None]:
    """Name the layer of the spans within. Backward functions, which run outside of it, name it again (first_order)."""
    token = _layer.set(name)
    try:
        yield
    finally:
        _layer.reset(token)


class Clock:
    """Adds up the seconds of stages by phase, on this thread, within `clocked`.

    phases: of the names that `span` is given; other stages belong to the phase that they run in. whole: phases whose
    inner stages belong to them, whatever they are called. rest: of what runs outside of all stages. A stage's time is
    its own, without that of inner stages of other phases.
    """

    def __init__(self, phases: Mapping[str, str], whole: frozenset[str], rest: str) -> None:
        self.seconds = dict.fromkeys([*phases.values(), rest], 0.0)
        self._phases, self._whole, self._rest = phases, whole, rest
        self.restart()

    def restart(self) -> None:
        """Begin to count now, outside of all stages."""
        self._phase, self._around = self._rest, list[str]()  # of each stage that is open, the phase around it
        self._since = time.perf_counter()

    def enter(self, name: str) -> None:
        """Begin a stage."""
        now = self._phase
        phase = self._phases.get(name, now)
        self._around.append(now)
        if phase is not now and now not in self._whole:
            self._change(phase)

    def leave(self) -> None:
        """End the stage that began last."""
        around = self._around.pop()
        if around is not self._phase:
            self._change(around)

    def stop(self) -> None:
        """Count until now."""
        self._change(self._rest)

    def _change(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now


_clock: Clock | None = None


@contextmanager
def clocked(clock: Clock | None) -> Iterator[None]:
    """Have a clock count the spans within, and what lies between them; None counts nothing."""
    global _clock  # noqa: PLW0603 - one check a span
    if clock is not None:
        clock.restart()
    _clock = clock
    try:
        yield
    finally:
        if clock is not None:
            clock.stop()
        _clock = None


class span:  # noqa: N801 - it reads as a statement
    """Names what runs within ``with``, on this thread. Without a profiler and a clock it costs three checks."""

    __slots__ = ("_clock", "_name", "_record", "_stage", "_within_nvtx")

    def __init__(self, name: str) -> None:
        layer = _layer.get()
        self._stage = name
        self._name = f"{layer} {name}" if layer else name

    def __enter__(self) -> None:
        self._clock = _clock
        if self._clock is not None:
            self._clock.enter(self._stage)
        self._record = None
        if profiler._is_profiler_enabled:  # torch's own flag; its public function takes 15 us
            self._record = profiler.record_function(self._name)
            self._record.__enter__()
        self._within_nvtx = torch.cuda.is_initialized()
        if self._within_nvtx:
            torch.cuda.nvtx.range_push(self._name)

    def __exit__(self, *error: object) -> None:
        if self._within_nvtx:
            torch.cuda.nvtx.range_pop()
        if self._record is not None:
            self._record.__exit__(None, None, None)
        if self._clock is not None:
            self._clock.leave()
