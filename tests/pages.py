"""Pages of the documentation as programs: their commands and files, run in order as a reader would run them.

============  ====================================================================================================
fenced block  what is done with it
============  ====================================================================================================
sh            commands for bash, in the page's folder; each must end with exit code 0
text          compared with what the commands before it print, as `shows` says; `...` stands for any text
others        written to the file that the first line names (`# train.py`); without a name they are left alone
============  ====================================================================================================

A script in which a line ends in `# before: ...` is run as it was before, too, without the lines that end in `# new`:
`python train.py` must print what that does, and may print more.

A comment above a block says how it is run here (``<!-- test: slurm -->``):

=========  =======================================================================================================
mark       block
=========  =======================================================================================================
cora       left out where MGG_DATA has no Cora, which takes the place of a download
no cora    left out where MGG_DATA has Cora
interrupt  commands, ended by Ctrl-C after some epochs, with exit code 3
dgl        commands, with DGL, which pip installs to a folder of its own; not by a Python that it has no wheel for
slurm      commands, with stand-ins for Slurm's commands: sbatch runs the script at once, srun starts ranks by mpiexec
=========  =======================================================================================================
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import jobs
import programs
from torture.launched import Launched, metrics

ROOT = Path(__file__).parents[1]
CORA = Path(os.environ.get("MGG_DATA", ROOT.parent / "shared" / "data")).resolve() / "cora" / "cora.npz"
LONGEST = 300.0  # seconds of a block of commands
EPOCHS = 10  # of a run before Ctrl-C

BLOCK = re.compile(r"(?:^<!-- test: ([\w ]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.\w+)\n")
NEW = re.compile(r"^.*  # (?:new\n|before: )", re.MULTILINE)
HAS_WHEELS = sys.version_info < (3, 12)  # of the DGL that benchmarks compare with
_QUANTITY = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)? ?(?:%|[KMG]iB|B|ms|s|min|h)(?!\w)"
QUANTITY = re.compile(f"{_QUANTITY}(?: {_QUANTITY})*")  # also "1 min 05 s"
REAL = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")
NEAR = 0.02  # of reals, that trainings on other machines give: the difference, and its share
LINES = re.compile(r"[\u2500-\u257f\s]+")  # of tables

STAND_INS = {
    "sbatch": """\
