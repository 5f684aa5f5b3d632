"""summary.json: a run's results, times and traffic, in all and of each rank."""

from __future__ import annotations

import platform
import time
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..nn.graph.handle import GraphHandle
from ..nn.inputs.tiered import TieredFeatures
from ..runtime import cores, mpi
from ..runtime.backends.native import instruction_set
from ..runtime.timing import spread
from . import memory
from .history import History
from .job import Job
from .tuning.target import knobs_of

GRAPH_FACTS = ("name", "nodes", "edges", "features", "classes", "multilabel", "uuid")


def summarise(
    job: Job, graph: GraphHandle, history: History, need: memory.Estimate, peak: memory.Peak
) -> dict[str, Any]:
    """Return the content of summary.json. Collective."""
    comm, part, moved = job.comm, job.part, history.moved
    local, remote, remote_rows, messages = _summed(
        comm, moved.local_bytes, moved.remote_bytes, moved.remote_rows, moved.messages
    )
    timed = comm.allgather(history.aggregate_ms)
    slowest = np.array([each[: min(map(len, timed))] for each in timed]).max(axis=0)
    phases = comm.allgather(job.phases.seconds)
    return {
        "format": "mgg-summary",
        "version": 1,
        "graph": {name: getattr(part, name) for name in GRAPH_FACTS},
        "model": job.model.name if job.opened is not None else job.settings.model.name,
        "ranks": comm.size,
        "per_rank": comm.allgather(_rank(job, history)),
        "bounds": part.bounds.tolist(),
        "exchanges": [
            {
                "layer": each.layer,
                "direction": each.direction,
                "transfer": each.plan.transfer,
                "row_bytes": each.format.dim * job.dtype.itemsize,  # without padding
            }
            for each in job.exchanges()
        ],
        "machine": _machine(),
        "backend": job.backend.capabilities.name,
        "transfer": str(job.transfer),
        "plan": knobs_of(job.backend.options.geometry),
        "tuned": history.tuned,
        "epochs": len(history.epoch_ms),
        "timed_epochs": history.timed_epochs,
        "best_epoch": history.best_epoch,
        "metric": job.metric.name,
        "splits": job.labels.totals,
        "train_accuracy": history.scores.train,
        "val_accuracy": history.scores.val,
        "test_accuracy": history.scores.test,
        **({"test_macro_f1": history.scores.macro[2]} if history.scores.macro else {}),
        "final_loss": history.loss,
        "seconds": time.perf_counter() - job.phases.began,
        "start_ms": {name: 1e3 * max(each[name] for each in phases) for name in phases[0]},
        "epoch_ms": spread(history.epoch_ms),
        "eval_ms": spread(history.eval_ms),
        "aggregate_ms": spread(slowest.tolist()),
        "bytes": {"local": local, "remote": remote},
        "remote_rows": remote_rows,
        "messages": messages,
        "peak_rss_bytes": comm.allgather(peak.read(graph.heap_bytes)),
        "estimated_bytes": comm.allgather(need.peak),
        "heap_bytes": graph.heap_bytes,
        "threads": job.backend.options.threads,
        "mode": job.settings.train.mode,
        "batches": 1 if job.sampled is None else job.sampled.steps,
        **_sampled(job, history),
        **_tiers(job, history),
        **_streamed(job, history),
        "cuda_graph": history.recorded,
        "cuda_graph_failure": history.not_recorded,
        "seed": job.settings.train.seed,
    }


def _summed(comm: Any, *counts: int) -> list[int]:
    """Return the sums of counts over all ranks. Collective."""
    totals = np.array(counts, np.int64)
    mpi.sum_in_rank_order(comm, totals)
    return [int(total) for total in totals]


def _sampled(job: Job, history: History) -> dict[str, Any]:
    """Return the entry of a job on batches, {} for others: means per epoch. Collective."""
    counts = history.batches
    if job.sampled is None or counts is None:
        return {}
    edges, rows = _summed(job.comm, counts.edges, counts.rows)
    epochs, how = max(1, counts.batches) / job.sampled.steps, job.sampled.how
    hybrid = job.sampled.hybrid
    return {
        "sampled": {
            "fanouts": list(how.fanouts),
            "batch_size": how.batch_size,
            "edges": round(edges / epochs),
            "rows": round(rows / epochs),
            "wait_ms": 1e3 * max(job.comm.allgather(counts.waited)) / epochs,
            **({} if hybrid is None else {"prepare": hybrid.summary(job.sampled.steps)}),
        }
    }


def _tiers(job: Job, history: History) -> dict[str, Any]:
    """Return the entry of a job whose features are in tiers, {} for others.

    expected, read: shares of the rows that batches read, by tier: as placed, and in each epoch of this process on all
    ranks.
    """
    if not isinstance(job.x, TieredFeatures) or history.batches is None:
        return {}
    x, read = job.x, history.batches.tiers
    return {"tiers": {"score": x.score, "rows": x.rows, "expected": x.expected, "read": read}}


def _streamed(job: Job, history: History) -> dict[str, Any]:
    """Return the entry of a job on a streamed graph, {} for others: of an epoch on all ranks. Collective.

    loaded_bytes: of chunks, in training only. moved_bytes: read from stores and written to them, in the epoch and its
    evaluation. spilled_bytes: of activations, which are written and read. load_ms: of the slowest rank.
    """
    graph, epochs = job.streamed, max(1, history.timed_epochs)
    if graph is None:
        return {}
    loaded, moved, spilled = _summed(
        job.comm, history.moved.stored_bytes, graph.pace.nbytes // epochs, graph.spill.written // epochs
    )
    return {
        "streamed": {
            "memory": graph.streaming.memory,
            "in_files": graph.streaming.folder is not None,
            "loaded_bytes": loaded,
            "moved_bytes": moved,
            "spilled_bytes": spilled,
            "load_ms": 1e3 * max(job.comm.allgather(history.moved.loading)),
        }
    }


def _rank(job: Job, history: History) -> dict[str, Any]:
    """Return this rank's entry: its edges of one aggregation, an epoch's traffic, and its time by phase."""
    moved = history.moved
    if job.streamed is not None:
        edges = int(job.part.slice.indptr[-1])
        work = {"rows": job.streamed.rows, "local_edges": edges, "remote_edges": 0, "halo_rows": 0}
    else:
        plan = job.layers[0].forward
        work = {"rows": plan.destinations, "local_edges": plan.local_edges, "remote_edges": plan.remote_edges}
        work["halo_rows"] = len(plan.halo)
    return {
        "host": platform.node(),
        **work,
        "remote_rows": moved.remote_rows,
        "bytes": {"local": moved.local_bytes, "remote": moved.remote_bytes},
        "phases_ms": {name: 1e3 * seconds for name, seconds in history.phases.items()},
    }


def _machine() -> dict[str, Any]:
    """Return the properties of rank 0's machine."""
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
