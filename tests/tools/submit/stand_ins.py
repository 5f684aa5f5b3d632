"""Stand-ins for Slurm's commands, and what they note: for the tests of `mgg submit`.

That of sbatch runs the script as Slurm does, with its arguments; that of srun notes what it is asked to run.
"""

from __future__ import annotations

import os
from pathlib import Path

import tomli_w
from command import mgg

SCRIPTS = Path(__file__).parents[3] / "slurm"

NOTES = r"""#!/bin/bash
printf '%s\0' "$@" >"$NOTES/$(basename "$0")"
"""
SBATCH = """
options=()
while [[ $1 == --* ]]; do options+=("$1"); shift; done
export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 SLURM_SUBMIT_DIR=$PWD
case " ${options[*]} " in *' --array='*) export SLURM_ARRAY_TASK_ID=1 ;; esac
script=$1
shift
bash "$script" "$@" >&2 || exit
echo 7
"""
SCONTROL = '#!/bin/bash\necho "JobId=7 Requeue=${REQUEUE:-0} Restarts=0"\n'


def write(name, **sections):
    tree = {"graph": {"file": "g.h5"}} | sections
    Path(name).write_text(tomli_w.dumps(tree))


def noted(program):
    """Return the arguments of a stand-in, and forget them; None if it did not run."""
    path = Path(os.environ["NOTES"], program)
    if not path.exists():
        return None
    words = os.fsdecode(path.read_bytes()).split("\0")[:-1]
    path.unlink()
    return words


def submitted(*arguments):
    """Submit; returns (options of sbatch as a dictionary, script, its arguments)."""
    assert mgg("submit", *arguments) == 0
    return parsed(noted("sbatch"))


def parsed(words):
    at = next(at for at, word in enumerate(words) if not word.startswith("--"))
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words[:at])
    return options, Path(words[at]).name, words[at + 1 :]


def refused(capsys, *arguments):
    """Return the line of a command that ends with 2 before sbatch runs."""
    capsys.readouterr(), noted("sbatch"), noted("srun")
    assert mgg("submit", *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, noted("sbatch"), noted("srun")) == ("", None, None)
    assert err.startswith("mgg: error: ") and err.count("\n") == 1
    return err.removeprefix("mgg: error: ").strip()
