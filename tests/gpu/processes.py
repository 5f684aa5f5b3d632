"""Several PEs as processes of an MPI job, on one GPU or over the shim: sums against the float64 reference, and every
transfer's bits against the first's, in calls that follow each other as layers do.

    python tests/gpu/processes.py --ranks 2 --json result.json      or, by hand, mpiexec -n 2 without --ranks
    python tests/gpu/processes.py --ranks 2 --unreached             NVSHMEM's gets and puts in place of pointers
    python tests/gpu/processes.py --ranks 4 --mps                   kernels side by side, by a daemon of its own

Exit codes are those of run.py; 3: no daemon of CUDA's Multi-Process Service can be started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import cases
import ml_dtypes
import numpy as np
from world import plans_of

from gpu import result
from gpu.pes import table
from gpu.pes.engine import Engine
from gpu.pes.played import MARGIN
from mgg_hpc import reference
from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import device, exit_code, launch, mpi
from mgg_hpc.runtime.backends.arguments import Epilogue, Geometry, Rows
from mgg_hpc.runtime.backends.cuda.kernels import DeviceBackend
from mgg_hpc.runtime.backends.cuda.nvshmem import SIDE_BY_SIDE, NvshmemPeers
from mgg_hpc.runtime.backends.simulated import all_reachable

CASE_SECONDS = 30.0  # kernels of processes take turns
CALLS = 5  # the third of a halo waits for a credit; two sets of rows are used in turn
WIDTHS = {"float32": (1, 33, 129), "float16": (31,), "bfloat16": (130,)}


def only_self(rank: int, peer: int) -> bool:
    return rank == peer


@dataclass
class Drawn:
    """What all PEs draw alike: a graph, rows [calls, N, F], and what is done with them."""

    case: cases.Case
    x: list[np.ndarray]
    reduce: str
    weight: np.ndarray | None
    scale: np.ndarray | None
    bias: np.ndarray | None
    relu: bool
    geometry: Geometry
    chunk_bytes: int

    @classmethod
    def of(cls, entry: table.Entry, rng: np.random.Generator, ranks: int) -> Drawn:
        """Whole numbers where the reduction is exact then, or rounded once."""
        case = cases.CASES[entry.case](rng, ranks)
        reduce = str(rng.choice(["sum", "sum", "mean", "max"]))
        rows = table.random_rows if reduce == "sum" else table.whole_rows
        weight = rng.standard_normal(len(case.indices)).astype(np.float32)
        scale = (2.0 ** rng.integers(-2, 3, case.nodes)).astype(np.float32)
        return cls(
            case,
            [rows(case, entry, rng) for _ in range(CALLS)],
            reduce,
            weight if reduce == "sum" and rng.random() < 0.5 else None,
            scale if rng.random() < 0.5 else None,
            rng.integers(-3, 4, entry.width).astype(np.float32) if reduce == "max" else None,  # exact then
            bool(rng.random() < 0.5),
            Geometry(*(int(each) for each in rng.integers(1, 5, 3)), far_ps=int(rng.integers(1, 4))),
            int(rng.choice([1, 300, 2000, 1 << 17])),
        )

    def worst(self, call: int, rank: int, found: np.ndarray) -> float:
        """The worst error of a PE's outputs as a share of its bound. Raises AssertionError beyond it."""
        case, x = self.case, self.x[call]
        arguments = (*case.edge_list, case.nodes, x, self.weight)
        wanted = reference.aggregate(*arguments, self.reduce)
        bound = np.zeros_like(wanted)
        if self.reduce == "sum":
            bound = reference.error_bound(*arguments)
        elif self.reduce == "mean":
            half = float(ml_dtypes.finfo(x.dtype).eps) if x.dtype.itemsize == 2 else 0.0
            bound = np.abs(wanted) * (float(np.finfo(np.float32).eps) + half)
        scale = np.ones(case.nodes) if self.scale is None else self.scale  # powers of two: exact
        wanted, bound, part = wanted * scale[:, None], bound * scale[:, None], case.rows(rank)
        wanted = wanted if self.bias is None else wanted + self.bias
        return table.within(found, (np.maximum(wanted, 0) if self.relu else wanted)[part], bound[part])


