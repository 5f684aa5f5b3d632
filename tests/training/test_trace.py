"""What a trace says: events as Kineto writes them, made up, so that what they amount to is known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from mgg_hpc.training.profile import trace

HOST, AUTOGRAD, COPIES = 100, 101, 7  # threads, and a stream
# When spans of an epoch begin and end, of one rank and of another.
QUICK = {
    "step": (10, 600),
    "loss": (100, 150),
    "backward": (200, 500),
    "optimiser": (510, 590),
    "Optimizer.step#Adam.step": (511, 589),
    "read the loss": (700, 800),
}
SLOW = {"evaluate": (700, 900), "step": (10, 510), "loss": (100, 150), "sum gradients": (400, 450)}


@dataclass
class Made:
    """A trace in the making; times in microseconds."""

    events: list[dict] = field(default_factory=list)
    numbers: itertools.count = field(default_factory=lambda: itertools.count(1))

    def span(self, name, began, ended, thread=HOST):
        more = {"args": {"External id": next(self.numbers), "Record function id": 0}}
        self._add("user_annotation", name, began, ended - began, thread, more)

    def spans(self, start, of):
        for name, (began, ended) in of.items():
            self.span(name, start + began, start + ended)

    def call(self, name, at, *, launches=(), thread=HOST, cat="cuda_runtime"):
        """launches: (category, name, duration) of what runs on the GPU for it, much later."""
        correlation = next(self.numbers)
        args = {"External id": 1, "cbid": 211, "correlation": correlation}
        self._add(cat, name, at, 3.5, thread, {"args": args})
        for kind, what, taken in launches:
            args = {"External id": 1, "device": 0, "stream": COPIES, "correlation": correlation}
            self._add(kind, what, at + 50_000, taken, COPIES, {"args": args})

    def kernel(self, at, taken, thread=HOST):
        self.call("cudaLaunchKernel", at, launches=[("kernel", "void mgg::aggregate", taken)], thread=thread)

    def copy(self, at, name, thread=HOST):
        self.call("cudaMemcpyAsync", at, launches=[("gpu_memcpy", name, 2.0)], thread=thread)

    def _add(self, cat, name, began, taken, thread, more):
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": began, "dur": taken}
        self.events.append(event | more)


@pytest.fixture
def made(rng):
    """Two epochs of 1000 us, among all else that is in a trace."""
    made = Made()
    for number, start in ((4, 0), (5, 2000)):
        made.spans(start, QUICK | {f"epoch {number}": (0, 1000)})
        made.span("layer 1 backward: aggregate", start + 300, start + 400, AUTOGRAD)
    made.span("layer 1 forward: aggregate", 1500, 1600)  # between epochs
    of_step = {"pid": 1, "tid": HOST, "ts": 120.0}
    made.events += [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}} | of_step,
        {"ph": "s", "id": 2, "cat": "ac2g", "name": "ac2g"} | of_step,
        {"ph": "X", "cat": "cpu_op", "name": "cudaStreamSynchronize", "dur": 5, "args": {}} | of_step,
        {"ph": "X", "cat": "gpu_user_annotation", "name": "loss", "dur": 5, "args": {}} | of_step,
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "dur": 9000.0} | of_step,
    ]
    return made


def digest(rng, made):
    """Return the digest of the events in a drawn order."""
    return trace.digest([made.events[i] for i in rng.permutation(len(made.events))])


def test_spans_by_where_they_stand(rng, made):
    found = digest(rng, made)
    assert found.epochs == 2
    milliseconds = {path: (cost.calls, pytest.approx(cost.host_ms)) for path, cost in found.spans.items()}
    step = ("epoch", "step")
    assert milliseconds == {
        ("epoch",): (2, 2.0),
        step: (2, 1.18),
        (*step, "loss"): (2, 0.1),
        (*step, "backward"): (2, 0.6),
        (*step, "backward", "layer 1 backward: aggregate"): (2, 0.2),
        (*step, "optimiser"): (2, 0.16),
        ("epoch", "read the loss"): (2, 0.2),
    }


def test_what_a_span_launches_is_its_own_and_that_of_those_around_it(rng, made):
    made.kernel(350, 400.0, AUTOGRAD)  # in the first epoch's layer
    made.kernel(2350, 200.0, AUTOGRAD)
    made.kernel(450, 30.0)  # backward, after the layer
    made.call("cudaMemsetAsync", 20, launches=[("gpu_memset", "Memset (Device)", 8.0)])
    made.call("cuLaunchKernelEx", 530, launches=[("kernel", "adam", 5.0)], cat="cuda_driver")
    made.call("cudaGraphLaunch", 540, launches=[("kernel", "a", 1.0), ("kernel", "b", 2.0)])
    made.kernel(1550, 1e6)  # between epochs
    made.call("cudaLaunchKernel", 560)  # whose kernel the trace has lost
    found = {path: pytest.approx(cost.gpu_ms) for path, cost in digest(rng, made).spans.items()}
    step = ("epoch", "step")
    assert found == {
        ("epoch",): 0.646,
        step: 0.646,
        (*step, "loss"): 0.0,
        (*step, "backward"): 0.63,
        (*step, "backward", "layer 1 backward: aggregate"): 0.6,
        (*step, "optimiser"): 0.008,
        ("epoch", "read the loss"): 0.0,
    }


TO_HOST, TO_PINNED = "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pinned)"
STEP, LOSS = ("epoch", "step"), ("epoch", "step", "loss")


@pytest.mark.parametrize(
    ("at", "name", "copied", "where"),
    [
        (120, "cudaStreamSynchronize", None, LOSS),
        (120, "cudaStreamSynchronize_ptsz", None, LOSS),
        (20, "cudaDeviceSynchronize", None, STEP),
        (20, "cudaEventSynchronize", None, STEP),
        (20, "cudaMalloc", None, STEP),
        (20, "cudaFree", None, STEP),
        (20, "cudaMemcpy", "Memcpy HtoD (Pageable -> Device)", STEP),
        (120, "cudaMemcpyAsync", TO_HOST, LOSS),
        (750, "cudaMemcpyAsync", TO_HOST, ("epoch", "read the loss")),
        (120, "cudaMemcpyAsync", TO_PINNED, None),
        (120, "cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", None),
        (120, "cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", None),
        (120, "cudaStreamWaitEvent", None, None),
        (120, "cudaEventRecord", None, None),
        (120, "cudaMallocAsync", None, None),
        (1550, "cudaStreamSynchronize", None, None),
    ],
)
def test_what_waits_and_where(rng, made, at, name, copied, where):
    made.call(name, at, launches=[("gpu_memcpy", copied, 2.0)] if copied else [])
    assert digest(rng, made).waits == ({(where, name.removesuffix("_ptsz")): 1} if where else {})


def test_the_driver_s_calls_wait_too(rng, made):
    made.call("cuStreamSynchronize", 350, cat="cuda_driver", thread=AUTOGRAD)
    (found,) = digest(rng, made).waits
    assert found == ((*STEP, "backward", "layer 1 backward: aggregate"), "cuStreamSynchronize")


def test_an_epoch_of_the_slowest_rank(rng, made):
    other = Made()
    for number, start in ((4, 0), (5, 2000)):
        other.spans(start, SLOW | {f"epoch {number}": (0, 1500)})
        other.kernel(start + 120, 90.0)
    made.kernel(120, 100.0)
    rows = trace.slowest([digest(rng, made), digest(rng, other)])
    assert [row["span"] for row in rows] == [
        ["epoch"],
        ["epoch", "step"],
        ["epoch", "step", "loss"],
        ["epoch", "step", "backward"],
        ["epoch", "step", "backward", "layer 1 backward: aggregate"],
        ["epoch", "step", "optimiser"],
        ["epoch", "step", "sum gradients"],
        ["epoch", "read the loss"],
        ["epoch", "evaluate"],
    ]
    by_name = {row["span"][-1]: row for row in rows}
    assert by_name["epoch"]["host_ms"] == pytest.approx(1.5)  # the other rank's
    assert by_name["step"]["host_ms"] == pytest.approx(0.59)  # this one's
    assert by_name["loss"]["gpu_ms"] == pytest.approx(0.09)  # 0.05 here, of two epochs
    assert {row["calls"] for row in rows} == {1}


def test_waits_of_each_rank(rng, made):
    other = Made()
    other.span("epoch 4", 0, 100)
    made.call("cudaStreamSynchronize", 120)
    made.call("cudaStreamSynchronize", 130)
    made.call("cudaMalloc", 2020)
    rows = trace.waits([digest(rng, other), digest(rng, made)])
    assert rows == [
        {"rank": 1, "span": list(STEP), "call": "cudaMalloc", "calls": 0.5},
        {"rank": 1, "span": list(LOSS), "call": "cudaStreamSynchronize", "calls": 1.0},
    ]


def test_no_epoch_is_no_span(rng):
    assert trace.digest([]).epochs == 0
    assert (trace.slowest([trace.digest([])]), trace.waits([trace.digest([])])) == ([], [])
