"""`mgg.check`: a converted model beside the model itself, outputs and gradients."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import subprocess
import sys
import tempfile
import threading
from multiprocessing import spawn
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...errors import InputError
from ...runtime import mpi
from ..api import allreduce_gradients, from_pyg
from ..graph.dist_graph import DistGraph
from .convert import convert, takes_data


class _NoDropout(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is F.dropout else func(*args, **(kwargs or {}))


def check(model: Module, data: Any, ranks: int = 2, near: float = 1e-5) -> str:
    """Compare a converted model on several ranks with the model in one process: outputs, and gradients of parameters.

    model: takes x, edge_index and further tensors of ``data``, a torch_geometric Data, by name, or a Data; of a
    HeteroData x_dict and edge_index_dict. ranks: number of processes that are started; under a launcher its ranks are
    used. near: largest difference, of the largest value. Dropout is left out; both are in training mode if the model
    is. Returns what was compared, as text. Raises InputError if they differ, for what `convert` refuses, and for
    results that are not rows of the nodes.

    Started processes import the program, whose own code shall be under ``if __name__ == "__main__":``.
    """
    if mpi.launched():
        return _compared(copy.deepcopy(model), data, near, mpi.world())
    program = spawn.get_preparation_data("check")
    # Tensors cross by descriptors; the folder is this user's alone.
    program["authkey"] = bytes(program["authkey"])
    with tempfile.TemporaryDirectory() as folder, Listener(str(Path(folder, "given")), "AF_UNIX") as listener:
        threading.Thread(target=_give, args=(listener, program, (model, data, near)), daemon=True).start()
        started = Path(folder, "check.py")
        started.write_text("import sys\nfrom mgg_hpc.nn.convert import check\ncheck.inside(sys.argv[1])\n")
        command = [sys.executable, "-m", "mgg_hpc", "launch", "-n", ranks, started, listener.address]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        line = next((each for each in lines if "error: " in each), lines[-1])
        raise InputError(line.partition("error: ")[2] or line)
    return done.stdout.strip().splitlines()[-1]


def _arguments(model: Module, dtype: torch.dtype, data: Any, graph: DistGraph, whole: bool) -> dict[str, Any]:
    """Return what a model takes of a Data, or of this rank's part, with floats of a type. Raises InputError."""
    takes = inspect.signature(model.forward).parameters
    if graph.part.types:
        x = data.x_dict if whole else graph.x_dict
        index = data.edge_index_dict if whole else graph.edge_index_dict()
        named = [name for name, each in takes.items() if each.kind == each.POSITIONAL_OR_KEYWORD]
        given = {name: each.to(dtype) for name, each in x.items()}, index
        return dict(zip(named or ["x_dict", "edge_index_dict"], given, strict=False))
    names = [each for each in graph.part.edge_data if f"edge_{each}" in data]
    there: dict[str, Any] = {
        "x": data.x if whole else graph.x,
        "edge_index": data.edge_index if whole else graph.edge_index(),
    }
    there |= {f"edge_{each}": data[f"edge_{each}"] if whole else graph.edge_data(each) for each in names}
    if data.edge_weight is not None:
        there["edge_weight"] = data.edge_weight if whole else graph.edge_weight()
    there = {name: each.to(dtype) if each.is_floating_point() else each for name, each in there.items()}
    if takes_data(takes):
        return {"data": type(data)(**there)}
    found = {}
    others = [["x"], ["edge_index"], ["edge_weight", "edge_attr"]]  # of arguments with other names, by place
    for place, (name, argument) in enumerate(takes.items()):
        required = argument.default is argument.empty and argument.kind == argument.POSITIONAL_OR_KEYWORD
        tried = [name, f"edge_{name}", *(others[place] if required and place < len(others) else [])]
        same = next((each for each in tried if each in there), None)
        if same is not None:
            found[name] = there[same]
        elif required:
            raise InputError(f"check: the model takes {name}, which data lack; they have {', '.join(there)}")
    return found


def _apart(found: Any, wanted: Tensor, largest: float) -> float:
    """Return the largest difference of two tensors, of the largest value. found: None for zeros."""
    apart = (wanted if found is None else found - wanted).detach().abs()
    return float(apart.max()) / largest if apart.numel() else 0.0


def _compared(model: Module, data: Any, near: float, comm: Any) -> str:
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    alone = copy.deepcopy(model)
    with from_pyg(data, comm=comm, dtype=str(dtype).removeprefix("torch.")) as graph:
        with _NoDropout():
            wanted = alone(**_arguments(alone, dtype, data, graph, True))
        if isinstance(wanted, dict):
            some = {name: each for name, each in wanted.items() if each is not None}
            columns = next(iter(some.values())).shape[1:]
            whole = [some.get(name, torch.zeros(n, *columns)) for name, n in data.num_nodes_dict.items()]
            wanted = torch.cat(whole)
        if not isinstance(wanted, Tensor) or wanted.shape[:1] != (graph.num_nodes,):
            what = f"a tensor {list(wanted.shape)}" if isinstance(wanted, Tensor) else type(wanted).__name__
            raise InputError(f"check: the model returns {what}; expected a tensor with a row for each node")
        weights = torch.linspace(-1, 1, wanted.numel()).sin().view(wanted.shape).to(dtype)
        converted = convert(model, graph, check=False)
        converted._conversion.drops = False  # dropout
        out = converted(**_arguments(model, dtype, data, graph, False))
        out = graph.joined(out) if isinstance(out, dict) else out
        for each, of_rows in ((wanted, weights), (out, weights[graph.ids])):
            if each.requires_grad:
                each.backward(of_rows)
        allreduce_gradients(model, graph)
        with mpi.agree(comm):
            apart = {"outputs": _apart(out, wanted[graph.ids], float(wanted.detach().abs().max()) or 1)}
            of_one = {name: each.grad for name, each in alone.named_parameters()}
            largest = max(
                (float(each.abs().max()) for each in of_one.values() if each is not None), default=1
            )
            for name, each in model.named_parameters():
                own = of_one[name]
                own = torch.zeros_like(each) if own is None else own
                apart[f"gradients of {name}"] = _apart(each.grad, own, largest or 1)
            name, most = max(apart.items(), key=lambda each: (math.isnan(each[1]), each[1]))
            if not most <= near:
                raise InputError(
                    f"check: {name} differ by {most:.1e} of the largest value on {comm.size} ranks"
                )
        most = max(comm.allgather(most))
    count = sum(each is not None for each in of_one.values())
    return f"equal on {comm.size} ranks: outputs and gradients of {count} parameters, to {most:.0e}"


def _give(listener: Listener, *given: Any) -> None:
    """Send objects to each rank that asks, until the listener is closed."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept() as rank:
                for each in given:
                    rank.send(each)


def inside(address: str) -> None:
    """Compare what the process that started this one gives. Collective."""
    comm = mpi.world()
    with Client(address, "AF_UNIX") as giver:
        spawn.prepare(giver.recv())
        model, data, near = giver.recv()
    said = _compared(model, data, near, comm)
    if comm.rank == 0:
        print(said)
