"""`mgg model`: count, in one process, the rows that many ranks would move, and estimate an epoch's time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from .. import sizes
from ..config import ModelSettings
from ..data import schema
from ..data.atomic_write import check_output, replacement
from ..data.store import GraphFile, GraphSlice, open_graph
from ..errors import InputError
from ..nn.graph.loading import weighted_edges
from ..nn.layers.models import GNN
from ..nn.layers.random import Draws
from ..nn.workspace import row_format
from ..plan import cost_model, counts
from ..plan.cost_model import Cluster, Hosts, Layer, Predicted, System, find_system
from ..plan.counts import Traffic
from ..plan.row_ranges import edge_balanced
from ..runtime import calibration
from ..sizes import numbers_of
from ..training.screen import console
from .terminal import waiting


@dataclass(frozen=True)
class Shape:
    """The sizes of a model on a graph, from which the widths of its rows follow.

    Args:
        settings: section [model] of a job.
        features: number of input columns.
        classes: number of output columns.
        sparse: True if only ``x @ W`` is available (sparse or host-resident x).
        stored: mean number of stored values in a row of sparse features.
        dtype: type of rows.
    """

    settings: ModelSettings
    features: int
    classes: int
    sparse: bool = False
    stored: float = 0.0
    dtype: torch.dtype = torch.float32

    @cached_property
    def model(self) -> GNN:
        """A model of these sizes; its weights do not matter."""
        return GNN(self.settings, self.features, self.classes, Draws(0), self.dtype)

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a stored row of ``width`` columns, with padding; 0 for a width of 0."""
        return row_format(width, self.dtype).row_bytes if width else 0

    def layers(self) -> list[Layer]:
        """Return bytes per row and arithmetic operations of each layer in a training step."""
        model, found, width = self.model, [], self.features
        widths = zip(
            model.exchanged(self.sparse), model.exchanged_back(self.sparse), model.widths, strict=True
        )
        for i, (forward, backward, out) in enumerate(widths):
            read = self.stored if self.sparse and i == 0 else width
            # The product, the gradients of the weights, and, if it is needed, the gradient of the input.
            passes = 2 if i == 0 and self.settings.input != "learned" else 3
            matrices = [each.shape for each in model.convolutions[i].parameters() if each.dim() == 2]
            operations = sum(2.0 * passes * o * (read if n == width else n) for o, n in matrices)
            draws = (read if i == 0 else out) if self.settings.dropout else 0.0
            streamed = self.dtype.itemsize * (2.0 * draws + 8 * out)
            found.append(Layer(self.row_bytes(forward), self.row_bytes(backward), operations, streamed))
            width = out
        return found


def shape_of(file: GraphFile, model: ModelSettings, features: int | None, classes: int | None) -> Shape:
    """Return the sizes of a model on a graph file.

    Args:
        features: number of input columns. [default: the file's]
        classes: number of output columns. [default: the file's, or 16]

    Raises InputError if the file has no features and ``features`` is None.
    """
    columns = features or file.features
    if not columns:
        raise InputError(
            f"{file.where}: has no node features; name a number of columns by --features, such as 64"
        )
    sparse, stored = file.sparse and features is None, 0.0
    if sparse:
        stored = file.contents.datasets[schema.COLUMNS.indices].shape[0] / max(1, file.nodes)
    return Shape(model, columns, classes or file.classes or 16, sparse=sparse, stored=stored)


def bounds_of(file: GraphFile, ranks: int) -> NDArray[np.int64]:
    """Return the row bounds that a job of ``ranks`` ranks uses, int64 [P + 1]: the file's, or edge-balanced ones."""
    stored = file.bounds(ranks)
    return edge_balanced(file.indptr(), ranks) if stored is None else stored


