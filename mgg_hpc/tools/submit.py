"""Submit job files to Slurm with the scripts of slurm/.

Every job file is read as training would read it before anything is submitted. No text of a user reaches a shell: sbatch
is started with a list of arguments, those of the script reach it as "$@", and names in options are made of safe
characters.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import config
from ..config import DlrmSettings, Settings
from ..data.clicks.store import open_clicks
from ..errors import InputError
from ..training import run_folder

SCRIPTS = "MGG_SLURM"  # variable that names the folder of the scripts
_SITE = "site.env.sh"
_LONGEST_NAME = 64
PROCESS = 1 << 30  # bytes of a rank of a DLRM job beside its tables: Python, torch and batches
_START_MINUTES = 5  # a job that is requeued needs them beside the time to save
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,-]*")
# minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds
_TIME = re.compile(
    r"(?:(?P<days>\d{1,4})-)?(?P<first>\d{1,5})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?"
)


@dataclass(frozen=True)
class Request:
    """Options of a submission. gpus, ranks, memory (bytes): per node. at_once: most array jobs at once."""

    nodes: int = 1
    gpus: int | None = None
    ranks: int | None = None
    threads: int = 1
    time: str | None = None
    name: str | None = None
    partition: str | None = None
    account: str | None = None
    requeue: bool = False
    save_seconds: int = 120
    at_once: int | None = None
    memory: int | None = None

    @property
    def tasks(self) -> int:
        """Number of ranks of a node."""
        return self.gpus or self.ranks or 1


def process_submit(paths: Sequence[Path], overrides: tuple[str, ...], asked: Request, dry_run: bool) -> int:
    """`mgg submit`: check job files, and submit them as one job or as an array; return the exit code.

    Raises InputError for what training would refuse, for what Slurm cannot take, and where Slurm is missing.
    """
    _check(asked, len(paths))
    every = [config.load(path, overrides, clicks=True) for path in paths]
    for path, settings in zip(paths, every, strict=True):
        _check_job(path, settings, asked)
    _check_apart(paths, every, asked)
    folder = _scripts()
    command = ["sbatch", "--parsable", *_options(paths, every, asked), str(folder / _script(paths, asked))]
    command += [*map(_argument, paths), *(["--"] if len(paths) > 1 else [])]
    command += [word for override in overrides for word in ("--set", override)]
    if dry_run:
        line = f"{shlex.join(['.', str(folder / _SITE)])} && {shlex.join(command)}\n"
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(line))  # names of files need not be text
        return 0
    environment = _site_environment(folder)
    if not shutil.which("sbatch", path=environment.get("PATH")):
        raise InputError(
            "no sbatch on PATH: submit where Slurm is, or train on this machine with mgg launch -n RANKS train JOB"
        )
    submitted = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if submitted.returncode != 0:
        raise InputError(f"sbatch refused the job: {' '.join(submitted.stderr.split())}")
    number = submitted.stdout.strip().partition(";")[0]
    each = f"{number}_INDEX" if len(paths) > 1 else number
    print(f"job {number}; its output will be in {_name(paths, asked)}-{each}.out")
    return 0


# ---- checks ---------------------------------------------------------------------------------------------


def _check(asked: Request, jobs: int) -> None:
    """Raise InputError for an option that Slurm, or a file's name, cannot take."""
    if asked.gpus and asked.ranks and asked.gpus != asked.ranks:
        raise InputError("--ranks: a rank drives one GPU, so leave it out beside --gpus")
    if asked.name is not None and not (_NAME.fullmatch(asked.name) and len(asked.name) <= _LONGEST_NAME):
        raise InputError(
            f"--name {asked.name!r}: use up to {_LONGEST_NAME} letters, digits, '_', '-' and '.', the first of them a "
            "letter, a digit or '_'"
        )
    for option, value in (("--partition", asked.partition), ("--account", asked.account)):
        if value is not None and not _NAMES.fullmatch(value):
            raise InputError(
                f"{option} {value!r}: use letters, digits, '.', '_' and '-'; commas between several"
            )
    if asked.memory is not None and asked.memory < 1 << 20:
        raise InputError(f"--memory is {asked.memory} B, and a node needs more: write 4G, for example")
    if asked.at_once is not None and jobs == 1:
        raise InputError("--at-once is for several job files")
    if asked.time is not None:
        minutes = _minutes(asked.time)
        least = _START_MINUTES + asked.save_seconds / 60
        if asked.requeue and minutes < least:
            raise InputError(
                f"--time {asked.time} leaves too little between the start of a job and the {asked.save_seconds} "
                f"seconds that it has to save: ask for {math.ceil(least)} minutes or more"
            )


