"""`mgg train --dry-run --as-ranks N`: predict memory, traffic and balance of a job on N ranks, in one process.

One rank's rows are read and counted at a time. A small job, of a few rows with the same model and settings, is
run to measure what a step allocates per row and edge. The plans of the N ranks are not made: arrays of the
right sizes that take no memory stand for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from .. import config, sizes
from ..config import Settings
from ..data import writer
from ..data.graph import Graph, SparseRows, csr_from_edges
from ..data.store import GraphFile, GraphSlice, open_graph
from ..errors import DONE, InputError
from ..nn.graph.handle import plans_of
from ..nn.inputs.sparse import SparseFeatures
from ..plan.cost_model import System
from ..plan.counts import Traffic
from ..plan.layout import CHUNK, SEGMENT
from ..plan.workload import HaloLists, Plan
from ..runtime import mpi
from ..training import footprint, job, memory, metrics
from ..training.job import Job
from ..training.screen import console
from ..training.train import check_graph
from . import estimate
from .estimate import Shape
from .terminal import waiting

FEW = 256  # rows of the small job


def process_rehearse(path: Path, overrides: tuple[str, ...], ranks: int, *, dry_run: bool) -> int:
    """Print memory, edges and traffic of each of ``ranks`` ranks and the predicted epoch; return the exit code.

    path, overrides: job file, and its keys that --set changes. Raises InputError unless it is a dry run of one
    process.
    """
    if not dry_run:
        raise InputError("--as-ranks rehearses ranks that are not there; it needs --dry-run")
    if mpi.world().size > 1:
        raise InputError("--as-ranks plays all ranks in one process; start it without mgg launch")
    settings = config.load(path, overrides, clicks=True)
    check_graph(settings, "--as-ranks")
    if settings.model.module:
        raise InputError(
            "--as-ranks knows what the named models exchange (model.name), and not what model.module does"
        )
    _show(*rehearse(settings, ranks))
    return DONE


def rehearse(settings: Settings, ranks: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Predict memory, edges and traffic of each of ``ranks`` ranks, one rank at a time. Raises InputError.

    Returns two values. The first is `estimate.document` with one job, which also has "planned", the transfer of
    each layer, and, if this host is not calibrated, "untimed", the reason why there are no times. The second
    has a dictionary for each rank: its rows, edges and halo_rows, the bytes of its symmetric heap and of all
    memory ("heap", "memory"), and the bytes that it moves per epoch with transfer "direct" (or "get") and with
    "halo".
    """
    with open_graph(Path(settings.graph.file)) as file:
        small = _small(settings, file)
        stored = (
            len(small.x.values) / max(1, small.x.shape[0]) if isinstance(small.x, SparseFeatures) else 0.0
        )
        shape = Shape(settings.model, small.part.features, file.classes, small.sparse, stored, small.dtype)
        bounds = estimate.bounds_of(file, ranks)
        held, totals = dict[int, int](), dict.fromkeys(metrics.SPLITS, 0)

        def seen(rank: int, rows: GraphSlice) -> None:
            if rank in held:
                return
            held[rank] = _kept_bytes(rows, small)
            for name in totals:
                mask = getattr(rows, name)
                totals[name] += 0 if mask is None else int(np.count_nonzero(mask))

        with waiting(f"counting for {ranks} ranks"):
            traffic = estimate.count(file, bounds, shape, small.backend.capabilities.halo_rounds, seen)
        small.part.nodes = file.nodes
        small = replace(small, labels=replace(small.labels, totals=totals))
        where, why = System("none", ranks), ""
        try:
            where = estimate.system_of("this", ranks)
        except InputError as error:
            why = str(error)
        told = estimate.about(shape, where, *traffic) | ({"untimed": why} if why else {})
        told["planned"] = each = _transfers(settings, small, told)
        needs = _needs(small, bounds, traffic, each, held)
        found = estimate.document(file, shape, where.name, [told])
    small.backend.memory.close()
    moves = {name: estimate.moved(shape, *traffic, name)["bytes"].tolist() for name in ("direct", "halo")}
    return found, [
        {
            "rows": part.rows,
            "edges": int(part.edges.sum()),
            "halo_rows": part.halo_rows,
            "heap": need.heap,
            "memory": need.peak,
            **{name: each[part.rank] for name, each in moves.items()},
        }
        for part, need in zip(traffic[0].ranks, needs, strict=True)
    ]


