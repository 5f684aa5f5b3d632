"""`mgg new`: a job file for a graph, with what its most used keys mean."""

from __future__ import annotations

import os
import shlex
from operator import attrgetter
from pathlib import Path

import msgspec
import tomli_w

from ..config import ModelSettings, Settings
from ..data.atomic_write import replacement
from ..data.store import open_graph
from ..errors import InputError
from ..sizes import counted

KEYS = {
    "model.name": 'or "gin", "sage", "gat"',
    "model.input": 'or "learned", a row of parameters for each node; "degree" needs no features either',
    "model.hidden": "columns of a hidden layer",
    "model.layers": "",
    "model.dropout": "share of values that training leaves out",
    "train.epochs": "",
    "train.learning_rate": "of Adam",
    "train.weight_decay": "of the first layer's weights",
    "train.patience": "epochs without a better validation after which training ends; 0: never",
    "train.seed": "of the first weights and of dropout",
    "train.mode": '"sampled" trains on batches of nodes with sampled neighbours (train.fanouts, train.batch_size)',
    "run.threads": "of each rank; 0: its share of the cores",
    "checkpoint.every_minutes": "how often the state is saved, from which mgg resume goes on; 0: never",
}


def process_new(graph: Path, output: Path | None, *, force: bool) -> None:
    """Write a job file with the defaults. output: [default: the graph's name, .toml, in the current folder]"""
    output = output or Path(graph.with_suffix(".toml").name)
    if output.suffix != ".toml":
        raise InputError(f"{output}: the name of a job file ends in .toml")
    with open_graph(graph) as opened:
        held = opened.contents
    sizes = f"{counted(held.nodes, 'node')}, {counted(held.edges, 'edge')}, "
    sizes += f"{counted(held.features, 'feature')}, {counted(held.classes, 'class', 'classes')}"
    defaults = Settings()
    if not held.features:
        defaults = msgspec.structs.replace(defaults, model=ModelSettings(input="degree"))
    lines = ["# mgg train " + output.name, "# All other keys, and what they mean: docs/files.md"]
    section, file = "", os.path.relpath(graph, output.parent)
    for key, value, comment in [
        ("graph.file", file, sizes),
        *((key, attrgetter(key)(defaults), comment) for key, comment in KEYS.items()),
    ]:
        if section != (section := key.partition(".")[0]):
            lines += ["", f"[{section}]"]
        text = tomli_w.dumps({key.partition(".")[2]: value}).strip()
        lines.append(f"{text:24}  # {comment}" if comment else text)
    try:
        content = "\n".join(lines).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise InputError(f"{os.fsencode(graph)!r}: job files are UTF-8, and this name is not") from error
    with replacement(output, force=force, size=len(content)) as temporary:
        temporary.write_bytes(content)
    print(f"{output}: a job for {graph.name}; mgg train {shlex.quote(str(output))}")
