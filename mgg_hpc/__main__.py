"""The command line: each verb declares its options and calls one ``process_*`` function with them."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import click
from click import Choice, FloatRange, IntRange, argument, option

from . import __version__
from .bench_verbs import bench
from .errors import FAILED, STOPPED, WRONG_INPUT, InputError, StoppedBySignal
from .generate_verbs import generate
from .graph_verbs import export, import_, info, partition, verify
from .job_verbs import submit, tune
from .model_verb import model
from .report_verb import report
from .study_verb import study
from .traverse_verb import traverse
from .verbs import Existing, Verbs, example, overriding, to_file

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}

# Errors that a device or a file system may return at any time: message and exit code.
DEVICE_ERRORS = {
    errno.ENOSPC: ("no space left on the device", WRONG_INPUT),
    errno.EDQUOT: ("no space left on the device", WRONG_INPUT),
    errno.EFBIG: ("the limit on the size of a file is too low", WRONG_INPUT),
    errno.EROFS: ("a read-only file system", WRONG_INPUT),
    errno.EIO: ("an input or output error of the device", FAILED),
    errno.ESTALE: ("a stale handle of a network file system", FAILED),
}


@click.group(cls=Verbs, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="mgg")
def cli() -> None:
    """Train graph neural networks on whole graphs over many ranks."""


for verb in (generate, import_, export, info, verify, partition):
    cli.add_command(verb)


@cli.command(
    short_help="Train the model of a job file.",
    epilog=example(
        "mgg train inputs/digits.toml",
        "mgg launch -n 4 train inputs/digits.toml --set train.epochs=50",
        "mgg launch -n 4 train inputs/digits.toml --dry-run",
        "mgg train inputs/digits.toml --dry-run --as-ranks 64",
        "mgg launch -n 2 train inputs/digits.toml --profile",
    ),
)
@argument("job", type=Existing)
@overriding("Override a key of the job file.")
@option(
    "--share-gpu", is_flag=True, help="Let several ranks drive one GPU: for tests, since kernels take turns."
)
@option("--dry-run", is_flag=True, help="Print the plan and the memory of each rank, and stop.")
@option("--as-ranks", type=IntRange(1, 65536), help="With --dry-run, alone: rehearse so many ranks.")
@option(
    "--profile",
    is_flag=True,
    help="Trace a few epochs: the times of each layer, and the hidden part of transfers.",
)
@option("--progress/--no-progress", "shown", default=None, help="Show a bar; default: on a terminal only.")
def train(job: Path, overrides: tuple[str, ...], share_gpu: bool, as_ranks: int | None, **shown: Any) -> int:
    """Train the model of a job file on this rank, or on all ranks of mpirun or srun."""
    from .runtime import signals

    signals.listen()
    if as_ranks:
        from .tools.model_rehearsal import process_rehearse

        return process_rehearse(job, overrides, as_ranks, dry_run=shown["dry_run"])
    from .training.train import process_train

    if share_gpu:
        overrides = (*overrides, "run.share_gpu=true")
    return process_train(job, overrides, **shown)


@cli.command(
    short_help="Go on with a run that was stopped.",
    epilog=example(
        "mgg resume runs/digits",
        "mgg launch -n 4 resume runs/digits/002",
        "mgg resume runs/digits --set train.epochs=400",
    ),
)
@argument("run", type=Existing)
@overriding(
    "Override a key of the run's job that may change: in [run], [checkpoint], [plan], or train.epochs."
)
@option("--progress/--no-progress", "shown", default=None, help="Show a bar; default: on a terminal only.")
def resume(run: Path, overrides: tuple[str, ...], shown: bool | None) -> int:
    """Go on with a run from its newest checkpoint that is sound, on this rank, or on all ranks of mpirun or srun.

    On as many ranks as before, and with the same threads, torch and processor, all results are those of a run that was
    never stopped, bit by bit; on another number of ranks, up to rounding.
    """
    from .runtime import signals

    signals.listen()
    from .training.train import process_resume

    return process_resume(run, overrides, shown)


@cli.command(
    short_help="Write classes, probabilities and embeddings.",
    epilog=example(
        "mgg predict runs/digits -o out.h5",
        "mgg launch -n 2 predict runs/digits/001 -o out.h5",
        "mgg predict runs/digits -o hidden.npy --what embedding --layer 1",
        "mgg predict runs/digits -o new.h5 --graph grown.h5",
        "mgg predict runs/digits -o out.h5 --set run.backend=serial",
    ),
)
@argument("run", type=Existing)
@to_file("HDF5 file to write; or .npy.")
@option("--graph", type=Existing, help="Another graph with the same features. [default: that of the run]")
@option(
    "--layer",
    "layers",
    multiple=True,
    metavar="NUMBER|all",
    help="Write this layer's output, from 1 on. [default: the last hidden layer's]",
)
@option("--what", default="class,probability,embedding", help="Which of these to write, separated by commas.")
@overriding("Override a key of the run's job.")
def predict(run: Path, output: Path, **options: Any) -> int:
    """Write classes, probabilities and embeddings of a trained run, in the user's numbering of nodes.

    A name that ends in .npy gives one such file; or several, out.class.npy and so on, where several arrays are written.
    """
    from .training.predict import process_predict

    return process_predict(run, output, **options)


@cli.command(
    short_help="Run train, predict, bench or a Python program on several ranks.",
    epilog=example(
        "mgg launch -n 4 train inputs/digits.toml",
        "mgg launch -n 2 --mpi system train job.toml",
        "mgg launch -n 2 program.py",
    ),
    context_settings={"allow_interspersed_args": False},
)
@option("-n", "--ranks", type=IntRange(min=1), required=True, help="Ranks to start on this machine.")
@option(
    "--mpi",
    type=Choice(["auto", "system"]),
    default="auto",
    help="The MPI that mpi4py finds first, or the machine's own.",
)
@option(
    "--save-seconds",
    type=FloatRange(min=0),
    default=120.0,
    help="Time for ranks to save what they have, after SIGTERM, SIGUSR1 or Ctrl-C. [default: 120]",
)
@option("--dry-run", is_flag=True, help="Print the command line instead of running it.")
@argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def launch(ranks: int, mpi: str, save_seconds: float, dry_run: bool, command: tuple[str, ...]) -> int:
    """Run another command or a Python program on several ranks, with the launcher of the MPI that Python uses.

    The exit code is the job's: 0 done, 1 failed, 2 wrong input, 3 stopped by a signal once it was saved;
    130 after Ctrl-C and 128 + N after signal N where nothing is saved.
    """
    from .runtime.launch import process_launch

    return process_launch(ranks, command, mpi, dry_run, save_seconds)


cli.add_command(submit)
cli.add_command(report)
cli.add_command(tune)
cli.add_command(model)
cli.add_command(traverse)
cli.add_command(bench)
cli.add_command(study)


@cli.command(
    short_help="Show what this machine has, and lacks.",
    epilog=example("mgg doctor", "mgg doctor --json", "mgg doctor --calibrate"),
)
@option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@option(
    "--calibrate", is_flag=True, help="Measure this machine for mgg model (some two minutes), and keep it."
)
@option("--ranks", default="1,2,4", help="With --calibrate: numbers of ranks to measure.")
def doctor(as_json: bool, calibrate: bool, ranks: str) -> int:
    """Show what this machine has, what is missing, and how to get it; or measure how fast it is."""
    if calibrate:
        from .tools.model_calibrate import process_calibrate

        return process_calibrate(ranks)
    from .tools.doctor import process_doctor

    return process_doctor(as_json)


@cli.command(
    short_help="Remove what killed jobs have left.", epilog=example("mgg clean", "mgg clean runs --dry-run")
)
@argument("folder", type=Existing, required=False)
@option("--dry-run", is_flag=True, help="Only print what would be removed.")
def clean(folder: Path | None, dry_run: bool) -> int:
    """Remove what killed jobs have left: shared memory and, in FOLDER, temporary files."""
    from .tools.clean import process_clean

    return process_clean(folder, dry_run)


def _fail(message: str, code: int) -> int:
    """Print one line (from rank 0 only, where ranks agreed on it), and record the job's code."""
    from .runtime import exit_code

    exit_code.report(f"mgg: {message}", code)
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code (0 done, 1 failed, 2 wrong input, 3 stopped by a signal)."""
    try:
        result = cli.main(args=arguments, prog_name="mgg", standalone_mode=False)
    except (InputError, StoppedBySignal) as ended:
        stopped = isinstance(ended, StoppedBySignal)
        return _fail(str(ended), STOPPED) if stopped else _fail(f"error: {ended}", WRONG_INPUT)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "mgg"
        return _fail(f"error: {error.format_message()} (see '{where} --help')", WRONG_INPUT)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("error: interrupted", FAILED)
    except OSError as error:
        if error.errno not in DEVICE_ERRORS:
            raise
        said, code = DEVICE_ERRORS[error.errno]
        return _fail(f"error: {said} for {error.filename or 'the output'}", code)
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
