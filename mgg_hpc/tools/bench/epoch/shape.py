"""The model and the data that an epoch benchmark trains, on a CPU or a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....data.graph import Graph

WARM_UP = 2  # epochs: the first allocates, and the optimiser makes its state
# How far losses may lie apart, as a part of the smaller one: before training, with the same weights; after some epochs
# without dropout; and with it, since each worker has its own.
UNTRAINED_APART, TRAINED_APART, DROPPED_APART = 1e-4, 2e-3, 0.5


# Hidden units, layers and heads of each model, as papers have them.
MODELS = {"gcn": (16, 2, 1), "gin": (64, 5, 1), "sage": (128, 2, 1), "gat": (8, 2, 8)}


@dataclass(frozen=True)
class Shape:
    """A model's size: feature columns, hidden units (of each head), classes; dropout probability; layers and heads."""

    features: int
    hidden: int
    classes: int
    dropout: float
    model: str = "gcn"
    layers: int = 2
    heads: int = 1


def labelled(graph: Graph, shape: Shape) -> Graph:
    """Return the graph with random features and labels, and without weights."""
    rng = np.random.default_rng(0)
    train = rng.random(graph.nodes) < 0.5
    train[0] = True
    return replace(
        graph,
        weight=None,
        x=rng.standard_normal((graph.nodes, shape.features), dtype=np.float32),
        y=rng.integers(shape.classes, size=graph.nodes),
        classes=shape.classes,
        train=train,
        val=~train,
        test=np.zeros(graph.nodes, dtype=bool),
    )


def losses_agree(losses: dict[str, float], apart: float = DROPPED_APART) -> None:
    """Raise RuntimeError where a loss is further from ours after the same epochs."""
    for name, loss in losses.items():
        if not abs(loss - losses["mgg"]) <= apart * min(loss, losses["mgg"]):
            raise RuntimeError(
                f"after the same epochs {name}'s loss is {loss:.4f} and ours {losses['mgg']:.4f}"
            )


def title(model: dict[str, Any]) -> str:
    """Return the widths of a model's layers, heads times columns where there are several: "GAT 128 -> 8 x 8 -> 32"."""
    hidden = f"{model['heads']} x {model['hidden']}" if model["heads"] > 1 else str(model["hidden"])
    widths = [str(model["features"]), *[hidden] * (model["layers"] - 1), str(model["classes"])]
    return f"{model['model'].upper()} {' -> '.join(widths)}"
