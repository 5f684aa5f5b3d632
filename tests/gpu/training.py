"""Training on a GPU, or over the shim, against the same training on the CPU: losses, bits, recorded epochs, half rows.

    python tests/gpu/training.py --ranks 1 --json result.json     alone, without NVSHMEM
    python tests/gpu/training.py --ranks 2                        two ranks that share the GPU
    python tests/gpu/training.py --ranks 2 --mps                  side by side, by a daemon of their own

Exit codes are those of processes.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import numpy as np

from gpu import processes, result
from gpu.pes.engine import Engine
from mgg_hpc import config
from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers.digits import read_digits
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.training import train
from mgg_hpc.training.job import build
from mgg_hpc.training.profile import profiler, trace
from mgg_hpc.training.trainer import Trainer
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs as searches

EPOCHS, FEW_EPOCHS = 30, 3
NODES = 20_000  # of the drawn graph
STREAMED = "3M"  # of memory, for a graph whose rows pass through the GPU: plans, and a part of the rows
CASE_SECONDS = 60.0  # three trainings, one of them on the CPU
# Relative, of the losses of all epochs. On the CPU they lie so far from float64's (bounds.py, which measures it anew):
# float32 up to 5.7e-7 on 1, 2 and 4 ranks with the seed 0 that `make gpu-test` uses, and 1.5e-5 in one of nine seeds
# (digits, where a value came to lie on the other side of ReLU's zero); bfloat16 rows up to 4.9e-3, of nine seeds
# 7.2e-3. The bounds are 6 and 4 times what was found over all seeds.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}

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
    transfer: str
    dtype: str = "float32"
    layers: int = 2
    hidden: int = 16
    model: str = "gcn"
    memory: int | str = 0


def cases(ranks: int, *, small: bool = False) -> list[Case]:
    """The demo's graph and a drawn one, by every transfer where rows are remote; where small, one case."""
    if small:
        return [Case("sbm", "auto")]
    transfers = ("auto", "direct", "get", "halo") if ranks > 1 else ("auto",)
    found = [Case(graph, transfer) for graph in ("digits", "sbm") for transfer in transfers]
    found.append(Case("sbm", "halo" if ranks > 1 else "auto", layers=3, hidden=33))
    found += [Case("sbm", transfers[-1], hidden=8, model=each) for each in ("gat", "edges")]
    found.append(Case("sbm", "auto", hidden=8, model="max"))
    found.append(Case("sbm", "auto", layers=3, memory=STREAMED))
    return [*found, Case("sbm", "auto", "bfloat16")]


def graph_of(name: str, nodes: int, seed: int) -> Graph:
    """By its name in a case."""
    if name == "digits":
        return read_digits()
    graph = generate.sbm(nodes, classes=4, features=24, degree=8.0, homophily=0.8, seed=seed)
    flow = np.random.default_rng(seed).standard_normal((graph.edges, 3)).astype(np.float32)
    return replace(graph, edge={"flow": flow})