def count(
    file: GraphFile,
    bounds: NDArray[np.int64],
    shape: Shape,
    rounds: int | None,
    seen: Callable[[int, GraphSlice], None] = lambda rank, rows: None,
) -> tuple[Traffic, Traffic]:
    """Count the rows that each rank moves in an aggregation, forward and backward.

    The rows of one rank at a time are in memory.

    Args:
        bounds: int64 [P + 1], the rows of each rank.
        rounds: number of rounds per halo exchange, or None to choose it by the halo's size. Models whose layers
            read edge data use one round.
        seen: called with each rank and its slice whenever it is read, which may be several times.
    """
    model = shape.model

    def read(rank: int) -> counts.Slice:
        low, high = int(bounds[rank]), int(bounds[rank + 1])
        rows = file.slice(low, high, dense=False)
        seen(rank, rows)
        return weighted_edges(model.kind, low, rows.indptr, rows.indices, None)[:2]

    forward = counts.count_ranks(bounds, read, 1 if model.by_edge else rounds)
    return forward, counts.count_reversed(bounds, read, forward) if file.directed else forward


def moved(shape: Shape, forward: Traffic, backward: Traffic, transfer: str) -> dict[str, NDArray[np.int64]]:
    """Count the rows, bytes, messages and local_bytes of each rank in a training step, int64 [P] each.

    Bytes are those of values, without padding, as `Meter` counts them in a run.
    """
    found = {
        name: np.zeros(len(forward.ranks), np.int64) for name in ("rows", "bytes", "messages", "local_bytes")
    }
    passes = (forward, shape.model.exchanged), (backward, shape.model.exchanged_back)
    for traffic, widths in passes:
        local = np.array([each.local_edges for each in traffic.ranks], dtype=np.int64)
        rows = traffic.rows(transfer)
        for width in filter(None, widths(shape.sparse)):
            nbytes = width * shape.dtype.itemsize
            found["rows"] += rows
            found["bytes"] += rows * nbytes
            found["local_bytes"] += local * nbytes
            found["messages"] += traffic.messages(transfer, shape.row_bytes(width))
    return found


def predicted(where: System, shape: Shape, forward: Traffic, backward: Traffic) -> Predicted:
    """Estimate the time of a training step on a system."""
    return cost_model.epoch(where, forward, backward, shape.layers())


def system_of(name: str, ranks: int) -> System:
    """Return the system that --system names, for a number of ranks. Raises InputError for an unknown name.

    name: "this" for this host, as calibrated; else the name of a described system.
    """
    if name == "this":
        return calibration.load().system(ranks)
    described = find_system(name)
    if isinstance(described, Hosts):
        here = calibration.load().system(min(ranks, described.ranks_a_node))
        return cost_model.system_of_hosts(described, here) if ranks > described.ranks_a_node else here
    return cost_model.system_of_cluster(described, ranks)


def process_model(
    graph: Path,
    *,
    ranks: str,
    system: str,
    features: int | None,
    classes: int | None,
    json_path: Path | None,
    force: bool,
    **model: Any,
) -> None:
    """Print a table of estimates for several numbers of ranks, and write it as JSON if a path is given.

    Args:
        ranks: numbers of ranks, separated by commas.
        system: as `system_of` takes it.
        model: keys of section [model] of a job.
    """
    numbers = sorted({*numbers_of("ranks", ranks)})
    if json_path is not None:
        check_output(json_path, force=force)
    systems = {number: system_of(system, number) for number in numbers}
    with open_graph(graph) as file:
        shape = shape_of(file, ModelSettings(**model), features, classes)
        jobs = []
        for number, where in systems.items():
            with waiting(f"counting for {sizes.counted(number, 'rank')}"):
                traffic = count(file, bounds_of(file, number), shape, where.halo_rounds)
                jobs.append(about(shape, where, *traffic))
        found = document(file, shape, system, jobs)
    show(found)
    if json_path is not None:
        with replacement(json_path, force=force, size=0) as path:
            path.write_text(json.dumps(found, indent=1) + "\n")


