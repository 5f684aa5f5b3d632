"""summary.json: what a run has reached, what it took, and what each rank's part of it was."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...nn.graph.handle import GraphHandle
from ...runtime import cores, mpi
from ...runtime.backends.native import instruction_set
from .. import memory, report
from ..history import History
from ..job import Job
from .overlap import exchanges

GRAPH_FACTS = ("name", "nodes", "edges", "features", "classes", "multilabel", "uuid")


def summarise(
    job: Job, graph: GraphHandle, history: History, need: memory.Estimate, peak: memory.Peak
) -> dict[str, Any]:
    """Return the content of summary.json. Collective."""
    comm, part = job.comm, job.part
    moved = history.moved
    counted = [moved.local_bytes, moved.remote_bytes, moved.remote_rows, moved.messages]
    totals = np.array(counted, dtype=np.int64)
    mpi.sum_in_rank_order(comm, totals)
    timed = comm.allgather(history.aggregate_ms)
    slowest = np.array([each[: min(map(len, timed))] for each in timed]).max(axis=0)
    phases = comm.allgather(job.phases.seconds)
    return {
        "format": "mgg-summary",
        "version": 1,
        "graph": {name: getattr(part, name) for name in GRAPH_FACTS},
        "model": job.settings.model.name,
        "ranks": comm.size,
        "per_rank": comm.allgather(_rank(job, history)),
        "bounds": part.bounds.tolist(),
        "exchanges": _exchanges(job),
        "machine": _machine(),
        "backend": job.backend.capabilities.name,
        "transfer": str(job.transfer),
        "plan": report.knobs_of(job.backend.options.geometry),
        "tuned": history.tuned,
        "epochs": len(history.epoch_ms),
        "timed_epochs": history.timed_epochs,
        "best_epoch": history.best_epoch,
        "metric": job.metric.name,
        "val_accuracy": history.scores.val,
        "test_accuracy": history.scores.test,
        **({"test_macro_f1": history.scores.macro[2]} if history.scores.macro else {}),
        "final_loss": history.loss,
        "start_ms": {name: 1e3 * max(each[name] for each in phases) for name in phases[0]},
        "epoch_ms": report.spread(history.epoch_ms),
        "eval_ms": report.spread(history.eval_ms),
        "aggregate_ms": report.spread(slowest.tolist()),
        "bytes": {"local": int(totals[0]), "remote": int(totals[1])},
        "remote_rows": int(totals[2]),
        "messages": int(totals[3]),
        "peak_rss_bytes": comm.allgather(peak.read(graph.heap_bytes)),
        "estimated_bytes": comm.allgather(need.peak),
        "heap_bytes": graph.heap_bytes,
        "threads": job.backend.options.threads,
        "mode": job.settings.train.mode,
        "batches": 1 if job.sampled is None else job.sampled.steps,
        **_sampled(job, history),
        **_streamed(job, history),
        "cuda_graph": history.recorded,
        "cuda_graph_failure": history.not_recorded,
        "seed": job.settings.train.seed,
    }


def _sampled(job: Job, history: History) -> dict[str, Any]:
    """Return what is said of batches where there are any: of an epoch, on average. Collective."""
    counts = history.batches
    if job.sampled is None or counts is None:
        return {}
    drawn = np.array([counts.edges, counts.rows], np.int64)
    mpi.sum_in_rank_order(job.comm, drawn)
    epochs = max(1, counts.batches) / job.sampled.steps
    waited = max(job.comm.allgather(counts.waited))
    how = job.sampled.how
    return {
        "sampled": {
            "fanouts": list(how.fanouts),
            "batch_size": how.batch_size,
            "edges": round(int(drawn[0]) / epochs),
            "rows": round(int(drawn[1]) / epochs),
            "wait_ms": 1e3 * waited / epochs,
        }
    }


def _streamed(job: Job, history: History) -> dict[str, Any]:
    """Return what is said of a graph that is streamed: of an epoch on all ranks, ms of the slowest. Collective.

    loaded_bytes: of chunks, in training alone. moved_bytes: read of stores and written to them, in the epoch and its
    evaluation. spilled_bytes: of activations, which are written and read.
    """
    graph = job.streamed
    if graph is None:
        return {}
    epochs = max(1, history.timed_epochs)
    counts = history.moved.stored_bytes, graph.pace.nbytes // epochs, graph.spill.written // epochs
    moved = np.array(counts, np.int64)
    mpi.sum_in_rank_order(job.comm, moved)
    return {
        "streamed": {
            "memory": graph.streaming.memory,
            "in_files": graph.streaming.folder is not None,
            "loaded_bytes": int(moved[0]),
            "moved_bytes": int(moved[1]),
            "spilled_bytes": int(moved[2]),
            "load_ms": 1e3 * max(job.comm.allgather(history.moved.loading)),
        }
    }


def _rank(job: Job, history: History) -> dict[str, Any]:
    """Return this rank's part: its edges of one aggregation, what an epoch moved, and where its time went."""
    moved = history.moved
    return {
        "host": platform.node(),
        **_work(job),
        "remote_rows": moved.remote_rows,
        "bytes": {"local": moved.local_bytes, "remote": moved.remote_bytes},
        "phases_ms": {name: 1e3 * seconds for name, seconds in history.phases.items()},
    }


def _work(job: Job) -> dict[str, int]:
    """Return the rows and edges of this rank in one aggregation."""
    if job.streamed is not None:
        edges = int(job.part.slice.indptr[-1])
        return {"rows": job.streamed.rows, "local_edges": edges, "remote_edges": 0, "halo_rows": 0}
    plan = job.layers[0].forward
    return {
        "rows": plan.destinations,
        "local_edges": plan.local_edges,
        "remote_edges": plan.remote_edges,
        "halo_rows": len(plan.halo),
    }


def _exchanges(job: Job) -> list[dict[str, Any]]:
    """Return the exchanges of a training step, with the bytes of a row without padding."""
    return [
        {
            "layer": each.layer,
            "direction": each.direction,
            "transfer": each.plan.transfer,
            "row_bytes": each.width * job.dtype.itemsize,
        }
        for each in exchanges(job)
    ]


def _machine() -> dict[str, Any]:
    """Return what rank 0 runs on."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_initialized() else {}
    return gpu | {
        "cpu": cores.processor(),
        "cores": cores.available(),
        "memory_bytes": cores.memory_total(),
        "system": f"{platform.system()} {platform.release()}",
        "instruction_set": instruction_set(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mgg": __version__,
    }
