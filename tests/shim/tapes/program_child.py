"""Train the example's programs on the CPU and on a GPU that the shim plays: program_child.py MODULE GRAPH PROGRAM...

Prints, as JSON, the losses of each program: of the CPU, of interpreted tapes, and of compiled ones.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
from gpu.pes.engine import Engine

import mgg_hpc as mgg
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from shim.tapes.compiled import HostKernels

ROOT = Path(__file__).parents[3]
EPOCHS = 3
_spec = importlib.util.spec_from_file_location("saga_programs", ROOT / "examples" / "saga_programs.py")
examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)


def losses(path: str, program: str, backend: str) -> list[float]:
    """Return the losses of a few epochs."""
    mgg.manual_seed(1)
    torch.manual_seed(1)
    found = []
    with mgg.open(path, backend=backend) as graph:
        net = examples.Net(program, graph.num_features, 9, graph.num_classes, 2)
        descent = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(EPOCHS):
            descent.zero_grad()
            loss = graph.loss(net(graph), torch.nn.functional.cross_entropy)
            loss.backward()
            mgg.allreduce_gradients(net)
            descent.step()
            found.append(float(loss.detach()))
    return found


def main() -> None:
    library, path, programs = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    engine = Engine.shim(library)
    cuda_rank.hardware = lambda: (engine.module, engine.arrays)
    said = {}
    kernels = HostKernels(library, engine.module)
    for program in programs:
        found = {"cpu": losses(path, program, "serial"), "interpreted": losses(path, program, "cuda")}
        engine.arrays.tape_kernels = lambda: kernels
        found["compiled"] = losses(path, program, "cuda")
        del engine.arrays.tape_kernels
        said[program] = found
    said["launches"] = kernels.launches
    print(json.dumps(said))


main()
