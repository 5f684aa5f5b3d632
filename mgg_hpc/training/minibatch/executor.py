"""Carry out plans of hybrid mini-batches (plan/hybrid.py): a pool of threads, a link, and the thread that trains.

Batches are yielded in the order of their numbers, whatever the plan and the clock, so a run has the same bits with any
plan and without one. Threads wait for slots of the buffers; a batch is copied once the device has room for it.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...nn.sampling.batches import Batch, Batches
from ...nn.sampling.source import Source
from ...nn.spans import span
from ...plan import hybrid
from ...plan.hybrid import Phases, Plan
from .operators import Prepared, Work, called

CPU, COPY, TRAIN = ("batch", "cpu"), ("transfer", "copy"), ("train", "device")
DEVICE, DIRECT = ("batch", "device"), ("transfer", "direct")
# Names as in `Phases`.
OF_PHASE = {CPU: "cpu", COPY: "copy", DEVICE: "device", DIRECT: "device", TRAIN: "train"}
OPERATOR = list(OF_PHASE)  # by number


class Activity(NamedTuple):
    """A call of an operator for a batch.

    overlap: that of the batch, counted from 0. thread: its name. begin, end: seconds since the run began.
    """

    operator: tuple[str, str]
    number: int
    overlap: int
    thread: str
    begin: float
    end: float


class Run:
    """Prepares the batches of an epoch as a plan says: as many as it has, from number ``first`` on.

    began: time.perf_counter() at the begin. seconds: duration, once it has ended.
    """

    def __init__(self, source: Source, batches: Batches, plan: Plan, epoch: int, first: int = 0) -> None:
        self._work = Work(source, batches, epoch, batches.sampling(epoch))
        self.epoch = epoch
        self._plan, self._first, self._stream = plan, first, source.backend.stream
        self._of_cpu = list(plan.of_cpu(first))
        self._copies: deque[Future[tuple[Batch | Prepared, Any]]] = deque()  # with stamps
        self._trained, self._ended, self._moved = first, False, threading.Condition()
        # Operator, batch, thread, begin and end: functions, as a GPU may not be there yet; then 40 bytes a call.
        self._begun: deque[tuple[int, int, int, Callable[[], float], Callable[[], float]]] = deque()
        self._calls, self._threads = array.array("d"), dict[str, int]()  # number of each thread's name
        self.began = self.seconds = 0.0

    def activities(self) -> Iterator[Activity]:
        """Yield all calls of operators. To be called once the GPU, if any, has finished."""
        ends = list(itertools.accumulate(sum(each) for each in self._plan.each()))
        for operator, number, thread, begin, end in self._settled().tolist():
            overlap, name = bisect.bisect(ends, number - self._first), list(self._threads)[int(thread)]
            yield Activity(OPERATOR[int(operator)], int(number), overlap, name, begin, end)

    def _settled(self) -> NDArray[np.float64]:
        self._settle()
        return np.array(self._calls).reshape(-1, 5)

    def _settle(self, trained: int | None = None) -> None:
        """Store times of calls as numbers: of batches before ``trained``, which a GPU has finished, or all."""
        for _ in range(len(self._begun)):
            operator, number, thread, begin, end = call = self._begun.popleft()
            if trained is None or number < trained:
                self._calls.extend((operator, number, thread, begin(), end()))
            else:
                self._begun.append(call)

    def spent(self) -> dict[str, NDArray[np.float64]]:
        """Return the seconds of each batch by phase, in the order of their numbers."""
        calls, spent = self._settled(), {}
        operator, number = calls[:, :2].astype(int).T
        for name in dict.fromkeys(OF_PHASE.values()):
            mine = np.array([each == name for each in OF_PHASE.values()])[operator]
            seconds = np.bincount(number[mine], (calls[:, 4] - calls[:, 3])[mine])
            spent[name] = seconds[np.unique(number[mine])]
        return spent

    def batches(self) -> Generator[Batch]:
        """Yield the batches. Threads end with the generator."""
        held, (waiting, _), workers = dict[int, Batch](), self._plan.buffers, self._plan.phases.workers
        self._pool = ThreadPoolExecutor(workers, "batch cpu")
        self._link = ThreadPoolExecutor(1, "transfer copy")
        self.began, self._origin = time.perf_counter(), self._stream.stamp()
        try:
            self._link.submit(self._begin, range(waiting + workers)).result()
            for prepares, number in self._plan.program(self._first):
                if prepares:
                    with span("sample"):
                        prepared = self._timed(DEVICE, number, number)
                    held[number] = self._timed(DIRECT, number, prepared)
                    continue
                arrived = [held.pop(number) if number in held else self._arrived()]
                yield replace(self._whole(arrived.pop()), during=partial(self._counted, TRAIN, number))
                self._advance(number + 1)
                self._settle(number)  # the host has waited for the step before
        finally:
            self.seconds = time.perf_counter() - self.began
            self._advance(self._trained, ended=True)
            self._pool.shutdown(cancel_futures=True)
            self._link.shutdown(cancel_futures=True)

    @contextlib.contextmanager
    def _counted(self, operator: tuple[str, str], number: int) -> Iterator[None]:
        """Store when a call begins and ends: by the clock on the CPU, else by the device's stream."""
        begin = self._now(operator)
        try:
            yield
        finally:
            thread = threading.current_thread().name
            with self._moved:
                line = self._threads.setdefault(thread, len(self._threads))
            self._begun.append((OPERATOR.index(operator), number, line, begin, self._now(operator)))

    def _now(self, operator: tuple[str, str]) -> Callable[[], float]:
        if operator != CPU:
            return self._stream.since(self._origin)
        now = time.perf_counter() - self.began
        return lambda: now

    def _timed(self, operator: tuple[str, str], number: int, given: Any) -> Any:
        with self._counted(operator, number):
            return self._call(operator, number, given)

    def _call(self, operator: tuple[str, str], number: int, given: Any) -> Any:
        # Its InputError is this rank's own: ranks in the middle of a step cannot agree on one.
        agreed = self._work.source.comm.size == 1
        return called(*operator, self._work, given, (number, self.epoch), agreed=agreed)

    def _advance(self, trained: int, *, ended: bool = False) -> None:
        with self._moved:
            self._trained, self._ended = trained, ended
            self._moved.notify_all()

    def _begin(self, places: Iterable[int]) -> None:
        """Begin to prepare and copy the CPU's batches at these places. Only the link's thread calls it."""
        for place in (each for each in places if each < len(self._of_cpu)):
            made = self._pool.submit(self._prepare, self._of_cpu[place])
            self._copies.append(self._link.submit(self._copy, place, made))

    def _prepare(self, number: int) -> Prepared:
        if not self._plan.buffers[0]:
            self._wait_for_room(number)
        prepared: Prepared = self._timed(CPU, number, number)
        return prepared

    def _copy(self, place: int, made: Future[Prepared]) -> tuple[Batch | Prepared, Any]:
        """Copy a batch once there is room for it on the device."""
        prepared, number = made.result(), self._of_cpu[place]
        self._wait_for_room(number)
        with self._stream.beside():
            copied = self._timed(COPY, number, prepared), self._stream.stamp()
        self._begin([place + self._plan.buffers[0] + self._plan.phases.workers])  # in its slot
        return copied

    def _wait_for_room(self, number: int) -> None:
        """Wait for one of the device's slots: one for each batch in its buffer, and for the one in training."""
        with self._moved:
            while self._trained < number - self._plan.buffers[1] and not self._ended:
                self._moved.wait()

    def _whole(self, arrived: Batch | Prepared) -> Batch:
        """Return a batch with its input rows; missing ones are gathered by this thread, which trains."""
        if isinstance(arrived, Batch):
            return arrived
        batch: Batch = self._call(DIRECT, arrived.number, arrived)
        return batch

    def _arrived(self) -> Batch | Prepared:
        with span("sample"):
            batch, stamp = self._copies.popleft().result()
        found = (getattr(batch, name, None) for name in ("x", "y"))
        self._stream.wait(stamp, *(each for each in found if isinstance(each, Tensor)))
        return batch


