"""What a trace says: events as Kineto writes them, made up, so that what they amount to is known."""

from __future__ import annotations

import itertools

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


class Made:
    """A trace in the making; times in microseconds."""

    def __init__(self):
        self.events, self.numbers = [], itertools.count(1)

    def span(self, name, began, ended, thread=HOST):
        more = {"External id": next(self.numbers), "Record function id": 0}
        self._add("user_annotation", name, began, ended - began, thread, more)

    def epochs(self, spans, lasts):
        """Epochs 4 and 5, of so many microseconds each."""
        for number, start in ((4, 0), (5, 2000)):
            for name, (began, ended) in (spans | {f"epoch {number}": (0, lasts)}).items():
                self.span(name, start + began, start + ended)

    def call(self, name, at, *launches, thread=HOST, cat="cuda_runtime"):
        """launches: (category, name, duration) of what runs on the GPU for it, much later."""
        of = {"External id": 1, "correlation": next(self.numbers)}
        self._add(cat, name, at, 3.5, thread, of | {"cbid": 211})
        for kind, what, taken in launches:
            self._add(kind, what, at + 50_000, taken, COPIES, of | {"device": 0, "stream": COPIES})

    def kernel(self, at, taken, thread=HOST):
        self.call("cudaLaunchKernel", at, ("kernel", "void mgg::aggregate", taken), thread=thread)

    def _add(self, cat, name, began, taken, thread, more):
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": began, "dur": taken}
        self.events.append(event | {"args": more})


@pytest.fixture
def made():
    """Two epochs of 1000 us, among all else that is in a trace."""
    made = Made()
    made.epochs(QUICK, 1000)
    for start in (0, 2000):
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


STEP = ("epoch", "step")
LOSS, BACKWARD, READ = (*STEP, "loss"), (*STEP, "backward"), ("epoch", "read the loss")
LAYER = (*BACKWARD, "layer 1 backward: aggregate")


def test_a_span_has_its_time_and_what_is_launched_in_it_and_in_those_within(rng, made):
    made.kernel(350, 400.0, AUTOGRAD)  # in the first epoch's layer
    made.kernel(2350, 200.0, AUTOGRAD)
    made.kernel(450, 30.0)  # backward, after the layer
    made.call("cudaMemsetAsync", 20, ("gpu_memset", "Memset (Device)", 8.0))
    made.call("cuLaunchKernelEx", 530, ("kernel", "adam", 5.0), cat="cuda_driver")
    made.call("cudaGraphLaunch", 540, ("kernel", "a", 1.0), ("kernel", "b", 2.0))
    made.kernel(1550, 1e6)  # between epochs
    made.call("cudaLaunchKernel", 560)  # whose kernel the trace has lost
    found = digest(rng, made)
    assert found.epochs == 2
    assert {cost.calls for cost in found.spans.values()} == {2}
    assert {path: pytest.approx((cost.host_ms, cost.gpu_ms)) for path, cost in found.spans.items()} == {
        ("epoch",): (2.0, 0.646),
        STEP: (1.18, 0.646),
        LOSS: (0.1, 0.0),
        BACKWARD: (0.6, 0.63),
        LAYER: (0.2, 0.6),
        (*STEP, "optimiser"): (0.16, 0.008),
        READ: (0.2, 0.0),
    }


TO_HOST, TO_PINNED = "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pinned)"
TO_GPU, WITHIN = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoD (Device -> Device)"


@pytest.mark.parametrize(
    ("at", "name", "copied", "where"),
    [
        (120, "cudaStreamSynchronize", None, LOSS),
        (120, "cudaStreamSynchronize_ptsz", None, LOSS),
        (350, "cuStreamSynchronize", None, LAYER),  # the driver's
        (20, "cudaDeviceSynchronize", None, STEP),
        (20, "cudaEventSynchronize", None, STEP),
        (20, "cudaMalloc", None, STEP),
        (20, "cudaFree", None, STEP),
        (20, "cudaMemcpy", TO_GPU, STEP),
        (120, "cudaMemcpyAsync", TO_HOST, LOSS),
        (750, "cudaMemcpyAsync", TO_HOST, READ),
        (120, "cudaMemcpyAsync", TO_PINNED, None),
        (120, "cudaMemcpyAsync", TO_GPU, None),
        (120, "cudaMemcpyAsync", WITHIN, None),
        (120, "cudaStreamWaitEvent", None, None),
        (120, "cudaEventRecord", None, None),
        (120, "cudaMallocAsync", None, None),
        (1550, "cudaStreamSynchronize", None, None),
    ],
)
def test_what_waits_and_where(rng, made, at, name, copied, where):
    thread, cat = (AUTOGRAD, "cuda_driver") if where == LAYER else (HOST, "cuda_runtime")
    launches = [("gpu_memcpy", copied, 2.0)] if copied else []
    made.call(name, at, *launches, thread=thread, cat=cat)
    assert digest(rng, made).waits == ({(where, name.removesuffix("_ptsz")): 1} if where else {})


def test_an_epoch_has_the_times_of_the_slowest_rank_and_the_waits_of_each(rng, made):
    other = Made()
    other.epochs(SLOW, 1500)
    for start in (0, 2000):
        other.kernel(start + 120, 90.0)
    made.kernel(120, 100.0)
    for name, at in (("cudaStreamSynchronize", 120), ("cudaStreamSynchronize", 130), ("cudaMalloc", 2020)):
        made.call(name, at)
    digests = [digest(rng, other), digest(rng, made)]
    rows = trace.slowest(digests[::-1])
    spans = [("epoch",), STEP, LOSS, BACKWARD, LAYER, (*STEP, "optimiser"), (*STEP, "sum gradients")]
    assert [tuple(row["span"]) for row in rows] == [*spans, READ, ("epoch", "evaluate")]
    by_name = {row["span"][-1]: row for row in rows}
    assert by_name["epoch"]["host_ms"] == pytest.approx(1.5)  # the other rank's
    assert by_name["step"]["host_ms"] == pytest.approx(0.59)  # this one's
    assert by_name["loss"]["gpu_ms"] == pytest.approx(0.09)  # 0.05 here, of two epochs
    assert {row["calls"] for row in rows} == {1}
    assert trace.waits(digests) == [
        {"rank": 1, "span": list(STEP), "call": "cudaMalloc", "calls": 0.5},
        {"rank": 1, "span": list(LOSS), "call": "cudaStreamSynchronize", "calls": 1.0},
    ]


def test_no_epoch_is_no_span():
    none = trace.digest([])
    assert (none.epochs, trace.slowest([none]), trace.waits([none])) == (0, [], [])
