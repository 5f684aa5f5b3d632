"""The job that an epoch benchmark trains: a model over a graph file, as `mgg train` builds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .... import config
from ....runtime import cores
from ....training.job import Job, build
from .shape import Shape


def built(file: Path, shape: Shape, comm: Any, *, threads: int, backend: str, transfer: str = "auto") -> Job:
    """Return the job of this rank. Collective. Raises InputError, the same on all ranks, for what cannot be.

    file: with features, labels and training rows (`shape.labelled`). transfer: of all layers.
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