def _needs(
    small: Job,
    bounds: NDArray[np.int64],
    traffic: tuple[Traffic, Traffic],
    each: Sequence[str],
    held: Mapping[int, int],
) -> list[memory.Estimate]:
    """Return an estimate of each rank's memory.

    small: the small job, whose step is measured. traffic: counts forward and backward. each: transfer of each
    layer. held: bytes that each rank keeps of its rows besides plans, by rank.
    """
    step = footprint.measure(small, trains=True)
    base = memory.estimate(small, step=step).in_use
    needs = []
    for rank, kept in held.items():
        alike = _as_rank(small, rank, bounds, traffic, each)
        need = memory.estimate(alike, step=step)
        plans = sum(plan.nbytes for plan in plans_of(alike.layers))
        in_use = base + kept + plans
        # While a plan is made: edges sorted by round, and what they were sorted by.
        making = in_use + (40 if "halo" in each else 8) * traffic[0].ranks[rank].remote_edges
        needs.append(replace(need, in_use=in_use, before=making))
    return needs


def _small(settings: Settings, file: GraphFile) -> Job:
    """Return the small job: these settings, on the first rows of the graph, with edges in a ring."""
    few = min(FEW, file.nodes)
    rows = file.slice(0, few)
    source = np.arange(few)
    indptr, indices, _ = csr_from_edges(source, (source + 1) % max(1, few), few, symmetric=not file.directed)
    alike = Graph(
        file.name,
        indptr,
        indices,
        x=rows.x,
        y=rows.y,
        directed=file.directed,
        classes=file.classes,
        train=np.arange(few) % 2 == 0,
        val=np.arange(few) % 4 == 1,
        test=np.arange(few) % 4 == 3,
    )
    with tempfile.TemporaryDirectory(prefix="mgg-rehearsal-") as folder:
        writer.write(Path(folder) / "few.h5", alike)
        here = msgspec.structs.replace(
            settings,
            graph=msgspec.structs.replace(settings.graph, file=str(Path(folder) / "few.h5")),
            run=msgspec.structs.replace(settings.run, backend="serial"),
        )
        return job.build(here, mpi.world())


def _kept_bytes(rows: GraphSlice, small: Job) -> int:
    """Return the bytes that a rank keeps of its rows besides plans: features, labels, masks, ids and scales."""
    count = len(rows.ids)
    kept = [rows.y, rows.train, rows.val, rows.test, rows.ids]
    nbytes = sum(each.nbytes for each in kept if each is not None) + 4 * count
    if isinstance(small.x, SparseFeatures):
        given = rows.x if isinstance(rows.x, SparseRows) else None
        stored = count if given is None else len(given.data)
        return nbytes + 8 * (count + 1) + stored * (4 + small.x.values.element_size())
    return nbytes + count * small.x.shape[1] * small.dtype.itemsize


def _transfers(settings: Settings, small: Job, told: dict[str, Any]) -> list[str]:
    """Return the transfer of each layer: the job's, or, for "auto", the predicted one ("halo" without one)."""
    asked, layers = settings.plan.transfer, len(small.model.widths)
    if asked == "auto":
        return ["halo"] * layers if "untimed" in told else list(told["chosen"])
    return [asked] * layers if isinstance(asked, str) else list(asked)


