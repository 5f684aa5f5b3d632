"""An epoch as a CUDA graph: launched once by the host, and replayed from then on by the GPU.

A graph keeps the addresses, sizes and scalars of its recording. So shapes must not change, and the epoch's number
(`nn.layers.random.Draws`) and Adam's steps are in device memory.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.backends.base import Meter, Recording, Stream

EAGER_STEPS = 3  # before the recording: they allocate, start libraries, and run what is slow the first time


class Replayed:
    """Calls ``launch``, and after a few calls replays a recording of it. The meter counts each replay, but no times.

    stream: of the launches, whose meter counts. record: None calls ``launch`` each time. everybody: collective, returns
    whether all ranks pass True: ranks that replay and ranks that launch would use the buffers of their peers in
    different orders. held: nothing is recorded while it is true. failure: why recording failed, else "".
    """

    def __init__(
        self,
        launch: Callable[[], None],
        stream: Stream,
        record: Callable[[Callable[[], None]], Recording] | None,
        everybody: Callable[[bool], bool] = bool,
    ) -> None:
        self._launch, self._stream, self._record, self._everybody = launch, stream, record, everybody
        self._left = EAGER_STEPS
        self._recording: Recording | None = None
        self._counted = Meter()
        self.held = False
        self.failure = ""

    @property
    def recorded(self) -> bool:
        """Whether calls replay the recording."""
        return self._recording is not None

    def __call__(self) -> None:
        """Launch or replay."""
        if self._left == 0 and self._record is not None and not self.held:
            self._try_recording(self._record)
            self._record = None
        if self._recording is None:
            self._left = max(0, self._left - 1)
            self._launch()
        else:
            self._stream.meter.add(self._counted)
            self._recording.replay()

    def _try_recording(self, record: Callable[[Callable[[], None]], Recording]) -> None:
        meter = self._stream.meter
        meter.taken()
        try:
            self._recording = record(self._launch)
        except RuntimeError as error:  # from CUDA: a call of a library cannot be recorded
            self.failure = " ".join(str(error).split())
        self._counted = meter.taken()
        if not self._everybody(self.recorded):
            self.failure = self.failure or "another rank cannot record"
            self.close()

    def close(self) -> None:
        """Free the recording; calls launch again."""
        if self._recording is not None:
            self._recording.reset()
        self._recording = None
