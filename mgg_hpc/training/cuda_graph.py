"""An epoch as a CUDA graph: launched once by the host, and replayed from then on by the GPU.

What the host decides is frozen: addresses, sizes, scalars. So an epoch may be recorded where shapes do not change, the
epoch's number lies in device memory (`nn.layers.random.Draws`), and Adam counts its steps there.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.backends.base import Backend, Meter, Recording

EAGER_STEPS = 3  # allocate what is kept, start libraries, and find what runs slowly the first time


class Replayed:
    """``launch``, which is recorded after a few calls. The meter counts the same for each replay; times are not taken.

    record: None where nothing can be recorded, and ``launch`` is called each time. everybody: whether all ranks say
    yes, collective: a rank that replays goes through the buffers of its peers in another order than one that launches.
    failure: why nothing is replayed, if that turns out.
    """

    def __init__(
        self,
        launch: Callable[[], None],
        backend: Backend,
        record: Callable[[Callable[[], None]], Recording] | None,
        everybody: Callable[[bool], bool] = bool,
    ) -> None:
        self._launch, self._backend, self._record, self._everybody = launch, backend, record, everybody
        self._left = EAGER_STEPS
        self._recording: Recording | None = None
        self._counted = Meter()
        self.failure = ""

    @property
    def recorded(self) -> bool:
        """Whether calls replay by now."""
        return self._recording is not None

    def __call__(self) -> None:
        """Launch once more."""
        if self._left == 0 and self._record is not None:
            self._try_recording(self._record)
            self._record = None
        if self._recording is None:
            self._left = max(0, self._left - 1)
            self._launch()
        else:
            self._backend.stream.meter.add(self._counted)
            self._recording.replay()

    def _try_recording(self, record: Callable[[Callable[[], None]], Recording]) -> None:
        meter = self._backend.stream.meter
        meter.taken()
        try:
            self._recording = record(self._launch)
        except RuntimeError as error:  # CUDA's: some call of a library cannot be recorded
            self.failure = " ".join(str(error).split())
        self._counted = meter.taken()
        if not self._everybody(self.recorded):
            self.failure = self.failure or "another rank cannot record"
            self.close()

    def close(self) -> None:
        """Let go of what was recorded; calls launch again."""
        if self._recording is not None:
            self._recording.reset()
        self._recording = None