def _minutes(text: str) -> float:
    """Return the minutes of a time limit as Slurm reads it. Raises InputError."""
    found = _TIME.fullmatch(text) if text.isascii() else None
    seconds = 0
    if found:
        days, numbers = found["days"], [int(part) for part in found.groups()[1:] if part is not None]
        units = [3600, 60, 1] if days is not None or len(numbers) == 3 else [60, 1]
        seconds = int(days or 0) * 86400
        seconds += sum(number * unit for number, unit in zip(numbers, units, strict=False))
    if seconds < 60:
        raise InputError(
            f"--time {text!r}: write at least a minute as hours:minutes:seconds (1:30:00), minutes (90) or "
            "days-hours (1-12)"
        )
    return seconds / 60


def _check_job(path: Path, settings: Settings, asked: Request) -> None:
    """Raise InputError for a job that cannot run on the resources that are requested from Slurm."""
    backend = settings.run.backend
    key, name = (
        ("dlrm.data", settings.dlrm.data) if settings.dlrm.data else ("graph.file", settings.graph.file)
    )
    if not _is_file(Path(name)):
        raise InputError(f"{path}: {key} {name}: no such file")
    if settings.dlrm.data:
        try:
            _scored(settings.dlrm)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    if asked.gpus and settings.dlrm.memory:
        raise InputError(f"{path}: dlrm.memory is for tables on CPUs; leave it out, or --gpus")
    if asked.gpus and backend in ("serial", "shm", "shmem"):
        raise InputError(
            f'{path}: run.backend = "{backend}" is for CPUs; leave out --gpus, or set it to "cuda"'
        )
    if not asked.gpus and backend == "cuda":
        raise InputError(f'{path}: run.backend = "cuda" needs GPUs; ask for them: --gpus 1')
    if asked.nodes > 1 and backend in ("serial", "shm"):
        raise InputError(
            f'{path}: run.backend = "{backend}" is for one node; leave out --nodes, or set it to "auto"'
        )
    if asked.tasks > 1 and backend == "serial":
        raise InputError(
            f'{path}: run.backend = "serial" is for one rank; leave out --ranks, or set it to "auto"'
        )
    if asked.requeue or settings.run.resume == "auto":
        _check_unfinished(path, settings)


def _check_unfinished(path: Path, settings: Settings) -> None:
    """Raise InputError where a job would go on with a run that has finished."""
    try:
        run = run_folder.latest(Path(settings.run.folder))
    except OSError as error:
        raise InputError(f"{path}: run.folder cannot be read ({error.strerror}); name another") from error
    if run is None or not _is_file(run / run_folder.SUMMARY):
        return
    epochs = config.load(run / run_folder.JOB, of_run=True, clicks=True).train.epochs
    if settings.train.epochs <= epochs:
        raise InputError(
            f"{path}: {run} has finished, and this job would go on with it: name another folder (--set "
            f"run.folder=...), or raise train.epochs (it was {epochs})"
        )


def _is_file(path: Path) -> bool:
    """Return whether a file exists; a name that no file can have has none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _check_apart(paths: Sequence[Path], every: Sequence[Settings], asked: Request) -> None:
    """Raise InputError where two jobs of an array would go on with each other's run."""
    users: dict[Path, Path] = {}
    for path, settings in zip(paths, every, strict=True):
        if not asked.requeue and settings.run.resume != "auto":
            continue
        folder = Path(settings.run.folder).resolve()
        if folder in users:
            raise InputError(
                f"{path}: run.folder is {settings.run.folder}, as that of {users[folder]}, and jobs that go on with "
                "the latest run need folders of their own"
            )
        users[folder] = path


