"""A GPU's streams and events played on the host: what no order separates is found.

Work is done as it is launched, over host memory that counts as the GPU's where torch was asked for "cuda". Each
access is kept with the clocks of all that happens before it (vector clocks: Mattern, 1989); two accesses to the same
bytes, one of which writes, of which neither happens before the other, are a race.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

HOST = "host"
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


@dataclass(eq=False)
class Timeline:
    """A stream, an event, or the host: what has happened before whatever comes next."""

    name: str
    clock: Clock = field(default_factory=dict)

    def join(self, other: Timeline) -> None:
        for who, count in other.clock.items():
            self.clock[who] = max(self.clock.get(who, 0), count)


class Streams:
    """All that was launched on one made-up GPU."""

    def __init__(self) -> None:
        self.host, self.current = Timeline(HOST), Timeline("current")
        self.accesses: list[Access] = []
        self._gpu: set[int] = set()
        self._kept: list[torch.Tensor] = []  # so that no address comes twice
        self._made = 0

    @contextlib.contextmanager
    def played(self, monkeypatch) -> Iterator[Streams]:
        """Meanwhile torch's "cuda" is this."""
        with monkeypatch.context() as patch, _Calls(self), _Accesses(self):
            patch.setattr(torch.cuda, "Stream", lambda device: _Stream(self))
            patch.setattr(torch.cuda, "Event", lambda: _Event(self))
            patch.setattr(torch.cuda, "current_stream", lambda device: self._as_stream(self.current))
            patch.setattr(torch.cuda, "stream", self._on)
            yield self

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the GPU, which the current stream has written."""
        made = torch.empty_like(values, device="cuda")
        made.copy_(values)
        return made

    def keep(self, tensor: torch.Tensor) -> None:
        self._gpu.add(tensor.untyped_storage().data_ptr())
        self._kept.append(tensor)

    def access(self, what: str, tensors: list[tuple[torch.Tensor, bool]]) -> None:
        """One step: of the current stream if the GPU's memory takes part, else of the host. (tensor, is written)"""
        gpu = any(each.untyped_storage().data_ptr() in self._gpu for each, _ in tensors)
        line = self.current if gpu else self.host
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

    def _as_stream(self, line: Timeline) -> _Stream:
        return _Stream(self, line)

    @contextlib.contextmanager
    def _on(self, stream: _Stream) -> Iterator[None]:
        was, self.current = self.current, stream.line
        try:
            yield
        finally:
            self.current = was

    def new(self, kind: str) -> Timeline:
        self._made += 1
        return Timeline(f"{kind} {self._made}")


class _Stream:
    def __init__(self, streams: Streams, line: Timeline | None = None) -> None:
        self._streams, self.line = streams, line or streams.new("stream")

    def wait_stream(self, other: _Stream) -> None:
        self.line.join(self._streams.host)
        self.line.join(other.line)

    def wait_event(self, event: _Event) -> None:
        self.line.join(event.line)


class _Event:
    def __init__(self, streams: Streams) -> None:
        self._streams, self.line = streams, streams.new("event")

    def record(self, stream: _Stream) -> None:
        self.line.clock = dict(stream.line.clock)

    def synchronize(self) -> None:
        self._streams.host.join(self.line)


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
        gpu = any(each.untyped_storage().data_ptr() in self._streams._gpu for each, _ in tensors)
        if returned is None and isinstance(made, torch.Tensor):
            if gpu:
                self._streams.keep(made)
            tensors.append((made, True))
        self._streams.access(func._schema.name.removeprefix("aten::"), tensors)
        return made


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes from a tensor's first to its last value."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize
