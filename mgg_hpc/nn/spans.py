"""Names for what runs, by layer and stage: NVTX ranges where this process drives a GPU, and spans of torch's profiler.

A layer that is named by `layer` stands before the names of what runs within it: "layer 1 forward: aggregate".
"""

from __future__ import annotations

from collections.abc import Iterator
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


class span:  # noqa: N801 - it reads as a statement
    """Names what runs within ``with``, on this thread. Without a profiler it costs two checks."""

    __slots__ = ("_name", "_record", "_within_nvtx")

    def __init__(self, name: str) -> None:
        layer = _layer.get()
        self._name = f"{layer} {name}" if layer else name

    def __enter__(self) -> None:
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
