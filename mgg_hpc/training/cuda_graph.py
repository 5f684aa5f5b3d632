"""A training step as a CUDA graph: recorded once, then replayed by the GPU without work for the host.

A graph keeps the addresses, sizes and scalars of its recording. So shapes must not change, and values that do (the
epoch's number in `nn.layers.random.Draws`, Adam's step counts) are in device memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..runtime.backends.base import Meter, Recording, Stream

EAGER_STEPS = 3  # before recording: they allocate, load libraries, and run whatever is slow the first time


class Replayed:
    """Calls ``launch``, and after a few calls replays a recording of it if possible.

    A replay adds the traffic of the recorded launch to the stream's meter, but no times.

    Args:
        launch: launches a step; its computations must depend on device memory only.
        stream: of the launches.
        comm: communicator of the ranks. All of them replay or none: ranks that replay and ranks that launch would use
            their peers' buffers in different orders.
        records: False to call ``launch`` each time.

    Attributes:
        held: while True, nothing is recorded.
        failure: why recording failed, else "".
    """

    def __init__(self, launch: Callable[[], None], stream: Stream, comm: Any, *, records: bool) -> None:
        self._launch, self._stream, self._comm, self._records = launch, stream, comm, records
        self._eager_left = EAGER_STEPS
        self._recording: Recording | None = None
        self._moved = Meter()  # by the recorded launch
        self.held = False
        self.failure = ""

    @property
    def recorded(self) -> bool:
        """Whether calls replay the recording."""
        return self._recording is not None

    def __call__(self) -> None:
        """Launch or replay."""
        if self._eager_left == 0 and self._records and not self.held:
            self._record()
            self._records = False
        if self._recording is None:
            self._eager_left = max(0, self._eager_left - 1)
            self._launch()
        else:
            self._stream.meter.add(self._moved)
            self._recording.replay()

    def _record(self) -> None:
        self._stream.meter.taken()
        try:
            self._recording = self._stream.record(self._launch)
        except RuntimeError as error:  # of CUDA: a library's call cannot be recorded
            self.failure = " ".join(str(error).split())
        self._moved = self._stream.meter.taken()
        if not all(self._comm.allgather(self.recorded)):
            self.failure = self.failure or "another rank cannot record"
            self.close()

    def close(self) -> None:
        """Free the recording; later calls launch again."""
        if self._recording is not None:
            self._recording.reset()
        self._recording = None