@dataclass
class Hybrid:
    """How a job's batches are prepared.

    name: of the plan. phases: of a batch, of the slowest rank. spread: their coefficients of variation, by name. note:
    where they come from. most: batches that wait on each side. run: the last whole epoch.
    """

    name: str
    phases: Phases
    spread: dict[str, float]
    note: str
    most: int
    run: Run | None = None

    def plans(self, batches: int) -> dict[str, Plan]:
        """Return the plans of so many batches."""
        return hybrid.plans(self.phases, batches, (self.most, self.most))

    def facts(self, batches: int) -> dict[str, str]:
        """Return what is known of an epoch before it is run, for the user."""
        plans, times, workers = self.plans(batches), asdict(self.phases), self.phases.workers
        plan = plans[self.name]
        done = {
            "cpu": "prepared by a CPU thread" + (f" (of {workers})" if workers > 1 else ""),
            "copy": "copied to the device",
            "device": "prepared by the device",
            "train": "trained on",
        }
        each = (f"{done[name]} {1e3 * times[name]:.2f} ms ± {cv:.0%}" for name, cv in self.spread.items())
        expected = (f"{name} {1e3 * found.seconds:.0f} ms" for name, found in plans.items())
        return {
            "phases": f"a batch is {', '.join(each)}; {self.note}",
            "prepare": f"by plan {self.name}: {plan.on_cpu} batches by the CPU, {plan.on_device} by the device; "
            f"buffers of {plan.buffers[0]} and {plan.buffers[1]} batches",
            "epoch": f"{1e3 * plan.seconds:.0f} ms expected; by plan {', '.join(expected)}; no plan takes less than "
            f"{1e3 * hybrid.bound(self.phases, batches):.0f} ms",
        }

    def summary(self, batches: int) -> dict[str, Any]:
        """Return the entry of summary.json. busy: share of the last whole epoch in which each side worked."""
        plan, times = self.plans(batches)[self.name], asdict(self.phases)
        workers, busy = times.pop("workers"), dict[str, float]()
        if self.run is not None:
            cpu, copy, device, train = (sum(each) for each in self.run.spent().values())
            spent = {"cpu": cpu / workers, "link": copy + device, "device": device + train}
            busy = {name: seconds / self.run.seconds for name, seconds in spent.items()}
        return {
            "by": self.name,
            "batches": {"cpu": plan.on_cpu, "device": plan.on_device},
            "buffers": dict(zip(("cpu", "device"), plan.buffers, strict=True)),
            "workers": workers,
            "phases_ms": {name: 1e3 * seconds for name, seconds in times.items()},
            "variation": self.spread,
            "expected_ms": 1e3 * plan.seconds,
            "bound_ms": 1e3 * hybrid.bound(self.phases, batches),
            "expected_busy": plan.busy,
            "busy": busy,
        }

    def epoch(self, source: Source, batches: Batches, epoch: int, first: int) -> Generator[Batch]:
        """Yield the batches of an epoch from number ``first`` on."""
        run = Run(source, batches, self.plans(batches.steps - first)[self.name], epoch, first)
        if not first:
            self.run = run
        yield from run.batches()