# ---- the command ----------------------------------------------------------------------------------------


def _script(paths: Sequence[Path], asked: Request) -> str:
    """Return the name of the Slurm script for a request."""
    if len(paths) > 1:
        return "array.sbatch"
    if asked.requeue:
        return "requeue.sbatch"
    return "gpu.sbatch" if asked.gpus else "train.sbatch"


def _options(paths: Sequence[Path], every: Sequence[Settings], asked: Request) -> list[str]:
    """Return the options of sbatch. The script and the site set those that the user has not."""
    memory = asked.memory
    if memory is None and all(settings.dlrm.data for settings in every):
        memory = max(_memory(settings.dlrm, asked) for settings in every)
    options = [
        f"--job-name={_name(paths, asked)}",
        f"--nodes={asked.nodes}",
        f"--ntasks={asked.nodes * asked.tasks}",
        f"--ntasks-per-node={asked.tasks}",
        f"--cpus-per-task={asked.threads}",
    ]
    given = {
        "gpus-per-node": asked.gpus,
        "mem": memory and f"{-(-memory // 2**20)}M",
        "time": asked.time,
        "partition": asked.partition,
        "account": asked.account,
    }
    options += [f"--{name}={value}" for name, value in given.items() if value is not None]
    if asked.requeue:
        options += ["--requeue", f"--signal=B:USR1@{asked.save_seconds}"]
    if len(paths) > 1:
        at_once = f"%{asked.at_once}" if asked.at_once else ""
        options.append(f"--array=0-{len(paths) - 1}{at_once}")
    return options


def _memory(dlrm: DlrmSettings, asked: Request) -> int:
    """Return the bytes that a node needs for its ranks' share of a DLRM job, and for their processes."""
    from ..training.dlrm.job import node_memory  # loads torch

    ranks, gpus = asked.nodes * asked.tasks, bool(asked.gpus)
    return node_memory(dlrm, _scored(dlrm), ranks, asked.tasks, gpus=gpus) + asked.tasks * PROCESS


def _scored(dlrm: DlrmSettings) -> int:
    """Return the number of test samples of a DLRM job. Raises InputError for clicks that do not fit."""
    with open_clicks(Path(dlrm.data)) as file:
        return file.rows - file.split(dlrm.test) % file.rows


def _name(paths: Sequence[Path], asked: Request) -> str:
    """Return the job's name, with which its output's name begins: --name, or made from the job file's."""
    if asked.name is not None:
        return asked.name
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", paths[0].stem).strip("_.-")
    return f"mgg-{stem or 'job'}"[:_LONGEST_NAME]


def _argument(path: Path) -> str:
    """Return a path in a form that is not taken for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def _scripts() -> Path:
    """Return the folder of the scripts: that of MGG_SLURM, or of the checkout that this package is in."""
    named = os.environ.get(SCRIPTS)
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "slurm"
    if not (folder / "common.sh").is_file():
        raise InputError(
            f"{folder}: holds no scripts for Slurm (common.sh); set {SCRIPTS} to the folder slurm/ of a checkout"
        )
    return folder.absolute()


def _site_environment(folder: Path) -> dict[str, str]:
    """Return the environment after the site's file has been sourced. Raises InputError if the file fails."""
    site = folder / _SITE
    read = ["bash", "-c", '. "$1" >&2 && exec env --null', "bash", str(site)]
    done = subprocess.run(read, capture_output=True, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise InputError(
            f"{site} ended with {done.returncode} ({said}); mend it, or set {SCRIPTS} to another folder"
        )
    entries = (os.fsdecode(entry).partition("=") for entry in done.stdout.split(b"\0") if entry)
    environment = {name: value for name, _, value in entries}
    program = Path(environment.get("MGG_VENV", "")) / "bin" / "mgg"
    if not os.access(program, os.X_OK):
        raise InputError(f"{program} is missing: run make setup there, or set MGG_VENV in {site}")
    return environment
