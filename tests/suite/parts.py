"""The parts of the test suite: what `make lint`, `test-fast`, `test`, `test-long` and `torture` run."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

PYTHON = sys.executable
# Idle OpenMP threads sleep, since other processes need their cores.
PASSIVE = {"OMP_WAIT_POLICY": "passive"}


PYTEST = (PYTHON, "-m", "pytest", "-q")
ONE_BY_ONE = ("tests/benchmarks", "tests/shmem", "tests/slurm", "tests/torture")
COUNTED = "build/tests/torture.jsonl"  # what `make torture` has counted, for tests/torture/page.py


@dataclass(frozen=True)
class Part:
    """A command of the suite that runs by itself.

    reports: it is pytest, and writes the outcome of each test (report.py). seed: of its random numbers, "fixed" or
    "new" in each run; "" for a part that draws none.
    programs, install: what the machine must have, and the command that installs it.
    timeout: seconds after which it is ended. time_limit: seconds after which it starts no further test (pytest's
    ``--seconds``); 0: no limit. A run may shorten it.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    reports: bool = True
    seed: str = "fixed"
    programs: tuple[str, ...] = ()
    install: str = ""
    timeout: float = 3600.0
    time_limit: float = 0.0


def seed_of(tier: str) -> str:
    """Return which seed the tests of a tier draw with, see Part."""
    return "new" if tier in ("long", "random") else "fixed"


def units(tier: str, time_limit: int = 0) -> Part:
    """Return the part that runs the tests of one process, two at a time."""
    apart = [f"--ignore={folder}" for folder in ONE_BY_ONE] if tier == "long" else []
    parallel = ("-n", "2", "--dist", "worksteal", *apart, "tests")
    command = (*PYTEST, "--tier", tier, "-m", "not mpi", *parallel)
    return Part(f"{tier} units", command, PASSIVE, seed=seed_of(tier), time_limit=time_limit)


def one_by_one(time_limit: int) -> Part:
    """Return the part that runs, one by one, the tests that measure time or take the whole machine."""
    command = (*PYTEST, "--tier", "long", "-m", "not mpi", *ONE_BY_ONE)
    return Part("long one by one", command, seed="new", time_limit=time_limit)


def over_mpi(tier: str, ranks: int, time_limit: int = 0) -> Part:
    """Return the part that runs the MPI tests. A rank that fails ends the others (-m mpi4py, -x): they wait for it."""
    mpiexec = str(Path(PYTHON).with_name("mpiexec"))
    command = (mpiexec, "-n", str(ranks), *_ranks(tier), "tests/mpi")
    return Part(
        f"{tier} MPI {ranks}", command, _environment(ranks), seed=seed_of(tier), time_limit=time_limit
    )


def over_shmem(ranks: int) -> Part:
    """Return the part that runs the OpenSHMEM tests, with the machine's Open MPI."""
    return Part(
        f"long OpenSHMEM {ranks}",
        (PYTHON, "tests/shmem/launch.py", str(ranks), *_ranks("long"), "-m", "mpi", "tests/shmem"),
        _environment(ranks),
        seed="new",
        programs=("oshc++",),
        install="apt install openmpi-bin libopenmpi-dev",
    )


def torture() -> list[Part]:
    """Return the parts that kill, stop and damage: an hour, and a file of what was counted."""
    counted = {"MGG_TORTURE_REPORT": COUNTED}
    # A test of hundreds of trials takes longer than any other may.
    alone = (*PYTEST, "--tier", "torture", "-m", "not mpi", "--timeout", "7200", "tests")
    ranks = replace(over_mpi("test", 4), name="torture MPI 4")
    command = (*ranks.command[:-1], "tests/mpi/training/test_resume.py")
    return [
        Part("torture", alone, PASSIVE | counted, seed="new", timeout=7200.0),
        replace(ranks, command=command, environment=ranks.environment | counted),
    ]


def _environment(ranks: int) -> dict[str, str]:
    return PASSIVE | {"MGG_TEST_RANKS": str(ranks), "OMP_NUM_THREADS": "1"}


def _ranks(tier: str) -> tuple[str, ...]:
    return (PYTHON, "-m", "mpi4py", "-m", "pytest", "-q", "-x", "--with-mpi", "--tier", tier)


GROUPS: dict[str, list[Part]] = {
    "lint": [Part("lint", ("make", "--no-print-directory", "lint"), reports=False, seed="")],
    "fast": [
        Part("style", (str(Path(PYTHON).with_name("ruff")), "check", "-q"), reports=False, seed=""),
        units("fast"),
        over_mpi("fast", 2),
    ],
    "test": [units("test"), *(over_mpi("test", ranks) for ranks in (1, 2, 4))],
    "long": [
        Part("GPU build", ("make", "--no-print-directory", "cuda"), reports=False, seed=""),
        over_mpi("long", 4),
        *(over_shmem(ranks) for ranks in (1, 2, 4)),
        # Parts with a time limit come last: they share what the others leave of `run.py --minutes`.
        units("long", 800),
        one_by_one(360),
        units("random", 180),
        over_mpi("random", 2, 45),
        over_mpi("random", 3, 60),
    ],
    "torture": torture(),
}