@dataclass
class Runs:
    """All ranks, from one of them."""

    engine: Engine
    comm: Any
    folder: Path
    few: bool
    seed: int
    deviation: dict[str, float] = field(
        default_factory=dict
    )  # largest from the CPU's losses, relative, by dtype

    def settings(self, case: Case, backend: str, **run: object) -> config.Settings:
        """A job over the case's graph."""
        return config.from_tree(
            {
                "graph": {"file": str(self.folder / f"{case.graph}.h5")},
                "model": {"hidden": case.hidden, "layers": case.layers, "dropout": 0.5} | MODELS[case.model],
                "train": {"dtype": case.dtype, "seed": self.seed},
                "run": {"backend": backend, "share_gpu": True} | run,
                "plan": {"transfer": case.transfer, "memory": case.memory},
            },
            "training.py",
        )

    def losses(self, settings: config.Settings, comm: Any) -> tuple[np.ndarray, bool]:
        """Return the losses of each epoch and of the validation rows after the last, and whether epochs were replayed.

        Collective.
        """
        job = build(settings, comm)
        trainer, found = Trainer(job, job.graph()), []
        for epoch in range(1, (FEW_EPOCHS if self.few else EPOCHS) + 1):
            trainer.step(epoch)
            found.append(trainer.loss())
        trainer.evaluate()
        found.append(trainer.scores().val_loss)
        job.close()
        return np.array(found), trainer.replayed.recorded

    def check(self, case: Case) -> tuple[float, str]:
        """The worst error as a share of the tolerance, and what is wrong. Collective."""
        from mpi4py import MPI

        cpu = replace(case, transfer="auto", dtype="float32", memory=0)
        wanted, _ = self.losses(self.settings(cpu, "serial"), MPI.COMM_SELF)
        found, recorded = self.losses(self.settings(case, "cuda"), self.comm)
        apart = float(np.max(np.abs(found / wanted - 1)))
        self.deviation[case.dtype] = max(apart, self.deviation.get(case.dtype, 0.0))
        worst = apart / TOLERANCE[case.dtype]
        problems = [] if worst <= 1 else [f"losses differ by {apart:.1e}: {found} {wanted}"]
        if len(set(wanted)) < len(wanted):
            problems.append("nothing is learned, or drawn")
        again, _ = self.losses(self.settings(case, "cuda", cuda_graphs=False), self.comm)
        if again.tobytes() != found.tobytes():
            problems.append(f"other bits {'without a CUDA graph' if recorded else 'the second time'}")
        records = self.comm.size == 1 and not self.few and not case.memory
        if self.engine.device == "cuda" and records and not recorded:
            problems.append("epochs were not recorded as a CUDA graph")
        every = self.comm.allgather((worst, problems))
        said = [f"rank {rank}: {wrong[0]}" for rank, (_, wrong) in enumerate(every) if wrong]
        return max(each for each, _ in every), "; ".join(said)

    def arrays(self) -> str:
        """What is wrong with rows on the symmetric heap as other libraries' arrays over the same memory. Collective."""
        job = build(self.settings(Case("sbm", "direct"), "cuda"), self.comm)
        _, rows = job.graph().exchange(5)
        if self.engine.device == "cuda":
            import cupy as library
        else:
            import numpy as library
        seen = library.from_dlpack(rows)
        seen[:] = self.comm.rank + 1
        if self.engine.device == "cuda":
            library.cuda.get_current_stream().synchronize()  # another stream than torch's
        rows += 1
        job.backend.stream.finish()
        same = seen.shape == tuple(rows.shape) and bool((seen == self.comm.rank + 2).all())
        job.backend.memory.close()
        return "" if same and len(rows) else "another library's array is not over the same memory"

    def traversals(self) -> str:
        """Return the arrays that traversals on these ranks do not compute as one CPU does, or "". Collective."""
        from mpi4py import MPI

        path, wrong = self.folder / "sbm.h5", []
        cpu = backends.make(backends.choose_cpu("serial", MPI.COMM_SELF), MPI.COMM_SELF)
        whole = parts.load(path, MPI.COMM_SELF, cpu, weights=True)
        for edges in ("device", "host"):
            gpus = backends.make(backends.choose("cuda", self.comm, share_gpu=True), self.comm)
            mine = parts.load(path, self.comm, gpus, weights=True, edges=edges)
            for kind in (
                searches.bfs,
                searches.sssp,
                searches.components,
                partial(searches.pagerank, tolerance=1e-7),
            ):
                given = ([0, 1],) if kind in (searches.bfs, searches.sssp) else ()
                for found, wanted in zip(kind(mine, *given), kind(whole, *given), strict=True):
                    for name, values in wanted.arrays.items():
                        of_all = np.empty_like(values)
                        of_all[whole.ids] = values
                        error = 1e-6 if name == "rank" else 0
                        if not np.allclose(found.arrays[name], of_all[mine.ids], rtol=0, atol=error):
                            wrong.append(f"{name}, edges on the {edges}")
            gpus.memory.close()
        cpu.memory.close()
        return "; ".join(wrong[:1])

    def waits(self) -> str:
        """Where some rank's host waits for its GPU within a training step, by `mgg train --profile`. Collective."""
        path, runs = self.folder / "traced.toml", self.folder / "runs"
        if self.comm.rank == 0:
            path.write_text(config.dumps(self.settings(Case("sbm", "auto"), "cuda", folder=str(runs))))
        self.comm.Barrier()
        train.process_train(path, ("train.epochs=6",), False, False, profile=True)
        found = json.loads((runs / "latest" / "profile" / "summary.json").read_text())
        steps = [each for each in found["spans"] if each["span"][-1] == trace.STEP]
        if not steps or (self.engine.device == "cuda" and steps[0]["gpu_ms"] == 0):
            return "the trace has no training step, or nothing that ran in it"
        waits = any(trace.STEP in each["span"] for each in found["waits"])
        return "; ".join(profiler.said_of_waits(found)) if waits else ""


def play(arguments: argparse.Namespace) -> int:
    """As one of the ranks."""
    comm = mpi.world()
    with contextlib.ExitStack() as held:
        with mpi.agree(comm):
            engine = held.enter_context(result.engine_of(arguments))
        cuda_rank.hardware = lambda: (engine.module, engine.arrays)
        if engine.device == "shim":
            cuda_rank.RankBackend.probe_rows = 64
        engine.seed(arguments.seed, comm.rank)
        made = held.enter_context(tempfile.TemporaryDirectory(prefix="mgg-training-"))
        folder = Path(comm.bcast(made))
        nodes = 150 if arguments.few else 2_000 if arguments.small else NODES
        with mpi.agree(comm):
            for name in ("digits", "sbm") if comm.rank == 0 else ():
                writer.write(folder / f"{name}.h5", graph_of(name, nodes, arguments.seed))
        kept = {"processes": comm.size, "few": arguments.few, "seed": arguments.seed}
        runs = Runs(engine, comm, folder, arguments.few, arguments.seed)
        report = result.Report(arguments, engine.about(), **kept, deviation=runs.deviation)
        seconds = result.case_seconds(arguments, CASE_SECONDS)
        for case in cases(comm.size, small=arguments.small):
            line = report.line(f"losses, {case.transfer}", case.dtype)
            with (
                line.timed(),
                result.case(case if comm.rank == 0 else f"{case} on rank {comm.rank}", seconds),
            ):
                line.add(case, *runs.check(case))
            if comm.rank == 0:
                report.write()
        others = (
            ("waits of the host", "a training step", runs.waits),
            ("arrays of other libraries", "rows", runs.arrays),
            ("traversals", "four kinds", runs.traversals),
        )
        for name, case, check in () if arguments.small else others:
            line = report.line(name, "")
            with line.timed(), result.case(f"{name}, rank {comm.rank}", seconds):
                line.add(case, 0.0, check())
            if comm.rank == 0:
                report.write()
        comm.Barrier()  # the folder stays until all ranks have read it
    if comm.rank == 0:
        report.finish(f"{comm.size} ranks train, seed {arguments.seed}")
        said = ", ".join(f"{dtype} {apart:.1e}" for dtype, apart in runs.deviation.items())
        print(f"largest deviation from the CPU's losses, relative: {said}")
    return report.code()


if __name__ == "__main__":
    sys.exit(processes.main(result.parser(__doc__), __file__, play))
