"""`mgg predict`: classes, probabilities and embeddings of every node, in the user's numbering."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import config
from ..config import ModelSettings, Settings
from ..data import row_files
from ..data.atomic_write import check_output
from ..data.store import open_graph
from ..errors import InputError
from ..nn.layers.models import tensor_of
from ..nn.streaming.rows import StreamedRows
from ..nn.workspace import accumulator
from ..runtime import backends, cores, exit_code, mpi, node_names
from . import memory, run_folder
from .checkpoints import weights
from .job import Job, build_trained, watchdog

WHAT = ("class", "probability", "embedding")


def process_predict(
    run: Path | None,
    output: Path,
    *,
    force: bool,
    model: Path | None = None,
    module: str = "",
    arguments: str = "{}",
    overrides: tuple[str, ...] = (),
    graph: Path | None = None,
    layers: tuple[str, ...] = (),
    what: str = ",".join(WHAT),
) -> int:
    """Write the predictions of a run's model for each node of its graph; return the exit code.

    Args:
        run: folder of the run, or None for a model that was trained elsewhere.
        model: file of its state, as `weights.load_state` reads it.
        module: its class, as model.module.
        arguments: of the class, a table in TOML.
        graph: another graph with as many features, or the graph of the model.
        layers: numbers from 1 on, or "all". [default: the last hidden layer]
        what: some of ``WHAT``, separated by commas.

    The arrays are /class, int64 [N], or uint8 [N, C] of 0 and 1 if nodes have several labels; /probability [N, C];
    /embedding [N, H], the last hidden layer's output after its activation (a model of one layer has none), or for each
    of ``layers`` /embedding/1 [N, H] and so on, where the last one is the logits (except with model.jumping). Row i
    belongs to node i of the imported graph, regardless of the order of rows in its file. If the file has names of
    nodes, /id, int64 [N], or /name, text [N], has them. For an output that ends in .npy see `row_files.paths`.
    """
    cores.return_freed_memory()
    comm = mpi.world()
    with mpi.agree(comm):
        if run is None:
            assert model is not None and graph is not None  # as the command asks
            source, settings = model, config.of_model(graph, module, arguments, overrides)
        else:
            source = run_folder.find(run)
            settings = config.load(source / run_folder.JOB, overrides, of_run=True)
        names = _names(what, layers, settings.model)
        if run is None:
            with open_graph(settings.graph.file) as opened:
                fitted = weights.Fitted(source.name, "", opened.features, 0, opened.multilabel)
        else:
            fitted = weights.fitted(source)
            if graph is not None:
                settings, fitted = _on_graph(settings, fitted, graph, source.name)
        if comm.rank == 0:
            with open_graph(settings.graph.file) as opened:
                named = row_files.kind_of_names(opened.contents)
            for path in row_files.paths(output, [*names, *filter(None, [named])]).values():
                check_output(path, force=force, inputs=[Path(settings.graph.file)])
    job = build_trained(settings, comm, fitted, source)
    with backends.closed_on_error(job.close):
        memory.check(job, memory.estimate(job, trains=False), trains=False)
    with watchdog(settings, comm) as dog:
        dog.step("predicting")
        bounds = job.part.bounds[comm.rank : comm.rank + 2].tolist()
        of_nodes = node_names.read(comm, job.part.path, *bounds)
        arrays = _results(job, names) | of_nodes
    _write(job, output, source.name, arrays)
    comm.Barrier()
    job.close()
    exit_code.record(0)
    return 0


def _on_graph(
    settings: Settings, fitted: weights.Fitted, graph: Path, run: str
) -> tuple[Settings, weights.Fitted]:
    """Return the settings and the fitted model for another graph. Raises InputError if the model knows only its own."""
    if settings.model.input == "learned":
        raise InputError(
            f"--graph: {run} learned the input of its own graph's nodes (model.input); it knows no other graph"
        )
    other = msgspec.structs.replace(settings.graph, file=str(graph.resolve()))
    return msgspec.structs.replace(settings, graph=other), replace(fitted, uuid="")


def _write(job: Job, output: Path, run: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Write the predictions, and print the names of the files. Collective."""
    attributes = {
        "format": "mgg-prediction",
        "version": 1,
        "graph": job.part.name,
        "graph_uuid": job.part.uuid,
        "run": run,
        "job": config.dumps(job.settings),
    }
    row_files.write(job.comm, output, job.part.slice.ids, arrays, job.part.bounds, attributes)
    if job.comm.rank == 0:
        for name, path in row_files.paths(output, list(arrays)).items():
            print(f"{path}: {name} {[job.part.nodes, *arrays[name].shape[1:]]}")


def _names(what: str, asked: tuple[str, ...], model: ModelSettings) -> dict[str, int]:
    """Return the names of the arrays, each with the index of the layer whose output it is made of.

    asked: values of the option --layer. Raises InputError.
    """
    layers = 1 if model.module else model.layers
    kinds = [name.strip() for name in what.split(",")]
    unknown = [name for name in kinds if name not in WHAT]
    if unknown:
        raise InputError(f"--what: {unknown[0]!r} is none of {', '.join(WHAT)}")
    names = {name: -1 for name in WHAT[:2] if name in kinds}
    if asked:
        if "embedding" not in kinds:
            raise InputError("--layer names embeddings, and --what leaves them out; add embedding to it")
        for text in asked:
            if text != "all" and (not text.isdecimal() or not 1 <= int(text) <= layers):
                raise InputError(
                    f"--layer {text}: the model has layers 1 to {layers}; name one of them, or all"
                )
        numbers = range(1, layers + 1) if "all" in asked else sorted({int(text) for text in asked})
        return names | {f"embedding/{number}": number - 1 for number in numbers}
    if "embedding" in kinds and (layers > 1 or model.jumping != "none"):
        names["embedding"] = -2
    if not names:
        which = f"{model.module}, whose layers are not known," if model.module else "a model of one layer"
        raise InputError(f"--what: {which} has no hidden one; ask for --layer 1")
    return names


def _results(job: Job, names: dict[str, int]) -> row_files.Arrays:
    """Return this rank's rows of the arrays. Collective."""
    graph = job.graph()
    job.model.to(job.backend.capabilities.device).eval()
    with torch.no_grad():
        outputs = job.model.layers(job.input, graph)
        logits = tensor_of(outputs[-1])
        logits = logits.to(accumulator(logits.dtype))
        found = {name: _predicted(name, logits, job.part.multilabel) for name in names if name in WHAT[:2]}
        found |= {name: _rows_of(outputs[layer]) for name, layer in names.items() if name not in found}
    return {name: _on_host(tensor) for name, tensor in found.items()}


def _rows_of(out: Tensor | StreamedRows) -> Tensor:
    """Return a layer's rows. Rows of a store stay on the host, as a device may lack room for all of them."""
    return out.read(0, out.shape[0]).clone() if isinstance(out, StreamedRows) else tensor_of(out)


def _predicted(name: str, logits: Tensor, multilabel: bool) -> Tensor:
    """Return classes or probabilities for logits [n, C]. multilabel: True to predict each class by itself."""
    if multilabel:
        return (logits > 0).to(torch.uint8) if name == "class" else torch.sigmoid(logits)
    return logits.argmax(1) if name == "class" else torch.softmax(logits, 1)


def _on_host(tensor: Tensor) -> NDArray[Any]:
    """Return rows without padding, halves as float32, since HDF5 and .npy have no bfloat16."""
    wide = tensor if tensor.dtype in (torch.int64, torch.uint8) else tensor.to(accumulator(tensor.dtype))
    return np.ascontiguousarray(wide.cpu().numpy())
