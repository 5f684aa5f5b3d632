"""`mgg model`: what each of many ranks would move, and how long an epoch would take, before there are any."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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
from ..training.report import console
from .terminal import waiting


@dataclass(frozen=True)
class Shape:
    """A model over a graph: what decides the widths of rows.

    features, classes: columns of input and output. sparse: whether the input can only be multiplied; stored: its stored
    values in each row then. dtype: of rows.
    """

    settings: ModelSettings
    features: int
    classes: int
    sparse: bool = False
    stored: float = 0.0
    dtype: torch.dtype = torch.float32

    def made(self) -> GNN:
        """Return the model, whose weights do not matter."""
        return GNN(self.settings, self.features, self.classes, Draws(0), self.dtype)


def work(shape: Shape) -> list[Layer]:
    """Return the work of each layer in a training step, from the layers' widths and parameters."""
    model, item = shape.made(), row_format(1, shape.dtype).dtype.itemsize
    backward = model.exchanged_back(shape.sparse)
    layers, width = [], shape.features
    for i, forward in enumerate(model.exchanged(shape.sparse)):
        given = shape.stored if shape.sparse and i == 0 else width
        # The product, the gradients of the weights, and those of the input.
        passes = 2 if i == 0 and shape.settings.input != "learned" else 3
        matrices = [each.shape for each in model.convolutions[i].parameters() if each.dim() == 2]
        operations = sum(2.0 * passes * o * (given if n == width else n) for o, n in matrices)
        draws = (given if i == 0 else width) if shape.settings.dropout else 0.0
        width = model.widths[i]
        ahead, back = (
            row_format(each, shape.dtype).row_bytes if each else 0 for each in (forward, backward[i])
        )
        layers.append(Layer(ahead, back, operations, streamed=item * (2.0 * draws + 8 * width)))
    return layers


def bounds_of(file: GraphFile, ranks: int) -> NDArray[np.int64]:
    """Return the row bounds of a job of so many ranks, int64 [P + 1]: those of the file, or edge-balanced ones."""
    stored = file.bounds(ranks)
    return edge_balanced(file.indptr(), ranks) if stored is None else stored


def count(
    file: GraphFile,
    bounds: NDArray[np.int64],
    shape: Shape,
    rounds: int | None,
    seen: Callable[[int, GraphSlice], None] = lambda rank, rows: None,
) -> tuple[Traffic, Traffic]:
    """Count what ranks with these bounds move, forward and backward, reading one rank's rows at a time.

    rounds: of a halo, or None as ranks on CPUs choose them; layers that work on edges take one. seen: called with each
    rank and its rows, as often as they are read.
    """
    model = shape.made()

    def read(rank: int) -> counts.Slice:
        low, high = int(bounds[rank]), int(bounds[rank + 1])
        rows = file.slice(low, high, dense=False)
        seen(rank, rows)
        return weighted_edges(model.kind, low, rows.indptr, rows.indices, None)[:2]

    forward = counts.count_ranks(bounds, read, 1 if model.by_edge else rounds)
    return forward, counts.count_reversed(bounds, read, forward) if file.directed else forward


def moved(shape: Shape, forward: Traffic, backward: Traffic, transfer: str) -> dict[str, NDArray[np.int64]]:
    """Return rows, bytes, messages and local_bytes of each rank in a training step, int64 [P] each.

    Bytes are those of values, without padding, as the meter of a run counts them.
    """
    model, item = shape.made(), row_format(1, shape.dtype).dtype.itemsize
    names, ranks = ("rows", "bytes", "messages", "local_bytes"), len(forward.ranks)
    found = {name: np.zeros(ranks, dtype=np.int64) for name in names}
    directions = (forward, model.exchanged(shape.sparse)), (backward, model.exchanged_back(shape.sparse))
    for traffic, widths in directions:
        local = np.array([each.local_edges for each in traffic.ranks], dtype=np.int64)
        rows = traffic.rows(transfer)
        for width in filter(None, widths):
            found["rows"] += rows
            found["bytes"] += rows * width * item
            found["local_bytes"] += local * width * item
            found["messages"] += traffic.messages(transfer, row_format(width, shape.dtype).row_bytes)
    return found


