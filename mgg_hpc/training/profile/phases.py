"""Time of a run's epochs by phase and rank, without a profiler: the table at the end of a run.

On CPUs the spans of an epoch are timed (`nn.spans.Clock`). On a GPU the host only launches, so its phases are those
that stamps of the stream measure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...nn.spans import Clock, clocked
from ...runtime.backends.base import Meter

AGGREGATE, WAIT, DENSE, GRADIENTS = "aggregate", "wait for peers", "dense", "sum gradients"
LOSS, EVALUATE, CHECKPOINT, OTHER = "loss and optimiser", "evaluate", "checkpoint", "other"
PROFILER = "profiler"
SAMPLE, GATHER = "wait for samples", "gather"  # of training on batches
PHASES = (AGGREGATE, WAIT, DENSE, LOSS, GRADIENTS, EVALUATE, CHECKPOINT, PROFILER, OTHER)
STEP = "rest of the step"  # of GPUs

_OVER_EDGES = ("aggregate", "attend", "extend", "dot products", "edge sums")
STAGES = {  # phase of each span
    **{f"{way}: {stage}": AGGREGATE for way in ("forward", "backward") for stage in _OVER_EDGES},
    "step": DENSE,
    "loss": LOSS,
    "optimiser": LOSS,
    "sum gradients": GRADIENTS,
    "evaluate": EVALUATE,
    "read the scores": EVALUATE,
    "checkpoint": CHECKPOINT,
    "profiler": PROFILER,
}
BATCH_STAGES = {"sample": SAMPLE, "gather": GATHER}


class Phases:
    """Seconds of this rank's epochs by phase.

    device: torch's name. sampled: True if epochs consist of batches. Attribute epochs: number of epochs counted.
    """

    def __init__(self, device: str, *, sampled: bool = False) -> None:
        self.epochs = 0
        stages = STAGES | BATCH_STAGES if sampled else STAGES
        self._phases = (SAMPLE, GATHER, *PHASES) if sampled else PHASES
        self._clock = Clock(stages, frozenset({EVALUATE, CHECKPOINT}), OTHER) if device == "cpu" else None
        self._all = self._step = self._aggregate = self._evaluate = self._waited = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time within ``with``."""
        began = time.perf_counter()
        with clocked(self._clock):
            yield
        self._all += time.perf_counter() - began

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """Count the time that the profiler takes to start or stop. It would see half of a span."""
        if self._clock is not None:
            self._clock.enter("profiler")
        yield
        if self._clock is not None:
            self._clock.leave()

    def add(self, meter: Meter, step: float, evaluate: float) -> None:
        """Add an epoch: the meter of its training step, and the seconds of step and evaluation."""
        self.epochs += 1
        self._waited += meter.waited
        self._step, self._aggregate = self._step + step, self._aggregate + meter.seconds
        self._evaluate += evaluate

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase, whose sum is the time `counted`."""
        if self._clock is None:
            return {
                AGGREGATE: self._aggregate,
                STEP: self._step - self._aggregate,
                EVALUATE: self._evaluate,
                OTHER: self._all - self._step - self._evaluate,
            }
        found = {phase: self._clock.seconds.get(phase, 0.0) for phase in self._phases}
        # A few layers publish before they aggregate.
        within = min(self._waited, found[AGGREGATE])
        found[WAIT], found[AGGREGATE] = self._waited, found[AGGREGATE] - within
        found[DENSE] -= self._waited - within
        return found


def breakdown(ranks: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return for each phase its minimum, mean and maximum over ranks, its share of all time, and its imbalance.

    ranks: the time of each phase, in any unit, of each rank. share: of the sum over ranks. imbalance: the maximum over
    the mean, 1 if all ranks take equally long.
    """
    total = sum(sum(each.values()) for each in ranks)
    rows = []
    for phase in ranks[0]:
        times = [each[phase] for each in ranks]
        mean = sum(times) / len(times)
        rows.append(
            {
                "phase": phase,
                "min": min(times),
                "mean": mean,
                "max": max(times),
                "share": sum(times) / total if total else 0.0,
                "imbalance": max(times) / mean if mean > 0 else 1.0,
            }
        )
    return rows
