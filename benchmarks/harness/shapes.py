"""The sizes of models whose training is timed, and labels for graphs without any."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mgg_hpc.data.graph import Graph

WARM_UP = 2  # epochs: the first allocates, and the optimiser makes its state
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

    @classmethod
    def of(cls, model: str, features: int, hidden: int | None, classes: int, dropout: float) -> Shape:
        """Return the size that papers give a model. hidden: another number of hidden units, or None."""
        usual, layers, heads = MODELS[model]
        return cls(features, hidden or usual, classes, dropout, model, layers, heads)

    def __str__(self) -> str:
        """Return the widths of its layers, heads times columns where there are several: "GAT 128 -> 8 x 8 -> 32"."""
        hidden = f"{self.heads} x {self.hidden}" if self.heads > 1 else str(self.hidden)
        widths = [str(self.features), *[hidden] * (self.layers - 1), str(self.classes)]
        return f"{self.model.upper()} {' -> '.join(widths)}"


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
