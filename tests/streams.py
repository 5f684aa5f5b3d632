"""A GPU's streams and events played on the host: what no order separates is found.

Work is done as it is launched, over host memory that counts as the GPU's where torch was asked for "cuda". Each
access is kept with the clocks of all that happens before it (vector clocks: Mattern, 1989); two accesses to the same
bytes, one of which writes, of which neither happens before the other, are a race.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Clock = dict[str, int]


@dataclass(frozen=True)
class Access:
    """Bytes begin .. end-1, by the ``count``-th step of a stream or the host, after all that ``clock`` knows."""

    what: str
    who: str
    count: int
    begin: int
    end: int
    writes: bool
    clock: Clock


class Timeline:
    """A stream, an event, or the host: what has happened before whatever comes next, with torch's functions."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams, self.name, self.clock = streams, name, {}

    def join(self, other: Timeline) -> None:
        for who, count in other.clock.items():
            self.clock[who] = max(self.clock.get(who, 0), count)

    def wait_stream(self, other: Timeline) -> None:
        self.join(self._streams.host)
        self.join(other)

    wait_event = join

    def record(self, stream: Timeline) -> None:
        self.clock = dict(stream.clock)

    def synchronize(self) -> None:
        self._streams.host.join(self)


class Streams:
    """All that was launched on one made-up GPU."""

    def __init__(self) -> None:
        self.host, self.current = Timeline(self, "host"), Timeline(self, "current")
        self.accesses: list[Access] = []
        self.gpu: set[int] = set()
        self._kept: list[torch.Tensor] = []  # so that no address comes twice
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def played(self, monkeypatch) -> Iterator[Streams]:
        """Meanwhile torch's "cuda" is this."""

        def new(device: object = None) -> Timeline:
            return Timeline(self, f"stream {next(self._numbers)}")

        with monkeypatch.context() as patch, _Calls(self), _Accesses(self):
            patch.setattr(torch.cuda, "Stream", new)
            patch.setattr(torch.cuda, "Event", new)
            patch.setattr(torch.cuda, "current_stream", lambda device: self.current)
            patch.setattr(torch.cuda, "stream", self._on)
            yield self

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the GPU, which the current stream has written."""
        made = torch.empty_like(values, device="cuda")
        made.copy_(values)
        return made

    def keep(self, tensor: torch.Tensor) -> None:
        self.gpu.add(tensor.untyped_storage().data_ptr())
        self._kept.append(tensor)

    def holds(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return whether any of these lies in the GPU's memory."""
        return any(each.untyped_storage().data_ptr() in self.gpu for each in tensors)

    def access(self, what: str, tensors: list[tuple[torch.Tensor, bool]]) -> None:
        """One step: of the current stream if the GPU's memory takes part, else of the host. (tensor, is written)"""
        line = self.current if self.holds(each for each, _ in tensors) else self.host
        line.join(self.host)
        self._step(what, line, [(*_extent(each), writes) for each, writes in tensors if each.numel()])
        self._kept += [each for each, _ in tensors]

    def host_writes(self, what: str, array: np.ndarray) -> None:
        self._step(what, self.host, [(array.ctypes.data, array.ctypes.data + array.nbytes, True)])

    def before(self, first: Access, second: Access) -> bool:
        return second.clock.get(first.who, 0) >= first.count

    def _step(self, what: str, line: Timeline, places: list[tuple[int, int, bool]]) -> None:
        line.clock[line.name] = line.clock.get(line.name, 0) + 1
        for begin, end, writes in places:
            made = Access(what, line.name, line.clock[line.name], begin, end, writes, dict(line.clock))
            for other in self.accesses:
                overlap = other.begin < end and begin < other.end
                if overlap and (writes or other.writes) and not self.before(other, made):
                    raise AssertionError(f"{what} on {line.name} races with {other.what} on {other.who}")
            self.accesses.append(made)

    @contextlib.contextmanager
    def _on(self, stream: Timeline) -> Iterator[None]:
        was, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = was


class _Calls(TorchFunctionMode):
    """Takes "cuda" out of calls, and keeps what they make."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        places = [*args, *kwargs.values()]
        if not any(isinstance(each, str) and each.startswith("cuda") for each in places):
            return func(*args, **kwargs)
        if func is torch.Tensor.to:
            assert kwargs == {"non_blocking": True}
            made = torch.empty(args[0].shape, dtype=args[0].dtype)
            self._streams.keep(made)
            return made.copy_(args[0], non_blocking=True)
        made = func(*args, **{**kwargs, "device": "cpu"})
        self._streams.keep(made)
        return made


class _Accesses(TorchDispatchMode):
    """Tells of every operation that reads or writes memory."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        returned = func._schema.returns[0].alias_info if func._schema.returns else None
        if func._schema.name in ("aten::empty", "aten::empty_like", "aten::empty.memory_format") or (
            returned is not None and not returned.is_write
        ):
            return made  # memory without values yet, or a view
        tensors = []
        for value, argument in zip(args, func._schema.arguments, strict=False):
            if isinstance(value, torch.Tensor):
                info = argument.alias_info
                tensors.append((value, info is not None and info.is_write))
        tensors += [(value, key == "out") for key, value in kwargs.items() if isinstance(value, torch.Tensor)]
        if returned is None and isinstance(made, torch.Tensor):
            if self._streams.holds(each for each, _ in tensors):
                self._streams.keep(made)
            tensors.append((made, True))
        self._streams.access(func._schema.name.removeprefix("aten::"), tensors)
        return made


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes from a tensor's first to its last value."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize
