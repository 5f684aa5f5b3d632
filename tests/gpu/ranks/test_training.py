"""Training on ranks that share a GPU against the same training on the CPU: losses, bits, recorded epochs, waits."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mgg_hpc import config
from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers.digits import read_digits
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.runtime.backends.cuda.context import DeviceStream
from mgg_hpc.training import train
from mgg_hpc.training.job import build
from mgg_hpc.training.profile import profiler, trace
from mgg_hpc.training.screen import Screen
from mgg_hpc.training.trainer import Trainer
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs as searches

pytestmark = pytest.mark.mpi
GPU = pytest.mark.gpu(60)  # three trainings, one of them on the CPU

EPOCHS = {"cuda": 30, "shim": 3}
NODES = {"cuda": 20_000, "shim": 150}  # of the drawn graph
SEED = int(os.environ.get("MGG_GPU_SEED", "0"))
STREAMED = "3M"  # of memory, for a graph whose rows pass through the GPU: plans, and a part of the rows
# Relative, of the losses of all epochs; multiples of what rounding alone does on the CPU (docs/gpu-acceptance.md).
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
MULTIPLES = {"float32": 50, "bfloat16": 4}

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {},
    "gat": {"name": "gat", "heads": 4, "attention_dropout": 0.2},
    "edges": {"name": "gat", "heads": 4, "attention_dropout": 0.2, "edge_data": "flow"},
    "max": {"name": "sage", "aggr": "max"},
}


@dataclass(frozen=True)
class Case:
    """A graph and one of MODELS. transfer, dtype, memory: as in a job file."""

    graph: str
    transfer: str = "auto"
    dtype: str = "float32"
    layers: int = 2
    hidden: int = 16
    model: str = "gcn"
    memory: int | str = 0

    def __str__(self) -> str:
        streamed = "-streamed" * bool(self.memory)
        return f"{self.graph}-{self.transfer}-{self.dtype}-{self.layers}x{self.hidden}-{self.model}{streamed}"


CASES = [
    Case(graph, transfer) for graph in ("digits", "sbm") for transfer in ("auto", "direct", "get", "halo")
]
CASES += [Case("sbm", transfer, layers=3, hidden=33) for transfer in ("auto", "halo")]
CASES += [Case("sbm", each, hidden=8, model=name) for each in ("auto", "halo") for name in ("gat", "edges")]
CASES += [
    Case("sbm", hidden=8, model="max"),
    Case("sbm", layers=3, memory=STREAMED),
    Case("sbm", dtype="bfloat16"),
]


def graph_of(name: str, nodes: int) -> Graph:
    """By its name in a case."""
    if name == "digits":
        return read_digits()
    graph = generate.sbm(nodes, classes=4, features=24, degree=8.0, homophily=0.8, seed=SEED)
    flow = np.random.default_rng(SEED).standard_normal((graph.edges, 3)).astype(np.float32)
    return replace(graph, edge={"flow": flow})


@pytest.fixture(scope="module")
def comm():
    return mpi.world()


def with_graphs(made: Path, comm: Any, nodes: int) -> Path:
    """Return the first rank's folder, with both graphs. Collective."""
    made = Path(comm.bcast(made))
    for name in ("digits", "sbm") if comm.rank == 0 else ():
        writer.write(made / f"{name}.h5", graph_of(name, nodes))
    comm.Barrier()
    return made


@pytest.fixture(scope="module")
def folder(comm, request, tmp_path_factory) -> Path:
    """The folder of both graphs."""
    return with_graphs(tmp_path_factory.mktemp("training"), comm, NODES[request.config.getoption("--device")])


@pytest.fixture
def device(request, monkeypatch) -> str:
    """ "cuda" or "shim", which is what the backend cuda runs on."""
    device = request.config.getoption("--device")
    if device == "shim":
        engine = request.getfixturevalue("whole_engine")
        monkeypatch.setattr(cuda_rank, "hardware", lambda: (engine.module, engine.arrays))
        monkeypatch.setattr(DeviceStream, "probe_rows", 64)
    return device


def settings(case: Case, graphs: Path, backend: str, **run: object) -> config.Settings:
    """A job over the case's graph."""
    tree = {
        "graph": {"file": str(graphs / f"{case.graph}.h5")},
        "model": {"hidden": case.hidden, "layers": case.layers, "dropout": 0.5} | MODELS[case.model],
        "train": {"dtype": case.dtype, "seed": SEED},
        "run": {"backend": backend, "share_gpu": True} | run,
        "plan": {"transfer": case.transfer, "memory": case.memory},
    }
    return config.from_tree(tree, "test_training.py")


def losses(of: config.Settings, comm: Any, epochs: int) -> tuple[np.ndarray, bool]:
    """Return each epoch's loss and the validation loss after the last, and whether epochs were replayed. Collective."""
    job = build(of, comm)
    trainer, found = Trainer(job, job.graph()), []
    for epoch in range(1, epochs + 1):
        trainer.step(epoch)
        found.append(trainer.loss())
    trainer.evaluate()
    found.append(trainer.scores().val_loss)
    job.close()
    return np.array(found), trainer.replayed.recorded


def deviation(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest relative difference."""
    return float(np.max(np.abs(found / wanted - 1)))


def cpu_settings(case: Case, folder: Path, dtype: str, backend: str = "serial") -> config.Settings:
    """Return the settings of the same training on the CPU."""
    return settings(replace(case, transfer="auto", dtype=dtype, memory=0), folder, backend)


@GPU
@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_are_the_cpus(comm, folder, device, case):
    """And the same bits with and without a CUDA graph."""
    if comm.size == 1 and case.transfer != "auto":
        pytest.skip("nothing is transferred")
    epochs = EPOCHS[device]
    wanted, _ = losses(cpu_settings(case, folder, "float32"), MPI.COMM_SELF, epochs)
    found, recorded = losses(settings(case, folder, "cuda"), comm, epochs)
    apart = deviation(found, wanted)
    if comm.rank == 0:
        print(f"\nfigure deviation of losses, {case.dtype}, {case}: {apart:.1e}", flush=True)
    assert apart <= TOLERANCE[case.dtype], f"{found} {wanted}"
    assert len(set(wanted)) == len(wanted), "nothing is learned, or drawn"
    again, _ = losses(settings(case, folder, "cuda", cuda_graphs=False), comm, epochs)
    assert again.tobytes() == found.tobytes()
    if device == "cuda" and comm.size == 1 and not case.memory:
        assert recorded, "epochs were not recorded as a CUDA graph"


@GPU
def test_the_host_waits_for_no_gpu_within_a_training_step(comm, folder, device):
    """By `mgg train --profile`."""
    path, runs = folder / "traced.toml", folder / "runs"
    if comm.rank == 0:
        path.write_text(config.dumps(settings(Case("sbm"), folder, "cuda", folder=str(runs))))
    comm.Barrier()
    train.process_train(path, ("train.epochs=6",), train.Shown(Screen(False), profile=True))
    found = json.loads((runs / "latest" / "profile" / "summary.json").read_text())
    steps = [each for each in found["spans"] if each["span"][-1] == trace.STEP]
    assert steps and (device == "shim" or steps[0]["gpu_ms"] > 0)
    waits = (
        profiler.said_of_waits(found) if any(trace.STEP in each["span"] for each in found["waits"]) else []
    )
    if comm.rank == 0:
        print(f"\nfigure waits of the host: {len(waits)}", flush=True)
    assert not waits


@GPU
def test_other_libraries_arrays_are_over_the_same_memory(comm, folder, device):
    job = build(settings(Case("sbm", "direct"), folder, "cuda"), comm)
    _, rows = job.graph().exchange(5)
    library = pytest.importorskip("cupy") if device == "cuda" else np
    seen = library.from_dlpack(rows)
    seen[:] = comm.rank + 1
    if device == "cuda":
        library.cuda.get_current_stream().synchronize()  # another stream than torch's
    rows += 1
    job.backend.stream.finish()
    assert len(rows) and seen.shape == tuple(rows.shape) and bool((seen == comm.rank + 2).all())
    job.backend.memory.close()


@GPU
@pytest.mark.parametrize("edges", ["device", "host"])
def test_traversals_are_the_cpus(comm, folder, device, edges):
    path = folder / "sbm.h5"
    cpu = backends.make(backends.choose_cpu("serial", MPI.COMM_SELF), MPI.COMM_SELF)
    whole = parts.load(path, MPI.COMM_SELF, cpu, weights=True)
    gpus = backends.make(backends.choose("cuda", comm, share_gpu=True), comm)
    mine = parts.load(path, comm, gpus, weights=True, edges=edges)
    ranked = partial(searches.pagerank, tolerance=1e-7)
    for kind, given in (
        (searches.bfs, [[0, 1]]),
        (searches.sssp, [[0, 1]]),
        (searches.components, []),
        (ranked, []),
    ):
        for found, wanted in zip(kind(mine, *given), kind(whole, *given), strict=True):
            for name, values in wanted.arrays.items():
                of_all = np.empty_like(values)
                of_all[whole.ids] = values
                error = 1e-6 if name == "rank" else 0
                np.testing.assert_allclose(found.arrays[name], of_all[mine.ids], rtol=0, atol=error)
    gpus.memory.close()
    cpu.memory.close()


@pytest.mark.parametrize("nodes", [500, NODES["cuda"]])
def test_bounds_are_multiples_of_what_rounding_does(comm, tmp_path, nodes):
    """Compare losses with rows of each type on the CPU with those in float64; ranks add up in another order."""
    folder, worst = with_graphs(tmp_path, comm, nodes), {}
    for case in dict.fromkeys(replace(each, transfer="auto", memory=0) for each in CASES):
        exact, _ = losses(cpu_settings(case, folder, "float64"), MPI.COMM_SELF, EPOCHS["cuda"])
        of_ranks = cpu_settings(case, folder, case.dtype, "serial" if comm.size == 1 else "shm")
        apart = deviation(losses(of_ranks, comm, EPOCHS["cuda"])[0], exact)
        worst[case.dtype] = max(apart, worst.get(case.dtype, 0.0))
    if comm.rank == 0:
        print(f"\nlargest deviation of a loss from float64's, {comm.size} ranks: {worst}")
    for dtype, apart in worst.items():
        assert 0 < MULTIPLES[dtype] * apart < TOLERANCE[dtype]