def document(file: GraphFile, shape: Shape, system: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document that --json writes: graph, model, system, and the estimates of each number of ranks.

    jobs: result of `about` for each number of ranks.
    """
    chosen = {name: getattr(shape.settings, name) for name in ("name", "hidden", "layers", "dropout")}
    return {
        "format": "mgg-model",
        "version": 1,
        "graph": {name: getattr(file, name) for name in ("name", "nodes", "edges", "directed", "uuid")},
        "model": {**chosen, "features": shape.features, "classes": shape.classes},
        "system": system,
        "basis": basis(system),
        "jobs": jobs,
    }


def basis(name: str) -> list[str]:
    """Return sentences that tell which figures are counted, measured or modelled. name: value of --system."""
    counted = (
        "Rows, bytes and messages are counted, and equal those of a run (messages of a directed graph's backward, and "
        "layers that exchange more than once in a direction, aside)."
    )
    described = None if name in ("none", "this") else find_system(name)
    if isinstance(described, Cluster):
        return [
            counted,
            f"Times are modelled from rates of {described.basis}; nothing of them was measured: kernels reach a part "
            "of such rates, so a time is a lower bound, and comparisons of transfers and numbers of ranks hold better "
            "than times. Evaluation, and the sum of gradients over ranks, are left out.",
        ]
    if name == "none":
        return [counted]
    network = "" if described is None else f" The network is that of {described.name}, as described."
    return [counted, calibration.load().basis + network]


def about(shape: Shape, where: System, forward: Traffic, backward: Traffic) -> dict[str, Any]:
    """Return the entry of `document` for a number of ranks: counts by transfer, balance, times of an epoch."""
    guess = predicted(where, shape, forward, backward)
    edges = np.array([int(each.edges.sum()) for each in forward.ranks])
    rows = [each.rows for each in forward.ranks]
    by_transfer = {}
    for name, each in guess.aggregations.items():
        moves = moved(shape, forward, backward, name)
        by_transfer[name] = {
            **{kind: int(of_ranks.sum()) for kind, of_ranks in moves.items()},
            **{f"most_{kind}": int(of_ranks.max()) for kind, of_ranks in moves.items()},
            "aggregation_ms": [1e3 * layer for layer in each],
            "epoch_ms": 1e3 * guess.epoch(name),
        }
    halo = [each.halo_rows for each in forward.ranks]
    return {
        "ranks": len(forward.ranks),
        "rows": {"min": min(rows), "max": max(rows)},
        "edges": {"min": int(edges.min()), "mean": float(edges.mean()), "max": int(edges.max())},
        "halo_rows": {"total": sum(halo), "max": max(halo)},
        "peers": int(forward.peers().max()),
        "transfers": by_transfer,
        "chosen": list(guess.chosen),
        "dense_ms": [1e3 * each for each in guess.dense],
        "fixed_ms": 1e3 * guess.fixed * len(guess.dense),
        "epoch_ms": 1e3 * guess.epoch(),
    }


def show(document: dict[str, Any]) -> None:
    """Print a `document`: a table by number of ranks and transfer, and the basis of its figures."""
    graph, model, timed = document["graph"], document["model"], document["system"] != "none"
    title = (
        f"{model['name']} ({sizes.counted(model['layers'], 'layer')}, {model['hidden']} hidden) on {graph['name']} "
        f"({sizes.counted(graph['nodes'], 'node')}, {sizes.counted(graph['edges'], 'edge')}), {document['system']}: "
        "one training epoch"
    )
    caption = "* chosen; most: of the busiest rank; balance: most edges over the mean"
    table = Table(title=title, caption=caption)
    headings = "ranks", "balance", "transfer", "rows", "bytes", "most", "messages", "sums ms", "epoch ms"
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "transfer" else "right")
    for job in document["jobs"]:
        edges = job["edges"]
        balance = f"{edges['max'] / edges['mean']:.2f}" if edges["mean"] else "1.00"
        first = f"{job['ranks']:,}", balance
        for name, each in job["transfers"].items():
            chosen = "*" if timed and set(job["chosen"]) == {name} else ""
            counted = f"{each['rows']:,}", sizes.shown(each["bytes"]), sizes.shown(each["most_bytes"])
            times = sum(each["aggregation_ms"]), each["epoch_ms"]
            shown = [f"{ms:.2f}" for ms in times] if timed else ["", ""]
            table.add_row(*first, f"{name}{chosen}", *counted, f"{each['messages']:,}", *shown)
            first = "", ""
        if len(set(job["chosen"])) > 1:
            several = f"{', '.join(job['chosen'])}*"
            table.add_row("", "", several, "", "", "", "", "", f"{job['epoch_ms']:.2f}")
        table.add_section()
    console().print(table)
    for line in document["basis"]:
        console().print(line, soft_wrap=True)
