"""`mgg model`: what each of many ranks would move, and how long an epoch would take, before there are any."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..config import ModelSettings
from ..data import schema
from ..data.atomic_write import check_output, replacement
from ..data.store import GraphFile, GraphSlice, open_graph
from ..errors import InputError
from ..nn.graph.loading import weighted_edges
from ..nn.layers.models import GNN
from ..nn.layers.random import Draws
from ..nn.workspace import row_format
from ..plan import cost_model, counts, system
from ..plan.cost_model import TRANSFERS, Layer, Predicted, System
from ..plan.counts import Traffic
from ..plan.ranges import edge_balanced
from ..runtime import calibration
from . import model_report
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
        passes = (
            2 if i == 0 and shape.settings.input != "learned" else 3
        )  # product, gradients of weights, of input
        matrices = [each.shape for each in model.convolutions[i].parameters() if each.dim() == 2]
        products = tuple((min(o, n), 2.0 * passes * o * (given if n == width else n)) for o, n in matrices)
        draws = (given if i == 0 else width) if shape.settings.dropout else 0.0
        width = model.widths[i]
        back = row_format(backward[i], shape.dtype).row_bytes if backward[i] else 0
        layers.append(
            Layer(
                row_format(forward, shape.dtype).row_bytes,
                back,
                products,
                streamed=item * (2.0 * draws + 8 * width),
                draws=draws,
            )
        )
    return layers


def bounds_of(file: GraphFile, ranks: int) -> NDArray[np.int64]:
    """Return the row bounds of a job of so many ranks, int64 [P + 1]: those of the file, or edge-balanced ones."""
    stored = file.bounds(ranks)
    return edge_balanced(file.indptr(), ranks) if stored is None else stored


def edges_of(rows: GraphSlice, kind: str, first: int) -> counts.Slice:
    """Return (indptr, indices) of a rank's rows in the matrix of a kind of layers."""
    return weighted_edges(kind, first, rows.indptr, rows.indices, None)[:2]


def count(
    file: GraphFile, bounds: NDArray[np.int64], kind: str, rounds: int | None
) -> tuple[Traffic, Traffic]:
    """Count what ranks with these bounds move, forward and backward, reading one rank's rows at a time.

    kind: of the layers' matrix. rounds: of a halo, or None as ranks on CPUs choose them.
    """

    def read(rank: int) -> counts.Slice:
        low, high = int(bounds[rank]), int(bounds[rank + 1])
        return edges_of(file.slice(low, high, dense=False), kind, low)

    forward = counts.of_all_ranks(bounds, read, rounds)
    return forward, counts.of_transposed(bounds, read, forward) if file.directed else forward


def rounds_of(model: GNN, rounds: int | None) -> int | None:
    """Return the rounds of a halo where a backend takes ``rounds``: layers that work on edges take one."""
    return 1 if model.by_edge else rounds


def moved(shape: Shape, forward: Traffic, backward: Traffic, transfer: str) -> dict[str, NDArray[np.int64]]:
    """Return rows, bytes, messages and local_bytes of each rank in a training step, int64 [P] each.

    Bytes are those of values, without padding, as the meter of a run counts them.
    """
    model, item = shape.made(), row_format(1, shape.dtype).dtype.itemsize
    found = {
        name: np.zeros(len(forward.ranks), dtype=np.int64)
        for name in ("rows", "bytes", "messages", "local_bytes")
    }
    for traffic, widths in (
        (forward, model.exchanged(shape.sparse)),
        (backward, model.exchanged_back(shape.sparse)),
    ):
        local = np.array([each.local_edges for each in traffic.ranks], dtype=np.int64)
        for width in filter(None, widths):
            rows = traffic.rows(transfer)
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
    described = system.named(name)
    if isinstance(described, system.Hosts):
        here = calibration.load().system(min(ranks, described.ranks_a_node))
        return system.of_hosts(described, here) if ranks > described.ranks_a_node else here
    return system.of_cluster(described, ranks)


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
        found = []
        for number in numbers:
            with waiting(f"counting for {number} ranks"):
                found.append(about(file, shape, systems[number], number))
        document = {
            "format": "mgg-model",
            "version": 1,
            "graph": {name: getattr(file, name) for name in ("name", "nodes", "edges", "directed", "uuid")},
            "model": {**model, "features": shape.features, "classes": shape.classes},
            "system": system,
            "basis": basis(system),
            "jobs": found,
        }
    model_report.show(document)
    if json_path is not None:
        with replacement(json_path, force=force, size=0) as path:
            path.write_text(json.dumps(document, indent=1) + "\n")


def basis(name: str) -> list[str]:
    """Return what of a prediction is counted, measured and modelled, a sentence each."""
    counted = (
        "Rows, bytes and messages are counted, and equal those of a run (messages of a directed graph's backward, and "
        "layers that exchange more than once in a direction, aside)."
    )
    if name == "this":
        return [counted, *calibration.load().trust()]
    described = system.named(name)
    if isinstance(described, system.Hosts):
        return [
            counted,
            *calibration.load().trust(),
            f"The network is that of {described.name}, as described. Evaluation, and the sum of gradients over ranks, "
            "are left out.",
        ]
    return [
        counted,
        f"Times are modelled from rates of {described.basis}; nothing of them was measured: kernels reach a part of "
        "such rates, so a time is a lower bound, and comparisons of transfers and numbers of ranks hold better than "
        "times. Evaluation, and the sum of gradients over ranks, are left out.",
    ]


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


def about(file: GraphFile, shape: Shape, where: System, ranks: int) -> dict[str, Any]:
    """Return what is known of a job of so many ranks: counts by transfer, balance, and predicted times."""
    bounds = bounds_of(file, ranks)
    made = shape.made()
    forward, backward = count(file, bounds, made.kind, rounds_of(made, where.halo_rounds))
    return told(shape, where, forward, backward)


def told(shape: Shape, where: System, forward: Traffic, backward: Traffic) -> dict[str, Any]:
    """Return counts by transfer, balance and predicted times, as JSON has them: bytes, rows and messages an epoch."""
    guess = predicted(where, shape, forward, backward)
    edges = np.array([int(each.edges.sum()) for each in forward.ranks])
    rows = [each.rows for each in forward.ranks]
    names = [name for name in TRANSFERS if name in guess.aggregations]
    by_transfer = {}
    for name in names:
        moves = moved(shape, forward, backward, name)
        by_transfer[name] = {
            **{what: int(each.sum()) for what, each in moves.items()},
            **{f"most_{what}": int(each.max(initial=0)) for what, each in moves.items()},
            "aggregation_ms": [1e3 * each for each in guess.aggregations[name]],
            "epoch_ms": 1e3 * guess.epoch(name),
        }
    return {
        "ranks": len(forward.ranks),
        "rows": {"min": min(rows), "max": max(rows)},
        "edges": {"min": int(edges.min()), "mean": float(edges.mean()), "max": int(edges.max())},
        "halo_rows": {
            "total": int(forward.sent().sum()),
            "max": max(each.halo_rows for each in forward.ranks),
        },
        "peers": int(forward.peers().max(initial=0)),
        "transfers": by_transfer,
        "chosen": list(guess.chosen),
        "dense_ms": [1e3 * each for each in guess.dense],
        "fixed_ms": 1e3 * (guess.fixed * len(guess.dense) + guess.step),
        "epoch_ms": 1e3 * guess.epoch(),
    }
