"""Checks of a converted model against the model itself: a few rows at the first call, and all on the user's request."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...errors import InputError
from ...plan.workload import prefix_sum
from ...runtime import mpi
from ..graph.dist_graph import DistGraph
from .layouts import Count, Divided, dims, divided, layout
from .running import Run

ROWS = 8
MOST_EDGES, MOST_VALUES = 1_000_000, 2**26  # that are compared at once, and their columns
NEAR = {torch.float64: 1e-8, torch.float32: 1e-4}  # of the largest value; halves: 0.05


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Evaluate within a block, without gradients."""
    modes = [(each, each.training) for each in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def some_rows(run: Run, alone: Any, out: Any, args: Any, kwargs: Any) -> str:
    """Compare rows of a converted model in evaluation with the model's own, over the edges that they depend on.

    run: the call that gave ``out``. alone: calls the model itself. Returns why nothing was compared, or "". Collective.
    Raises InputError, the same on all ranks, if they differ.
    """
    graph, lists = run.graph, run.lists
    if not isinstance(out, Tensor) or dims(out)[:1] != (Divided(lists.nodes),):
        return "the model does not return rows of the nodes"
    if run.drew:
        return "it draws random numbers"
    rows = np.unique(np.linspace(0, graph.num_nodes - 1, ROWS).astype(np.int64))
    most = min(MOST_EDGES, MOST_VALUES // max([1, *(columns for *_, columns in run.exchanges)]))
    every = np.arange(graph.num_nodes) if graph.num_edges <= most else rows
    if len(every) == len(rows) < graph.num_nodes:
        for there, what in (
            (run.pooled, "it reduces all rows to one value"),
            (any(what == "sums" for _, what, _ in run.exchanges), "it sums at the sources of edges"),
            (Count.used, "it computes with the number of nodes or edges"),
        ):
            if there:
                return f"{what}, and the graph has more than {most:,} edges"
    found = _around(graph, every, len(run.exchanges) + 1, most)
    if found is None:
        return f"the rows that {ROWS} of them depend on have more than {most:,} edges"
    nodes, places, edges = found
    low = int(prefix_sum(graph.counts)[graph.rank])
    mine = nodes[(nodes >= low) & (nodes < low + graph.rows)] - low

    def part(value: Any) -> Any:
        """Return what this rank gives of an argument: of a tensor the rows that are needed."""
        if not isinstance(value, Tensor) or (place := divided(value)) is None:
            return value if isinstance(value, (Tensor, type(None))) else NotImplemented
        entry = dims(value)[place]
        chosen = {lists.nodes: mine, lists.edges: places}.get(entry.domain)  # type: ignore[union-attr]
        if chosen is None or (place and layout(value).numbers is None):
            return NotImplemented
        return [] if place else [value.detach()[torch.from_numpy(chosen)]]

    given = [part(each) for each in (*args, *kwargs.values())]
    wanted = rows[(rows >= low) & (rows < low + graph.rows)] - low
    parts = graph.comm.gather((given, edges, out.detach()[torch.from_numpy(wanted)].cpu()))
    said = "" if parts is None else _differing(alone, parts, nodes, rows, len(args), list(kwargs))
    said = graph.comm.bcast(said)
    if said.startswith("!"):
        raise InputError(said[1:])
    return said


def _around(graph: DistGraph, rows: NDArray[np.int64], hops: int, most: int) -> Any:
    """Return the rows within hops of others against the edges, ascending, and this rank's edges to them: their places, and
    both ends. None with too many edges. Collective.
    """
    edges, low = graph.part.slice, int(prefix_sum(graph.counts)[graph.rank])
    nodes, new = rows, rows
    places, total = np.zeros(0, np.int64), 0
    for _ in range(hops):
        mine = new[(new >= low) & (new < low + graph.rows)] - low
        counts = np.diff(edges.indptr)[mine]
        total += int(graph.comm.allreduce(int(counts.sum())))
        if total > most:
            return None
        first = np.repeat(edges.indptr[mine] - (np.cumsum(counts) - counts), counts)
        here = first + np.arange(len(first))
        places = np.append(places, here)
        sources = np.unique(np.concatenate(graph.comm.allgather(edges.indices[here].astype(np.int64))))
        new = np.setdiff1d(sources, nodes)
        nodes = np.union1d(nodes, new)
    places.sort()
    target = np.searchsorted(edges.indptr, places, side="right") - 1 + low
    return nodes, places, np.stack([edges.indices[places].astype(np.int64), target])


def _differing(alone: Any, every: Any, nodes: Any, rows: Any, count: int, names: list[str]) -> str:
    """Return what is wrong with rows of all ranks, after "!"; why nothing was compared, or ""."""
    if any(each is NotImplemented for each in every[0][0]):
        return "its arguments are not tensors of nodes and edges"
    index = torch.from_numpy(np.searchsorted(nodes, np.concatenate([edges for _, edges, _ in every], 1)))
    whole = []
    for parts in zip(*(given for given, *_ in every), strict=True):
        rows_of = isinstance(parts[0], list)
        whole.append(
            torch.cat([each for (each,) in parts]) if rows_of and parts[0] else index if rows_of else parts[0]
        )
    try:
        wanted = alone(*whole[:count], **dict(zip(names, whole[count:], strict=True)))
    except Exception as error:
        return f"the model does not run on a part of the graph ({type(error).__name__}: {error})"
    found = torch.cat([each for *_, each in every])
    wanted = wanted[torch.from_numpy(np.searchsorted(nodes, rows))].to(found)
    halves = torch.is_autocast_enabled(found.device.type) or found.dtype not in NEAR
    near = (0.05 if halves else NEAR[found.dtype]) * float(wanted.abs().max())
    apart = (found - wanted).abs().reshape(len(rows), -1).amax(1)
    if not bool((apart > near).any()):
        return ""
    row = int(apart.argmax())
    return (
        f"!convert: of node {rows[row]} in the graph's order the converted model gives {found[row].flatten()[:3].tolist()}, "
        f"the model itself {wanted[row].flatten()[:3].tolist()}: this is an error of mgg.convert, which mgg.explain may "
        "show; check=False goes on all the same"
    )


# ---- on request


class _NoDropout(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is F.dropout else func(*args, **(kwargs or {}))


def check(model: Module, data: Any, ranks: int = 2, near: float = 1e-5) -> str:
    """Compare a converted model on several ranks with the model in one process: outputs, and gradients of parameters.

    model: takes (x, edge_index[, edge_weight or edge_attr]) of ``data``, a torch_geometric Data. ranks: number of
    processes that are started; under a launcher its ranks are used. near: largest difference, of the largest value.
    Dropout is left out; both are in training mode if the model is. Returns what was compared, as text. Raises InputError
    if they differ, and for what `convert` refuses.

    Started processes import the program, whose own code shall be under ``if __name__ == "__main__":``.
    """
    if mpi.launched():
        return _compared(copy.deepcopy(model), data, mpi.world(), near)
    with tempfile.TemporaryDirectory() as folder:
        given, program = Path(folder, "given"), Path(folder, "check.py")
        program_state = spawn.get_preparation_data("check")
        program_state.pop("authkey", None)  # which is not to be written
        given.write_bytes(pickle.dumps((program_state, pickle.dumps((model, data)), near)))
        program.write_text("import sys\nfrom mgg_hpc.nn.convert import check\ncheck.inside(sys.argv[1])\n")
        command = [sys.executable, "-m", "mgg_hpc", "launch", "-n", str(ranks), str(program), str(given)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise InputError(
            next((each for each in lines if "error: " in each), lines[-1]).partition("error: ")[2]
            or lines[-1]
        )
    return done.stdout.strip().splitlines()[-1]


def _arguments(data: Any, graph: DistGraph | None = None) -> list[Any]:
    """Return what a model takes of a Data, or of this rank's part."""
    found = [data.x, data.edge_index] if graph is None else [graph.x, graph.edge_index()]
    if data.edge_weight is not None:
        found.append(data.edge_weight if graph is None else graph.edge_weight())
    elif data.edge_attr is not None:
        found.append(data.edge_attr if graph is None else graph.edge_data("attr"))
    return found


def _compared(model: Module, data: Any, comm: Any, near: float) -> str:
    from ..api import allreduce_gradients, from_pyg
    from .convert import convert

    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    alone = copy.deepcopy(model)
    with from_pyg(data, comm=comm, dtype=str(dtype).removeprefix("torch.")) as graph:
        with _NoDropout():
            wanted = alone(
                *(each.to(dtype) if each.is_floating_point() else each for each in _arguments(data))
            )
        weights = torch.linspace(-1, 1, wanted.numel()).sin().view(wanted.shape).to(dtype)
        wanted.backward(weights)
        converted = convert(model, graph, check=False)
        converted._conversion.drops = False  # dropout
        given = _arguments(data, graph)
        out = converted(*(each.to(dtype) if each.is_floating_point() else each for each in given))
        out.backward(weights[graph.ids])
        allreduce_gradients(model, graph)
        with mpi.agree(comm):
            apart = {
                "outputs": float((out - wanted[graph.ids]).detach().abs().max())
                / float(wanted.detach().abs().max())
            }
            pairs = [
                (name, one.grad, other.grad)
                for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True)
                if other.grad is not None
            ]
            largest = max((float(each.abs().max()) for *_, each in pairs), default=1)
            apart |= {
                f"the gradient of {name}": float((one - other).abs().max()) / largest
                for name, one, other in pairs
            }
            name, most = max(apart.items(), key=lambda each: each[1])
            if not most <= near:
                raise InputError(
                    f"check: {name} differ by {most:.1e} of the largest value on {comm.size} ranks"
                )
        most = max(comm.allgather(most))
    return f"equal on {comm.size} ranks: outputs and gradients of {len(pairs)} parameters differ by at most {most:.0e}"


def inside(given: str) -> None:
    """Compare what the process that started this one has written. Collective."""
    preparation, model, near = pickle.loads(Path(given).read_bytes())
    comm = mpi.world()
    spawn.prepare(preparation)
    said = _compared(*pickle.loads(model), comm, near)
    if comm.rank == 0:
        print(said)