name=mgg-train SLURM_NTASKS=2 answer="Submitted batch job 7"
while [[ $1 == --* ]]; do
    case $1 in --job-name=*) name=${1#*=} ;; --ntasks=*) SLURM_NTASKS=${1#*=} ;; --parsable) answer=7 ;; esac
    shift
done
export SLURM_NTASKS SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_SUBMIT_DIR=$PWD
bash "$@" >"$name-7.out" 2>&1 || exit
echo "$answer"
""",
    "srun": """\
while [[ $1 == --* ]]; do
    case $1 in --ntasks=*) ranks=${1#*=} ;; esac
    shift
done
exec mpiexec -n "$ranks" "$@"
""",
    "scontrol": 'echo "JobId=7 Requeue=0"\n',
}


@dataclass
class Block:
    """A fenced block of a page. line: of its first line in the page's file."""

    mark: str
    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text()
    found = BLOCK.finditer(text)
    return [Block(at[1] or "", at[2], at[3], text.count("\n", 0, at.start(3)) + 1) for at in found]


def masked(text: str) -> str:
    """Return a text with # for each number with a unit, and without the lines of tables."""
    return LINES.sub(" ", QUANTITY.sub("#", text)).strip()


def shows(text: str, output: str) -> bool:
    """Return whether a page's text shows an output. `...` stands for any text.

    Times and sizes may differ, real numbers a little; counts and words are the same.
    """
    parts = [map(re.escape, REAL.split(part.strip())) for part in masked(text).split("...")]
    pattern = r"\s*.*?\s*".join(f"({REAL.pattern})".join(part) for part in parts)
    found = re.fullmatch(pattern, masked(output), re.DOTALL)
    numbers = zip(REAL.findall(masked(text)), found.groups(), strict=True) if found else ()
    pairs = [[float(each.replace(",", "")) for each in pair] for pair in numbers]
    return found is not None and all(abs(a - b) <= NEAR * (1 + abs(a)) for a, b in pairs)


def follow(page: Path, folder: Path) -> None:
    """Do what a page says, in an empty folder. Raises AssertionError that names the page's line and what is wrong."""
    (folder / "slurm").symlink_to(ROOT / "slurm")
    code, output = 0, None
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.mark == ("no cora" if CORA.exists() else "cora") or (block.mark == "dgl" and not HAS_WHEELS):
            continue
        if block.language == "sh":
            code, output = run(block.text, folder, block.mark)
            assert code == (3 if block.mark == "interrupt" else 0), f"{where}: exit code {code}\n{output}"
            for path in folder.glob("before_*.py"):
                if (name := path.name.removeprefix("before_")) in block.text.split():
                    _, earlier = run(f"python {path.name}", folder, block.mark)
                    assert earlier and output.startswith(earlier), (
                        f"{where}: {name} printed before:\n{earlier}"
                    )
        elif block.language == "text":
            # Ctrl-C comes after any epoch.
            text = re.sub(r"(?<=after epoch )\d+", "...", block.text) if code == 3 else block.text
            assert output is not None and shows(text, output), f"{where} does not show:\n{output}"
        elif name := FILE.match(block.text):
            (folder / name[1]).write_text(block.text)
            if (earlier := NEW.sub("", block.text)) != block.text:
                (folder / f"before_{name[1]}").write_text(earlier)


def run(commands: str, folder: Path, mark: str = "") -> tuple[int, str]:
    """Run commands in a folder; return their exit code and what they print."""
    if mark == "interrupt":
        return interrupted(commands, folder)
    if mark == "cora":
        commands = re.sub(r"planetoid .*(?= -o)", str(CORA), commands)
    environment = jobs.clean_environment() | {
        "XDG_CACHE_HOME": str(folder / ".cache"),
        "MGG_VENV": sys.prefix,
    }
    places = [str(Path(sys.prefix) / "bin"), environment["PATH"]]
    if mark == "slurm":
        places.insert(0, str(stand_ins(folder)))
    if mark == "dgl":  # which draws the same on one thread alone
        environment |= {
            "PYTHONPATH": f"{dgl(folder)}:{environment.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
        }
    environment["PATH"] = ":".join(places)
    bash = ("bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{commands}")
    done = programs.run_limited(*bash, seconds=LONGEST, cwd=folder, env=environment)
    return done.returncode, done.stdout


def interrupted(command: str, folder: Path) -> tuple[int, str]:
    """Run a command of mgg that trains, and press Ctrl-C after some epochs; return its exit code and its output."""

    def runs() -> set[Path]:
        return {path.parent for path in folder.glob("runs/*/*/metrics.csv")}

    before = runs()
    job = Launched(folder, *shlex.split(command)[1:])
    try:
        programs.wait_until(lambda: any(len(metrics(run)) > EPOCHS for run in runs() - before), 20, job.said)
        os.killpg(job.process.pid, signal.SIGINT)
        return job.wait(), job.said()
    finally:
        job.close()


def dgl(folder: Path) -> Path:
    """Return a folder with DGL, which pip installs there without its requirements. Fails the test where pip does."""
    to, listed = folder / ".dgl", ROOT / "benchmarks" / "peers" / "alone.txt"
    if not to.exists():
        pip = (sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", to, "-r", listed)
        done = programs.run_limited(*pip, seconds=LONGEST)
        assert done.returncode == 0, f"DGL could not be installed: {done.stderr}"
    return to


def stand_ins(folder: Path) -> Path:
    """Return a folder with the stand-ins of Slurm's commands."""
    made = folder / ".slurm"
    made.mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (made / name).write_text(f"#!/bin/bash\n{text}")
        (made / name).chmod(0o755)
    return made
