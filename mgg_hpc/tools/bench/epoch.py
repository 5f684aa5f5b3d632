"""`mgg bench epoch`: the speed of this machine's training epochs, as `mgg train` has them.

An epoch is forward with dropout, the loss over the training rows, backward and Adam. Features are drawn from a normal
distribution, labels evenly, and half of the nodes train. benchmarks/epoch.py compares with other libraries.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import config
from ...data import writer
from ...data.graph import Graph
from ...runtime import cores, mpi
from ...runtime.timing import interleaved
from ...training.job import Job, build
from . import graphs
from .results import Results, words_of

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


def job_of(file: Path, shape: Shape, comm: Any, *, threads: int, backend: str, transfer: str = "auto") -> Job:
    """Return the job of this rank. Collective. Raises InputError, the same on all ranks.

    file: with features, labels and training rows (`labelled`). transfer: of all layers.
    """
    cores.return_freed_memory()  # as `mgg train` does first
    model = {"name": shape.model, "hidden": shape.hidden, "layers": shape.layers, "dropout": shape.dropout}
    tree = {
        "graph": {"file": str(file)},
        "model": model | ({"heads": shape.heads} if shape.model == "gat" else {}),
        "plan": {"transfer": transfer},
        "run": {"threads": threads, "backend": backend},
    }
    return build(config.from_tree(tree, "mgg bench epoch"), comm)


class Epochs:
    """A job whose epochs are counted, ready to be timed. Collective."""

    def __init__(self, job: Job) -> None:
        from ...training.trainer import Trainer

        self.job, self.trainer, self.done = job, Trainer(job, job.graph()), 0

    def step(self) -> float:
        """Train for an epoch, and return its loss."""
        self.done += 1
        self.trainer.step(self.done)
        return float(self.trainer.loss())

    def untrained(self) -> float:
        """Return the mean loss of the validation rows, without dropout."""
        self.trainer.evaluate()
        return float(self.trainer.scores().val_loss)


def run_epoch(
    names: Sequence[str],
    *,
    models: str,
    features: int,
    hidden: int | None,
    classes: int,
    dropout: float,
    device: str,
    threads: int | None,
    turns: int,
    files: Sequence[Path],
) -> None:
    """Measure, print and write. Raises InputError."""
    for name in names:
        graphs.check(name)
    threads = threads or cores.available()
    results = Results("mgg bench epoch", device=device, threads=threads)
    for model in words_of("models", models, MODELS):
        shape = Shape.of(model, features, hidden, classes, dropout)
        for name in names:
            graph = labelled(graphs.read(name), shape)
            with tempfile.TemporaryDirectory(prefix="mgg-bench-") as folder:
                writer.write(Path(folder) / "graph.h5", graph)
                backend = "cuda" if device == "cuda" else "serial"
                job = job_of(Path(folder) / "graph.h5", shape, mpi.world(), threads=threads, backend=backend)
                epochs = Epochs(job)
                interleaved({"mgg": epochs.step}, WARM_UP)
                clock = {"mgg": lambda epochs=epochs: timed(epochs)}
                ms = interleaved(clock, turns)["mgg"]
                job.backend.memory.close()
            results.add(str(shape), ms, graph=graph.name, nodes=graph.nodes, edges=graph.edges)
            results.write(files)  # what is measured stays, whatever ends the rest
    results.show("graph", "edges", "variant", "median_ms", "min_ms", "max_ms")


def timed(epochs: Epochs) -> float:
    """Return the milliseconds of an epoch, whose loss has arrived at its end."""
    stream = epochs.job.backend.stream
    began = stream.stamp()
    epochs.step()
    taken = stream.since(began)
    stream.finish()
    return 1e3 * taken()