@dataclass
class Processes:
    """All PEs, from one of them. transfers: those that can be, and must give the same bits."""

    engine: Engine
    job: NvshmemPeers
    comm: Any
    transfers: tuple[str, ...]
    share: float  # of the GPU's blocks, of each

    def begin(self, drawn: Drawn) -> tuple[DeviceBackend, RowFormat, slice]:
        """Return a backend, the format of the rows, and which of them are this PE's."""
        x = drawn.x[0]
        backend = self.engine.backend(self.job, drawn.geometry, self.share)
        return backend, RowFormat(x.dtype, x.shape[1]), drawn.case.rows(self.job.rank)

    def publish(self, backend: DeviceBackend, rows: Rows, x: np.ndarray, rng: np.random.Generator) -> None:
        """Write this PE's rows, and let all PEs see them; what follows runs in an order of its own."""
        self.engine.fill(rows.local, x)
        self.engine.seed(int(rng.integers(1 << 60)) + self.job.rank, self.job.rank)
        backend.publish(rows)

    def aggregate(
        self, drawn: Drawn, transfer: str, rng: np.random.Generator
    ) -> tuple[list[np.ndarray], list[str]]:
        """This PE's outputs of all calls, and what is wrong beside their values. Collective."""
        engine, case, rank = self.engine, drawn.case, self.job.rank
        backend, format, part = self.begin(drawn)
        plan = plans_of(case, transfer, 1)[rank]
        backend.chunk_bytes = drawn.chunk_bytes
        sets = [backend.rows(np.diff(case.bounds), format, symmetric=True) for _ in range(2)]
        backend.prepare(plan, format)
        edge = None if drawn.weight is None else engine.array(drawn.weight[case.edges(rank)][plan.edge])
        scale = None if drawn.scale is None else engine.array(drawn.scale[part])
        epilogue = Epilogue(scale, engine.array(drawn.bias), drawn.relu)
        op, outputs = "copy" if edge is None else "mul", []
        for call, x in enumerate(drawn.x):
            rows, beyond = sets[call % 2], engine.nan_rows(backend, plan.destinations + MARGIN, format)
            self.publish(backend, rows, x[part], rng)
            out = beyond[: plan.destinations]
            backend.aggregate(plan, op, drawn.reduce, rows, out, edge=edge, epilogue=epilogue)
            outputs.append(beyond)
        backend.stream.finish()
        found = [engine.numpy(beyond) for beyond in outputs]
        behind = np.concatenate([beyond[plan.destinations :] for beyond in found]).astype(np.float32)
        problems = [] if np.isnan(behind).all() else [f"{transfer} wrote behind its rows"]
        if transfer == "halo":
            needed = CALLS * sum(self.comm.allgather(len(plan.halo)))
            pushed = sum(self.comm.allgather(backend.halo(plan).rows_pushed()))
            problems += [f"{pushed} rows were pushed, and {needed} are needed"] * (pushed != needed)
        return [beyond[: plan.destinations] for beyond in found], problems

    def gather(self, drawn: Drawn, rng: np.random.Generator) -> list[str]:
        """Rows by number from all PEs. Collective."""
        bounds, x = drawn.case.bounds, drawn.x[0]
        backend, format, part = self.begin(drawn)
        rows = backend.rows(np.diff(bounds), format, symmetric=True)
        ids = rng.integers(0, len(x), (self.job.size, 2 * len(x) if len(x) else 0))[self.job.rank]
        out = backend.symmetric(len(ids), format).local
        self.publish(backend, rows, x[part], rng)
        backend.gathers.rows(backend, rows, bounds, self.engine.array(ids), out)
        backend.stream.finish()
        return [] if (self.engine.numpy(out) == x[ids]).all() else ["gathered other rows"]

    def dots(self, drawn: Drawn, rng: np.random.Generator) -> list[str]:
        """SDDMM over peers' rows, through pointers. Collective."""
        engine, case, rank, (x, y, *_) = self.engine, drawn.case, self.job.rank, drawn.x
        backend, format, part = self.begin(drawn)
        rows = backend.rows(np.diff(case.bounds), format, symmetric=True)
        plan = plans_of(case, "direct", 1)[rank]
        mine = backend.memory.padded(plan.destinations, format)
        out = engine.array(np.full(plan.edges, np.nan, np.float32))
        engine.fill(mine, y[part])
        self.publish(backend, rows, x[part], rng)
        backend.edges.sddmm(plan, rows, mine, out)
        backend.stream.finish()
        ends = [ids[case.edges(rank)][plan.edge] for ids in case.edge_list]
        wanted, bound = (each(*ends, x, y) for each in (reference.sddmm, reference.sddmm_bound))
        try:
            table.within(engine.numpy(out), wanted, bound)
        except AssertionError as error:
            return [f"sddmm: {error}"]
        return []

    def check(self, entry: table.Entry, rng: np.random.Generator) -> tuple[float, str]:
        """The worst error of any PE, and what any of them found wrong. Collective."""
        drawn, worst = Drawn.of(entry, rng, self.job.size), 0.0
        outputs, problems = {}, []
        for transfer in self.transfers:
            outputs[transfer], wrong = self.aggregate(drawn, transfer, rng)
            problems += wrong
        problems += self.gather(drawn, rng)
        if "direct" in self.transfers:
            problems += self.dots(drawn, rng)
        self.job.release()
        first = self.transfers[0]
        for call in range(CALLS):
            try:
                worst = max(worst, drawn.worst(call, self.job.rank, outputs[first][call]))
            except AssertionError as error:
                problems.append(f"{first}, call {call + 1}: {error}")
            right = outputs[first][call].tobytes()
            problems += [
                f"{transfer} differs from {first} in call {call + 1}"
                for transfer in self.transfers
                if outputs[transfer][call].tobytes() != right
            ]
        every = self.comm.allgather((worst, problems))
        said = [f"PE {pe}: {wrong[0]}" for pe, (_, wrong) in enumerate(every) if wrong]
        return max(each for each, _ in every), "; ".join(said)


