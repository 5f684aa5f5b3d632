"""The timeline of GPUs: the chunks of a halo stand where the trace has the kernels that they belong to."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from mgg_hpc.runtime.backends.base import KernelStamps
from mgg_hpc.tools.report import timeline
from mgg_hpc.training.profile import stamps
from mgg_hpc.training.profile.profiler import trace_name

HALO = "void mgg::aggregate_halo<float, mgg::Sum, 4, 1, false>(mgg::DeviceHaloCall<float>)"
START = 5_000_000.0  # of the epoch, in microseconds
# Two calls of rank 0 by its GPU's clock, in nanoseconds, and when the trace has their kernels, in microseconds.
CALLS = (
    KernelStamps(
        began=700_000,
        ended=760_000,
        to=np.array([1, 1], np.int32),
        pushed=np.array([[701_000, 704_000], [704_500, 709_000]]),
        owners=np.array([1], np.int32),
        seen=np.array([731_000]),
    ),
    KernelStamps(
        began=900_000,
        ended=930_000,
        to=np.array([1], np.int32),
        pushed=np.array([[900_500, 902_500]]),
        owners=np.array([1], np.int32),
        seen=np.array([920_000]),
    ),
)
BEGAN = (START + 100.0, START + 300.0)


def event(cat: str, name: str, ts: float, dur: float) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7}


@pytest.fixture
def trace():
    """Rank 0's; kernels are not in the order of time."""
    kernels = [
        event("kernel", HALO, at, (call.ended - call.began) / 1e3)
        for at, call in zip(BEGAN, CALLS, strict=True)
    ]
    return [
        event("user_annotation", "epoch 4", START, 1000.0),
        event("user_annotation", "layer 1 forward: aggregate", START + 20.0, 8.0),
        event("gpu_memcpy", "Memcpy HtoD", START + 50.0, 5.0),
        *reversed(kernels),
        event("kernel", "ampere_sgemm_128x64_nn", START + 200.0, 30.0),
    ]


def test_chunks_stand_where_their_kernels_are(tmp_path, trace):
    content = [
        [*trace, *stamps.of_kernels(CALLS, trace, 99)],
        [
            event("user_annotation", "epoch 4", START, 1000.0),
            event("user_annotation", "loss", START + 10.0, 5.0),
        ],
    ]
    paths = [tmp_path / trace_name(rank) for rank in range(2)]
    for path, events in zip(paths, content, strict=True):
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    found = timeline.read(dict(enumerate(paths)), 1)
    bars = sorted(
        (bar.rank, bar.lane, bar.kind, round(bar.begin, 6), round(bar.end, 6)) for bar in found.bars
    )
    assert bars == sorted(
        [
            (0, "stages", "aggregate", 0.02, 0.028),
            (1, "stages", "loss and optimiser", 0.01, 0.015),
            (0, "kernels", "copy", 0.05, 0.055),
            (0, "kernels", "kernel", 0.2, 0.23),
            (0, "kernels", "aggregate", 0.1, 0.16),
            (0, "kernels", "aggregate", 0.3, 0.33),
            (0, "rows arrive", "a chunk is seen", 0.131, 0.131),
            (0, "rows arrive", "a chunk is seen", 0.32, 0.32),
            (1, "rows arrive", "a chunk is pushed here", 0.101, 0.104),
            (1, "rows arrive", "a chunk is pushed here", 0.1045, 0.109),
            (1, "rows arrive", "a chunk is pushed here", 0.3005, 0.3025),
        ]
    )
    assert found.views == [pytest.approx((0.0, 1.0)), pytest.approx((0.1 - 0.006, 0.16 + 0.006))]


def test_times_without_their_kernels_are_left_out(trace):
    """Some kernels of a trace may be lost, and then it is not known which."""
    assert len(list(stamps.of_kernels(CALLS, trace, 99))) == 2 + 3 + 2
    assert list(stamps.of_kernels(CALLS, [each for each in trace if each["ts"] != BEGAN[1]], 99)) == []
    assert list(stamps.of_kernels([*CALLS, replace(CALLS[0])], trace, 99)) == []
    assert list(stamps.of_kernels([], trace, 99)) == []
