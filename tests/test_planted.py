"""The test of the tests: one fault at a time in the Python and the host code, which tests of `make test` must find.

Faults of GPU kernels are planted by tests/shim/test_planted.py, of memory and of threads by tests/sanitize.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import programs
import pytest
from builds import made, slug
from seeds import FIXED, SEED
from tiers import drawn

ROOT = Path(__file__).parents[1]
EXTENSIONS = ("_host", "_shmem")


@dataclass(frozen=True)
class Fault:
    """A text of a source, which is there once, replaced by another; and a file of tests or one, on so many MPI ranks.

    ranks: 0 for tests of one process.
    """

    file: str
    old: str
    new: str
    tests: str
    ranks: int = 0


PYTHON = {
    "a partition that gives rows without edges to one rank": Fault(
        "mgg_hpc/plan/row_ranges.py",
        "np.clip(np.rint(k * nodes / parts).astype(np.int64), low, high - 1)",
        "high - 1",
        "plan/test_ranges.py",
    ),
    "the rows that most edges need come last": Fault(
        "mgg_hpc/plan/halo.py", "np.argsort(-used, kind=", "np.argsort(used, kind=", "plan/test_workload.py"
    ),
    "cached rows that are never read once": Fault(
        "mgg_hpc/plan/cost_model.py", "min(held, present) + int(", "int(", "plan/test_model.py"
    ),
    "an edge list's line that two blocks share": Fault(
        "mgg_hpc/data/readers/compressed.py",
        "view[: held - end] = view[end:held]",
        "view[: held - end] = bytes(held - end)",
        "data/readers/test_formats.py",
    ),
    "a last block whose digest is not compared": Fault(
        "mgg_hpc/data/store.py", "compare(digests.rest())", "pass", "data/test_store.py"
    ),
    "a running variance without Bessel's correction": Fault(
        "mgg_hpc/nn/layers/networks.py", "variance * (rows / (rows - 1))", "variance", "nn/test_conv.py"
    ),
    "one label more than a node has": Fault(
        "mgg_hpc/training/metrics.py", "place < y.sum", "place <= y.sum", "training/test_metrics.py"
    ),
    "ties that count in favour of a class": Fault(
        "mgg_hpc/training/metrics.py",
        "below[np.searchsorted(value, ones[0])]",
        'below[np.searchsorted(value, ones[0], "right")]',
        "training/test_metrics.py",
    ),
    "a best epoch that a later one as good replaces": Fault(
        "mgg_hpc/training/history.py", "value > self.best:", "value >= self.best:", "training/test_metrics.py"
    ),
    "a sum over ranks that counts one twice": Fault(
        "mgg_hpc/runtime/mpi.py", "for part in parts[1:]:", "for part in parts[:-1]:", "mpi/test_mpi.py", 2
    ),
    "an error that the lowest rank alone hears of": Fault(
        "mgg_hpc/runtime/mpi.py",
        "line is not None and comm.Get_rank() != lowest:",
        "line is not None and comm.Get_rank() < lowest:",
        "mpi/test_mpi.py",
        2,
    ),
    "weights in the order of edges before the halo's": Fault(
        "mgg_hpc/nn/graph/transfer.py",
        "return plan, weight[index(order, weight)]",
        "return plan, weight",
        "mpi/nn/test_convolution.py",
        4,  # edges of one peer are in order
    ),
    "a batch's mean over one rank's rows": Fault(
        "mgg_hpc/nn/sampling/batches.py",
        "total=min(size, len(self._ids) - number * size)",
        "total=max(1, len(rows))",
        "mpi/training/test_minibatches.py",
        2,
    ),
}

HOST = {
    "a hub's count that is not set for the next call": Fault(
        "cuda/cpu/stages.h",
        "pending.store(schedule.hubs[block.hub].slots, std::memory_order_relaxed);  // for the next call",
        "",
        "runtime/test_aggregate.py::test_the_table",
    ),
    "a staging that is used in every call": Fault(
        "cuda/runtime/halo_exchange.cpp",
        "layout_.staging + (call_ & 1) * layout_.staging_bytes",
        "layout_.staging",
        "runtime/test_aggregate.py::test_the_table",
    ),
    "the maximum of no edges": Fault(
        "cuda/cpu/aggregate.cpp",
        "if (call.reduce == Reduce::max && degree == 0) sum.template clear<Sum>();",
        "",
        "runtime/test_aggregate.py::test_the_table",
    ),
    "random numbers with one half of the key": Fault(
        "cuda/cpu/philox.h", "w0 = high2 ^ w1 ^ k0", "w0 = high2 ^ w1 ^ k1", "nn/test_random.py"
    ),
    "attention's backward that draws other edges": Fault(
        "cuda/cpu/attention.cpp",
        "target = at_source ? there[i] : here;",
        "target = here;",
        "runtime/test_aggregate.py::test_the_table",
    ),
    "draws of neighbours that are a little uneven": Fault(
        "cuda/include/mgg/semantics.h",
        "return low >= range || low >= (0u - range) % range;",
        "return true;",
        "runtime/test_sampler.py",
    ),
}

DRAWN_HOST = drawn(HOST, 2)


@dataclass
class Copy:
    """A copy of the sources with the extensions that it loads, in which faults are planted."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Copy:
        """Copy the package. The built extensions are linked to, but for GPU kernels, which cost time to load."""
        package = folder / "mgg_hpc"
        left_out = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "mgg_hpc", package, ignore=left_out)
        for name in EXTENSIONS:
            for path in (ROOT / "mgg_hpc").glob(f"{name}*.so"):
                (package / path.name).symlink_to(path)
        return cls(folder)

    def replace(self, file: str, old: str, new: str) -> None:
        """Replace a text that is there once."""
        path = self.folder / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file}: {old!r} is there {text.count(old)} times"
        path.write_text(text.replace(old, new))

    def run(self, tests: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
        """Run tests of `make test` with the copy, to the first that fails."""
        # -P: the package of the folder that tests run in does not come first.
        command = ["-m", "pytest", "-q", "-x", "--tier", "test", "-p", "no:cacheprovider"]
        environment = {**os.environ, SEED: str(FIXED), "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "2"}
        launcher = []
        if ranks:
            launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)]
            command = ["-m", "mpi4py", *command, "--with-mpi"]
            environment |= {"MGG_TEST_RANKS": str(ranks), "OMP_NUM_THREADS": "1"}
        else:
            command += ["-m", "not mpi"]
        words = (*launcher, sys.executable, "-P", *command, ROOT / "tests" / tests)
        return programs.run(*words, cwd=ROOT, env=environment)