def entries(few: bool, small: bool) -> Iterator[table.Entry]:
    """Every case at a few types and widths, or at one; where small, one case."""
    if small:
        yield table.Entry("processes", "float32", WIDTHS["float32"][1], "ordinary")
        return
    for dtype, widths in WIDTHS.items():
        for width in widths[:1] if few else widths:
            for case in cases.CASES:
                yield table.Entry("processes", dtype, width, case)


def run(
    all_pes: Processes, report: result.Report, chosen: list[table.Entry], seed: int, seconds: float
) -> None:
    """Run every case, with a line for each type. Collective."""
    first = all_pes.job.rank == 0
    others = ["gather", "sddmm"] if "direct" in all_pes.transfers else ["gather"]
    for number, entry in enumerate(chosen):
        line = report.line(", ".join([*all_pes.transfers, *others]), entry.dtype)
        name = entry if first else f"{entry} on rank {all_pes.job.rank}"
        with line.timed(), result.case(name, seconds):
            line.add(entry, *all_pes.check(entry, np.random.default_rng([seed, number])))
        if first:  # what was found is there, should the rest hang
            report.write()


def play(arguments: argparse.Namespace) -> int:
    """As one of the ranks."""
    comm = mpi.world()
    rank, size = comm.Get_rank(), comm.Get_size()
    with contextlib.ExitStack() as held:
        with mpi.agree(comm):
            engine = held.enter_context(result.engine_of(arguments))
        assignment = device.take(comm, engine.module, share=True)
        seconds = result.case_seconds(arguments, CASE_SECONDS)
        with result.case(f"start, rank {rank}", seconds):
            job = NvshmemPeers(
                comm, engine.module, engine.arrays, only_self if arguments.unreached else all_reachable
            )
        kept = {"processes": size, "unreached": arguments.unreached, "shared_gpu": job.shared_gpu}
        kept |= {"few": arguments.few, "seed": arguments.seed}
        report = result.Report(arguments, engine.about(), **kept)
        transfers = ("get", "halo") if arguments.unreached else ("direct", "get", "halo")
        if arguments.small:  # whether NVSHMEM starts; kernels that wait for another PE's take turns on a GPU
            transfers = transfers[:1]
        # Where kernels run side by side, each process sees only its part of the GPU.
        share = 1.0 if job.shared_gpu == SIDE_BY_SIDE else 1 / assignment.ranks
        all_pes = Processes(engine, job, comm, transfers, share)
        chosen = list(entries(arguments.few, arguments.small))
        run(all_pes, report, chosen, arguments.seed, seconds)
        with result.case(f"end, rank {rank}", seconds):
            job.finish()
    if rank == 0:
        how = "by NVSHMEM's calls" if arguments.unreached else "by pointers"
        if job.shared_gpu:
            how += f"; on one GPU, {job.shared_gpu}"
        report.finish(f"{size} processes, {how}, seed {arguments.seed}")
    return report.code()


