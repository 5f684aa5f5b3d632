"""This package, and the floors beneath it: the same rows read in the same order, with the same threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - makes bfloat16 a name of NumPy's
import numpy as np

from mgg_hpc import __version__
from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY, native
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host import components
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

_threads = [1]


def set_threads(count: int) -> None:
    """Set the number of threads of all later runs."""
    _threads[0] = count


def threads() -> int:
    """Return the number of threads of all later runs."""
    return _threads[0]


def about() -> str:
    """Return the version and the instruction set."""
    return f"mgg {__version__} ({native.load().instruction_set()})"


def aggregate(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str, ahead: list[int]
) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg", and a run "floor N" for each prefetch distance N."""
    threads, rows_in = _threads[0], np.load(x, mmap_mode="r")
    pointers, sources = np.load(indptr), np.load(indices)
    count, dim = rows_in.shape
    plan = workload.build(0, np.array([0, count]), pointers, sources, keep_edges=weight is not None)
    edge = None if weight is None else np.load(weight)[plan.edge]
    backend = SerialBackend(0, World(1), Options(DEFAULT_GEOMETRY, threads))
    format = RowFormat(np.dtype(dtype), dim)
    rows = backend.rows(np.array([count]), format, symmetric=True)
    rows.local[:] = rows_in
    out = components.padded(count, format)
    words = rows.local.view(f"u{format.dtype.itemsize}")  # the floor takes no bfloat16
    op = "copy" if edge is None else "mul"

    def mgg() -> np.ndarray:
        backend.aggregate(plan, op, "sum", rows, out, edge=edge)
        return out

    def floor(distance: int) -> tuple[float, None]:
        return native.load().gather_floor(sources, words, distance, threads)[0], None

    # As the baselines that inspect a matrix do before the clock starts.
    for _ in range(native.load().Schedule.SETTLED):
        mgg()
    return {"mgg": mgg} | {f"floor {distance}": partial(floor, distance) for distance in ahead}


def stream(size: int) -> dict[str, Callable[[], Any]]:
    """Return the run "stream", which reads ``size`` bytes from end to end."""
    data = components.aligned_zeros(size)
    data[:] = 1  # pages that were never written are all one page
    return {"stream": lambda: (native.load().stream_read(data, _threads[0])[0], None)}


def epoch(file: str, weights: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return "mgg", one epoch of `mgg train` that returns its loss, and "untrained", the validation rows' loss.

    weights: the file into which the initial weights are written, for the baselines. inputs: the fields of a Shape, and
    what baselines are given.
    """
    from mpi4py import MPI

    from mgg_hpc.tools.bench.epoch import jobs
    from mgg_hpc.tools.bench.epoch.shape import Shape
    from mgg_hpc.training.trainer import Trainer

    shape = Shape(**{each.name: inputs[each.name] for each in fields(Shape)})
    job = jobs.built(Path(file), shape, MPI.COMM_SELF, threads=_threads[0], backend="serial")
    np.savez(weights, **{name: value.numpy() for name, value in job.model.state_dict().items()})
    trainer = Trainer(job, job.graph())
    done = [0]

    def step() -> np.ndarray:
        done[0] += 1
        trainer.step(done[0])
        return np.array(trainer.loss())

    def untrained() -> np.ndarray:
        trainer.evaluate()
        return np.array(trainer.scores().val_loss)

    return {"mgg": step, "untrained": untrained}
