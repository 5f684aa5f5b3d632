"""What a trained model says of every node: classes, probabilities and embeddings, in the user's numbering."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from .. import config
from ..data.whole import check_output, replacement
from ..errors import InputError
from ..runtime import exit_code, mpi
from . import checkpoint, memory, run_folder
from .job import build

BLOCK = 1 << 16  # rows sent at a time


def process_predict(run: Path, output: Path, force: bool) -> int:
    """`mgg predict`: write /class int64 [N], /probability [N, C] and /embedding [N, H] of a run; the exit code.

    H is the width of the last hidden layer (its output after ReLU); a one-layer model has no embedding. Row i
    belongs to node i of the graph as it was imported, whatever the order of rows in its file.
    """
    memory.return_freed_memory()
    comm = mpi.world()
    with mpi.agree(comm):
        folder = run_folder.find(run)
        if comm.rank == 0:
            check_output(output, force=force)
        settings = config.load(folder / run_folder.JOB)
    job = build(settings, comm)
    with mpi.agree(comm):
        _check_graph(folder, job.part.uuid, job.part.path)
        checkpoint.load_weights(folder, job.model)
    graph = job.graph()
    job.model.eval()
    with torch.no_grad():
        *hidden, logits = job.model.layers(job.x, graph)
    results = {"class": logits.argmax(1), "probability": torch.softmax(logits, 1)}
    if hidden:
        results["embedding"] = hidden[-1]
    arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in results.items()}
    attributes = {
        "format": "mgg-prediction",
        "version": 1,
        "graph": job.part.name,
        "graph_uuid": job.part.uuid,
        "run": folder.name,
        "job": config.dumps(settings),
    }
    if comm.rank == 0:
        with _new_file(output, job.part.nodes, arrays, attributes) as maps:
            for ids, blocks in _blocks(comm, job.part.slice.ids, arrays, job.part.bounds):
                for name, block in blocks.items():
                    maps[name][ids] = block
        print(f"{output}: {', '.join(f'{name} {list(m.shape)}' for name, m in maps.items())}")
    else:
        _send(comm, job.part.slice.ids, arrays)
    comm.Barrier()
    job.backend.close()
    exit_code.record(0)
    return 0


def _check_graph(folder: Path, found: str, path: Path) -> None:
    """Refuse a graph that took the place of the one that was trained on."""
    summary = folder / run_folder.SUMMARY
    try:
        trained = json.loads(summary.read_text())["graph"]["uuid"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{summary}: no summary of a finished run ({error!r}); train again") from error
    if found != trained:
        raise InputError(
            f"{path}: is graph {found}, but {folder.name} was trained on {trained}; put that one back, or train again"
        )


@contextmanager
def _new_file(
    output: Path, nodes: int, arrays: dict[str, NDArray[Any]], attributes: dict[str, Any]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Arrays over the datasets of a file that takes its name when all of them are filled."""
    size = sum(array.itemsize * int(np.prod(array.shape[1:])) for array in arrays.values()) * nodes
    with replacement(output, force=True, size=size) as temporary:
        offsets = {}
        with h5py.File(temporary, "w") as file:
            file.attrs.update(attributes)
            for name, array in arrays.items():
                kind = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                kind.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                space = h5py.h5s.create_simple((nodes, *array.shape[1:]))
                made = h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(array.dtype), space, kind)
                offsets[name] = made.get_offset()
        yield {
            name: np.memmap(temporary, array.dtype, "r+", offsets[name], (nodes, *array.shape[1:]))
            for name, array in arrays.items()
        }


def _send(comm: Any, ids: NDArray[np.int64], arrays: dict[str, NDArray[Any]]) -> None:
    for first in range(0, len(ids), BLOCK):
        for array in (ids, *arrays.values()):
            comm.Send(np.ascontiguousarray(array[first : first + BLOCK]), 0)


def _blocks(
    comm: Any, ids: NDArray[np.int64], arrays: dict[str, NDArray[Any]], bounds: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
    """(ids, values of each array) of all ranks' rows, a block at a time, on rank 0."""
    yield ids, arrays
    for rank in range(1, comm.size):
        rows = int(bounds[rank + 1] - bounds[rank])
        for first in range(0, rows, BLOCK):
            count = min(BLOCK, rows - first)
            received = {name: np.empty((count, *a.shape[1:]), a.dtype) for name, a in arrays.items()}
            block_ids = np.empty(count, np.int64)
            for array in (block_ids, *received.values()):
                comm.Recv(array, rank)
            yield block_ids, received