CONTROL = "nvidia-cuda-mps-control"
PROBE = """
from mgg_hpc.runtime.backends.cuda import module as cuda_module
module = cuda_module.load()
cuda_module.need_device(module)
print(module.limits()["name"])
"""


def asked(*words: str, environment: dict[str, str], says: str = "", seconds: float = 60.0) -> str:
    """Return what a program writes. Raises OSError where it fails.

    It writes to a file, since a daemon keeps what it was started with.
    """
    with tempfile.TemporaryFile("w+") as out:
        options: dict[str, Any] = {"env": environment, "input": says, "stdout": out, "stderr": out}
        try:
            done = subprocess.run(words, **options, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{words[0]} took more than {seconds:.0f} s") from error
        out.seek(0)
        said = out.read().strip()
    if done.returncode:
        raise OSError((said.splitlines() or [f"{words[0]} failed"])[-1])
    return said


@contextlib.contextmanager
def mps(ranks: int) -> Iterator[dict[str, str]]:
    """The variables of ranks that share a GPU through a daemon, which is started and ended. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="mgg-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | variables
        asked(CONTROL, "-d", environment=environment)
        try:
            asked(
                sys.executable, "-c", PROBE, environment=environment
            )  # its server starts with the first client
            yield variables | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // ranks)}
        finally:
            with contextlib.suppress(OSError):
                asked(CONTROL, environment=environment, says="quit -t 5\n", seconds=15)
            for file in Path(folder).glob("*.pid"):  # who does not end by being asked
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int(file.read_text()), signal.SIGKILL)


def begin(arguments: argparse.Namespace, words: list[str], program: str) -> int:
    """Start the ranks, which run the program.

    NVSHMEM has neither NCCL nor multicast where they share a GPU, and no network is needed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # lets go of what was started, as Ctrl-C
    shared = {"NVSHMEM_DISABLE_NCCL": "1", "NVSHMEM_DISABLE_NVLS": "1", "NVSHMEM_REMOTE_TRANSPORT": "none"}
    with contextlib.ExitStack() as held:
        if arguments.mps:
            try:
                shared |= held.enter_context(mps(arguments.ranks))
            except OSError as error:
                print(f"gpu-test: no daemon of CUDA's Multi-Process Service: {error}", file=sys.stderr)
                return 3
        os.environ.update(shared)
        return launch.run([sys.executable, program, *words], arguments.ranks)


def main(parser: argparse.ArgumentParser, program: str, play: Callable[[argparse.Namespace], int]) -> int:
    """Start the ranks of a program, or play one of them where they are started."""
    parser.add_argument("--ranks", type=int, default=0, help="start so many processes")
    parser.add_argument("--mps", action="store_true", help="they share the GPU through a daemon of their own")
    words = sys.argv[1:]
    arguments = parser.parse_args(words)
    if arguments.ranks and launch.RANKS not in os.environ:
        return begin(arguments, words, program)
    try:
        code = play(arguments)
        exit_code.record(code)
    except InputError as error:
        code = 2
        exit_code.report(f"gpu-test: {error}", code)
    return code


if __name__ == "__main__":
    options = result.parser(__doc__)
    options.add_argument("--unreached", action="store_true", help="as if no pointer led to another PE")
    sys.exit(main(options, __file__, play))