def found(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a test failed. A run whose tests could not be collected has found nothing."""
    named = re.search(r"^(FAILED|ERROR|rank \d+:) tests/\S+::", done.stdout + done.stderr, re.MULTILINE)
    return done.returncode != 0 and named is not None


@pytest.mark.parametrize("fault", [*PYTHON.values(), *HOST.values()], ids=[*PYTHON, *HOST])
def test_a_fault_is_of_a_text_that_is_there_once(fault):
    assert (ROOT / fault.file).read_text().count(fault.old) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", drawn(PYTHON, 5))
def test_a_fault_in_python_is_found(name, tmp_path):
    fault = PYTHON[name]
    copy = Copy.made(tmp_path)
    copy.replace(fault.file, fault.old, fault.new)
    done = copy.run(fault.tests, fault.ranks)
    assert found(done), done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.long
@pytest.mark.parametrize("name", ["none", *DRAWN_HOST])
def test_a_fault_in_host_code_is_found(name, tmp_path):
    copy = Copy.made(tmp_path)
    for path in (tmp_path / "mgg_hpc").glob("_host*.so"):
        path.unlink()
    for path in (made("host-planted") / slug(name)).glob("_host*.so"):
        shutil.copy(path, tmp_path / "mgg_hpc")
    if name == "none":
        assert copy.run("nn/test_random.py").returncode == 0
    else:
        done = copy.run(HOST[name].tests)
        assert found(done), done.stdout[-3000:] + done.stderr[-3000:]
