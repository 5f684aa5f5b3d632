"""`mgg.check`: a converted model beside the model itself, outputs and gradients."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
import tempfile
import threading
from multiprocessing import spawn
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...errors import InputError
from ...runtime import mpi
from ..api import allreduce_gradients, from_pyg
from ..graph.dist_graph import DistGraph
from .convert import convert


class _NoDropout(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is F.dropout else func(*args, **(kwargs or {}))


def check(model: Module, data: Any, ranks: int = 2, near: float = 1e-5) -> str:
    """Compare a converted model on several ranks with the model in one process: outputs, and gradients of parameters.

    model: takes (x, edge_index[, edge_weight or edge_attr]) of ``data``, a torch_geometric Data. ranks: number of
    processes that are started; under a launcher its ranks are used. near: largest difference, of the largest value.
    Dropout is left out; both are in training mode if the model is. Returns what was compared, as text. Raises
    InputError if they differ, and for what `convert` refuses.

    Started processes import the program, whose own code shall be under ``if __name__ == "__main__":``.
    """
    if mpi.launched():
        return _compared(copy.deepcopy(model), data, near, mpi.world())
    program = spawn.get_preparation_data("check")
    program["authkey"] = bytes(
        program["authkey"]
    )  # tensors cross by descriptors; the folder is this user's alone
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


def _arguments(data: Any, dtype: torch.dtype, graph: DistGraph | None = None) -> list[Any]:
    """Return what a model takes of a Data, or of this rank's part, with floats of a type."""
    found: list[Any] = [data.x, data.edge_index] if graph is None else [graph.x, graph.edge_index()]
    if data.edge_weight is not None:
        found.append(data.edge_weight if graph is None else graph.edge_weight())
    elif data.edge_attr is not None:
        found.append(data.edge_attr if graph is None else graph.edge_data("attr"))
    return [each.to(dtype) if each.is_floating_point() else each for each in found]


def _compared(model: Module, data: Any, near: float, comm: Any) -> str:
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    alone = copy.deepcopy(model)
    with from_pyg(data, comm=comm, dtype=str(dtype).removeprefix("torch.")) as graph:
        with _NoDropout():
            wanted = alone(*_arguments(data, dtype))
        weights = torch.linspace(-1, 1, wanted.numel()).sin().view(wanted.shape).to(dtype)
        wanted.backward(weights)
        converted = convert(model, graph, check=False)
        converted._conversion.drops = False  # dropout
        out = converted(*_arguments(data, dtype, graph))
        out.backward(weights[graph.ids])
        allreduce_gradients(model, graph)
        with mpi.agree(comm):
            largest = float(wanted.detach().abs().max())
            apart = {"outputs": float((out - wanted[graph.ids]).detach().abs().max()) / largest}
            of_one = {name: each.grad for name, each in alone.named_parameters() if each.grad is not None}
            largest = max((float(each.abs().max()) for each in of_one.values()), default=1)
            for name, each in model.named_parameters():
                if name in of_one and each.grad is not None:
                    apart[f"gradients of {name}"] = float((each.grad - of_one[name]).abs().max()) / largest
            name, most = max(apart.items(), key=lambda each: each[1])
            if not most <= near:
                raise InputError(
                    f"check: {name} differ by {most:.1e} of the largest value on {comm.size} ranks"
                )
        most = max(comm.allgather(most))
    return f"equal on {comm.size} ranks: outputs and gradients of {len(of_one)} parameters, to {most:.0e}"


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