def predicted(where: System, shape: Shape, forward: Traffic, backward: Traffic) -> Predicted:
    """Estimate a training step on a system."""
    return cost_model.epoch(where, forward, backward, work(shape))


def system_of(name: str, ranks: int) -> System:
    """Return the system that --system names, as it is for so many ranks. Raises InputError for an unknown one."""
    if name == "this":
        return calibration.load().system(ranks)
    described = find_system(name)
    if isinstance(described, Hosts):
        here = calibration.load().system(min(ranks, described.ranks_a_node))
        return cost_model.system_of_hosts(described, here) if ranks > described.ranks_a_node else here
    return cost_model.system_of_cluster(described, ranks)


def numbers_of_ranks(text: str) -> list[int]:
    """Return the numbers of --ranks. Raises InputError for anything but whole numbers from 1 to 65,536."""
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdecimal() and len(word) < 20 for word in words):
        raise InputError(f"--ranks {text}: expected whole numbers separated by commas, such as 8,16,64")
    found = sorted({int(word) for word in words})
    if found[0] < 1 or found[-1] > 65536:
        raise InputError(f"--ranks {text}: expected numbers from 1 to 65,536")
    return found


def process_model(
    graph: Path,
    *,
    ranks: str,
    system: str,
    model: dict[str, Any],
    features: int | None,
    classes: int | None,
    json_path: Path | None,
    force: bool,
) -> None:
    """Predict jobs of several numbers of ranks; print a table, and write JSON where it is asked for."""
    numbers = numbers_of_ranks(ranks)
    if json_path is not None:
        check_output(json_path, force=force)
    systems = {number: system_of(system, number) for number in numbers}
    with open_graph(graph) as file:
        shape = shape_of(file, ModelSettings(**model), features, classes)
        jobs = []
        for number, where in systems.items():
            with waiting(f"counting for {number} ranks"):
                traffic = count(file, bounds_of(file, number), shape, where.halo_rounds)
                jobs.append(about(shape, where, *traffic))
        found = document(file, shape, system, jobs)
    show(found)
    if json_path is not None:
        with replacement(json_path, force=force, size=0) as path:
            path.write_text(json.dumps(found, indent=1) + "\n")


def document(file: GraphFile, shape: Shape, system: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the predictions of jobs (`about`) as JSON has them, with how far to trust them."""
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
    """Return what of a prediction is counted, measured and modelled, a sentence each; name: of --system."""
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


def shape_of(file: GraphFile, model: ModelSettings, features: int | None, classes: int | None) -> Shape:
    """Return the model's shape on a graph. Raises InputError where the graph has no features, and none are named."""
    columns = features or file.features
    if not columns:
        raise InputError(
            f"{file.where}: has no node features; name a number of columns by --features, such as 64"
        )
    stored = 0.0
    if file.sparse and features is None:
        stored = file.contents.datasets[schema.COLUMNS.indices].shape[0] / max(1, file.nodes)
    return Shape(
        model, columns, classes or file.classes or 16, sparse=file.sparse and features is None, stored=stored
    )


def about(shape: Shape, where: System, forward: Traffic, backward: Traffic) -> dict[str, Any]:
    """Return counts by transfer, balance and predicted times, as JSON has them: bytes, rows and messages an epoch."""
    guess = predicted(where, shape, forward, backward)
    edges = np.array([int(each.edges.sum()) for each in forward.ranks])
    rows = [each.rows for each in forward.ranks]
    by_transfer = {}
    for name, each in guess.aggregations.items():
        moves = moved(shape, forward, backward, name)
        by_transfer[name] = {
            **{what: int(of_ranks.sum()) for what, of_ranks in moves.items()},
            **{f"most_{what}": int(of_ranks.max()) for what, of_ranks in moves.items()},
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
    """Print a table with a row for each number of ranks and transfer, and how far to trust it."""
    graph, model, timed = document["graph"], document["model"], document["system"] != "none"
    title = (
        f"{model['name']} ({model['layers']} layers, {model['hidden']} hidden) on {graph['name']} "
        f"({graph['nodes']:,} nodes, {graph['edges']:,} edges), {document['system']}: one training epoch"
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
