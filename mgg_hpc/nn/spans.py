"""Names of the stages that run, by layer: NVTX ranges if this process drives a GPU, and spans of torch's profiler.

The name of the layer comes first: "layer 1 forward: aggregate".
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch.autograd import profiler

from ..runtime.watchdog import calling

_Result = TypeVar("_Result")
_layer: ContextVar[str] = ContextVar("layer", default="")


def current() -> str:
    """Return the name of the layer that runs; "" outside of layers."""
    return _layer.get()


@contextmanager
def layer(name: str) -> Iterator[None]:
    """Name the layer of all spans in this context. Backward passes, which run outside of it, set `first_order`'s."""
    token = _layer.set(name)
    try:
        yield
    finally:
        _layer.reset(token)


def first_order(backward: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorate the backward of every autograd Function: name its layer ``ctx.layer``, refuse gradients of gradients.

    A backward writes into rows that are reused, so it raises RuntimeError under create_graph=True. (torch's own
    once_differentiable raises nothing if the incoming gradient is a constant.)
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: torch.Tensor) -> _Result:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "layers of mgg_hpc have first gradients alone: call backward or grad without create_graph=True"
            )
        # The caller's autocast; layers compute without.
        if torch.is_autocast_enabled(device := gradients[0].device.type):
            with torch.autocast(device, enabled=False):
                return checked(ctx, *gradients)
        with layer(getattr(ctx, "layer", "")), calling("backward"):
            return backward(ctx, *gradients)

    return checked


class Clock:
    """Measures the seconds of each phase of an epoch, on the thread that made it, between `clocked` and its end.

    phases: phase of each stage, by the name that `span` is given; other stages count for the phase they run in. whole:
    phases for which all inner stages count, whatever their names. rest: phase of everything outside of stages. seconds:
    by phase, without the time of inner stages of other phases.
    """

    def __init__(self, phases: Mapping[str, str], whole: frozenset[str], rest: str) -> None:
        self.seconds = dict.fromkeys([*phases.values(), rest], 0.0)
        self._phases, self._whole, self._rest = phases, whole, rest
        self.thread = threading.get_ident()
        self.restart()

    def restart(self) -> None:
        """Start counting now, outside of all stages."""
        self._phase, self._outer = self._rest, list[str]()  # the phase around each open stage
        self._since = time.perf_counter()

    def enter(self, name: str) -> None:
        """Start a stage."""
        now = self._phase
        phase = self._phases.get(name, now)
        self._outer.append(now)
        if phase is not now and now not in self._whole:
            self._change(phase)

    def leave(self) -> None:
        """End the stage that started last."""
        outer = self._outer.pop()
        if outer is not self._phase:
            self._change(outer)

    def stop(self) -> None:
        """Count the time until now."""
        self._change(self._rest)

    def _change(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now


_clock: Clock | None = None


@contextmanager
def clocked(clock: Clock | None) -> Iterator[None]:
    """Let a clock measure the spans in this context and the time between them; None measures nothing."""
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
    """Context manager that names a stage on this thread. Without a profiler and a clock it costs three checks."""

    __slots__ = ("_clock", "_name", "_record", "_stage", "_within_nvtx")

    def __init__(self, name: str) -> None:
        layer = _layer.get()
        self._stage = name
        self._name = f"{layer} {name}" if layer else name

    def __enter__(self) -> None:
        self._clock = _clock
        if self._clock is not None:
            if self._clock.thread == threading.get_ident():
                self._clock.enter(self._stage)
            else:
                self._clock = None
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