def _as_rank(
    small: Job, rank: int, bounds: NDArray[np.int64], traffic: tuple[Traffic, Traffic], each: Sequence[str]
) -> Job:
    """Return a copy of the small job that looks like the job of rank ``rank``, for estimates of its memory.

    Its plans, ids and learned rows have that rank's sizes, but their arrays take no memory (`_sized`). bounds:
    int64 [P + 1]. traffic: counts forward and backward. each: transfer of each layer.
    """
    rows = int(bounds[rank + 1] - bounds[rank])
    part = replace(small.part, slice=replace(small.part.slice, ids=_sized(np.int64, rows)), bounds=bounds)
    forward, backward = traffic
    made = {}
    for transfer in dict.fromkeys(each):
        ahead = _plan(forward, rank, transfer)
        back = ahead if backward is forward else _plan(backward, rank, transfer)
        made[transfer] = replace(small.layers[0], forward=ahead, backward=back)
    x = small.x
    if small.learned is not None:
        x = torch.nn.Parameter(small.learned.detach()[:1].expand(rows, -1))
    many = SimpleNamespace(size=len(forward.ranks), rank=rank)
    return replace(small, part=part, comm=many, layers=[made[transfer] for transfer in each], x=x)


def _plan(traffic: Traffic, rank: int, transfer: str) -> Plan:
    """Return a plan of a rank whose arrays have the counted sizes, but no content, and take no memory."""
    mine, ranks = traffic.ranks[rank], len(traffic.ranks)
    lists = None
    if transfer == "halo":
        received = mine.halo.astype(np.int64)
        sent = np.array([each.halo[:, rank] for each in traffic.ranks], dtype=np.int64).T
        capacity = max(each.halo_rows for each in traffic.ranks)
        rows = _sized(np.int32, int(sent.sum()))
        lists = HaloLists(
            received, rows, sent, np.zeros_like(sent), capacity, int(traffic.rows("halo").max())
        )
    return Plan(
        rank=rank,
        destinations=mine.rows,
        chunks=np.zeros(0, CHUNK),
        segments=_sized(SEGMENT, mine.segments[transfer]),
        indices=_sized(np.int32, int(mine.edges.sum())),
        edge=None,
        halo=_sized(np.int32, mine.halo_rows),
        halo_bounds=np.zeros(ranks + 1, np.int64),
        transfer=transfer,
        lists=lists,
    )


def _sized(kind: Any, count: int) -> NDArray[Any]:
    """Return an array of ``count`` zeros of dtype ``kind`` that takes no memory (a broadcast scalar)."""
    return np.broadcast_to(np.zeros((), kind), (count,))


def _show(found: dict[str, Any], needs: Sequence[dict[str, Any]]) -> None:
    """Print a table with a row for each rank, the memory of all ranks, and the predicted epoch.

    found, needs: the two results of `rehearse`.
    """
    [job], name, ranks = found["jobs"], found["graph"]["name"], len(needs)
    mean, most = max(1.0, job["edges"]["mean"]), max(each["memory"] for each in needs)
    shown = ", ".join(dict.fromkeys(job["planned"]))
    title = (
        f"{name} as {ranks} ranks, rehearsed one at a time; memory with transfer {shown}, bytes of an epoch"
    )
    table = Table(title=title)
    for heading in (
        "rank",
        "nodes",
        "edges",
        "of mean",
        "halo nodes",
        "direct, get",
        "halo",
        "heap",
        "memory",
    ):
        table.add_column(heading, justify="right")
    for rank, each in enumerate(needs):
        counted = (f"{each['rows']:,}", f"{each['edges']:,}", f"{each['edges'] / mean:.2f}")
        nbytes = (sizes.shown(each[what]) for what in ("direct", "halo", "heap", "memory"))
        table.add_row(str(rank), *counted, f"{each['halo_rows']:,}", *nbytes)
    console().print(table)
    total = sizes.shown(sum(each["memory"] for each in needs))
    console().print(f"memory: {sizes.shown(most)} on the largest rank, {total} in all", soft_wrap=True)
    estimate.show(found)
    if "untimed" in job:
        console().print(f"no times: {job['untimed']}", soft_wrap=True)
