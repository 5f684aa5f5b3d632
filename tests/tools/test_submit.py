"""`mgg submit`: which script with which options, what is refused, and that no text of a user is executed.

Slurm's commands are stand-ins: sbatch runs the script as Slurm does, and both it and srun note their arguments.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import tomli_w
from command import mgg
from torture.report import record

from mgg_hpc.data.clicks.generate import draw_clicks
from mgg_hpc.data.clicks.store import write_clicks
from mgg_hpc.errors import InputError
from mgg_hpc.tools.submit import Request, _minutes, process_submit

SCRIPTS = Path(__file__).parents[2] / "slurm"
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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a graph and job.toml; Slurm's commands are stand-ins."""
    programs, folder = tmp_path / "bin", tmp_path / "here"
    for made in (programs, folder, tmp_path / "notes", tmp_path / "scratch"):
        made.mkdir()
    for name, text in {"sbatch": NOTES + SBATCH, "srun": NOTES, "scontrol": SCONTROL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "MGG_SRUN"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setenv("MGG_SLURM", str(SCRIPTS))
    monkeypatch.setenv("MGG_VENV", sys.prefix)
    monkeypatch.chdir(folder)
    (folder / "g.h5").touch()
    write("job.toml")
    return folder


def write(name, **sections):
    Path(name).write_text(tomli_w.dumps({"graph": {"file": "g.h5"}} | sections))


def noted(program):
    """Return the arguments of a stand-in, and forget them; None if it did not run."""
    path = Path(os.environ["NOTES"], program)
    if not path.exists():
        return None
    words = os.fsdecode(path.read_bytes()).split("\0")[:-1]
    path.unlink()
    return words


def parsed(words):
    """Return (options of sbatch as a dictionary, script, its arguments)."""
    at = next(at for at, word in enumerate(words) if not word.startswith("--"))
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words[:at])
    return options, Path(words[at]).name, words[at + 1 :]


def submitted(*arguments):
    assert mgg("submit", *arguments) == 0
    return parsed(noted("sbatch"))


def refused(capsys, *arguments):
    """Return the line of a command that ends with 2 before sbatch runs."""
    capsys.readouterr(), noted("sbatch"), noted("srun")
    assert mgg("submit", *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, noted("sbatch"), noted("srun")) == ("", None, None)
    assert err.startswith("mgg: error: ") and err.count("\n") == 1
    return err.removeprefix("mgg: error: ").strip()


# ---- what is submitted ----------------------------------------------------------------------------------


def test_ranks_on_cpus(folder, monkeypatch, capsys):
    monkeypatch.delenv("MGG_SLURM")  # the scripts of the checkout are found
    words = "job.toml --nodes 2 --ranks 4 --threads 8 --time 1:00:00 --set train.epochs=5"
    assert mgg("submit", *words.split()) == 0
    assert capsys.readouterr().out == "job 7; its output will be in mgg-job-7.out\n"
    words = noted("sbatch")
    options, _, arguments = parsed(words)
    numbers = {"nodes": "2", "ntasks": "8", "ntasks-per-node": "4", "cpus-per-task": "8"}
    assert options == {"parsable": "", "job-name": "mgg-job", "time": "1:00:00"} | numbers
    assert str(SCRIPTS / "train.sbatch") in words and arguments == ["job.toml", "--set", "train.epochs=5"]


def test_dlrm_jobs_ask_for_the_memory_of_their_tables_and_scores(folder, capsys, monkeypatch):
    """Rows of 5 columns take 32 bytes in memory; row-wise Adagrad keeps 4 bytes a row, and Adagrad a row."""
    write_clicks(Path("c.h5"), [partial(draw_clicks, 100)])

    def clicks(**keys):
        job = {"data": "c.h5", "rows": 2**20, "dim": 5, "test": 0.01} | keys
        Path("job.toml").write_text(tomli_w.dumps({"dlrm": job}))

    def mib(*arguments):
        return int(submitted("job.toml", *arguments)[0]["mem"].removesuffix("M"))

    clicks()
    assert mib() == 1024 + 2 * 26 * (32 + 4) + 1  # a row for tests takes 45 bytes
    assert mib("--nodes=2", "--ranks=2") == 2 * 1024 + 26 * (32 + 4) + 1
    assert (
        mgg("submit", "job.toml", "--gpus=2", "--dry-run") == 0
    )  # tables are on GPUs, and their copy is not
    assert f"--mem={2 * 1024 + 26 * (32 + 4) + 1}M" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr("mgg_hpc.training.dlrm.job.SCORED", 2**20)
        for test, rows in ((0.01, 1), (0.5, 50), (0, 100)):  # of no rows for tests, all are scored
            assert mib(f"--set=dlrm.test={test}") == 1024 + 2 * 26 * (32 + 4) + rows
        assert mib("--ranks=2", "--set=dlrm.test=0.5", "--set=dlrm.memory=1G") == 2 * (2048 + 30 * 13 + 25)
    assert mib("--memory=3G") == 3072
    assert refused(capsys, "job.toml", "--memory=4").startswith("--memory is 4 B")
    clicks(columns=[1, 2], optimizer="adagrad")
    assert mib() == 1024 + 2 * 2 * (32 + 20) + 1
    clicks(columns=[1], memory="2G")
    assert mib("--ranks=2") == 2 * (1024 + 2048 + 15) + 1  # 30 bytes a row while rows are placed
    write("graph.toml")
    assert "mem" not in submitted("job.toml", "graph.toml")[0]
    assert "shmem is for jobs of graphs" in refused(capsys, "job.toml", "--set=run.backend=shmem")
    assert refused(capsys, "job.toml", "--set=dlrm.data=no.h5").endswith("no.h5: no such file")
    for change, said in (  # as training
        ("data=g.h5", f"job.toml: {folder}/g.h5: is no file of clicks"),
        ("columns=[2,2]", "job.toml: dlrm.columns are [2, 2]; expected distinct ones of 1 to 26"),
        ("memory=0", "job.toml: dlrm.scratch is for tables larger than memory: set dlrm.memory too"),
        ("test=day", f'job.toml: {folder}/c.h5: has one log, and dlrm.test is "day"'),
        ("test=0.999", "c.h5: no row is left to train on; lower dlrm.test"),
    ):
        assert said in refused(capsys, "job.toml", "--set=dlrm.scratch=/tmp", f"--set=dlrm.{change}")


def test_gpus(folder):
    # The script's own check of GPUs needs a node that has some.
    request = Request(nodes=2, gpus=4, partition="a100,h100", account="p-1")
    with pytest.raises(InputError, match="Slurm gave this job no GPUs"):
        process_submit([Path("job.toml")], (), request, False)
    options, script, arguments = parsed(noted("sbatch"))
    assert (script, arguments) == ("gpu.sbatch", ["job.toml"])
    assert (options["ntasks"], options["ntasks-per-node"], options["gpus-per-node"]) == ("8", "4", "4")
    assert (options["partition"], options["account"]) == ("a100,h100", "p-1")


def test_requeue(folder, monkeypatch):
    options, script, _ = submitted("job.toml", "--requeue", "--time", 60, "--save-seconds", 300)
    assert script == "requeue.sbatch"
    assert (options["signal"], options["requeue"], options["time"]) == ("B:USR1@300", "", "60")
    monkeypatch.setenv("REQUEUE", "1")
    submitted("job.toml", "--requeue", "--set", "run.resume=never")
    # The user's --set comes after the script's.
    words = "train --set run.threads=1 --set run.resume=auto --set run.resume=never -- job.toml"
    assert " ".join(noted("srun")).endswith(words)


def test_several_files_are_an_array(folder):
    write("second.toml")
    options, script, arguments = submitted("job.toml", "second.toml", "--at-once", 1, "--set", "train.seed=3")
    assert (script, options["array"], options["job-name"]) == ("array.sbatch", "0-1%1", "mgg-job")
    assert arguments == ["job.toml", "second.toml", "--", "--set", "train.seed=3"]
    assert noted("srun")[-4:] == ["--set", "train.seed=3", "--", "second.toml"]


def test_dry_run_prints_the_command_and_runs_nothing(folder, capsys):
    write("it's a job.toml")
    words = ("it's a job.toml", "--ranks", 2, "--set", "run.folder=my runs")
    assert mgg("submit", *words, "--dry-run") == 0
    line = capsys.readouterr().out
    assert (noted("sbatch"), line.count("\n")) == (None, 1)
    _, _, arguments = submitted(*words)
    assert arguments == ["it's a job.toml", "--set", "run.folder=my runs"]
    expected = noted("srun")
    environment = {name: value for name, value in os.environ.items() if name != "MGG_SLURM"}
    subprocess.run(["bash", "-c", line], check=True, capture_output=True, env=environment)
    assert noted("srun") == expected
    assert shlex.split(line)[:4] == [".", str(SCRIPTS / "site.env.sh"), "&&", "sbatch"]


def test_the_sites_file_is_read(folder, tmp_path, monkeypatch):
    site = shutil.copytree(SCRIPTS, tmp_path / "site of ours")
    with (site / "site.env.sh").open("a") as file:
        file.write('export SBATCH_PARTITION=cpu\necho loading modules\nexport PATH="$PATH:/ours"\n')
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text('#!/bin/bash\nenv >"$NOTES/environment"\necho "8;cluster"\n')
    monkeypatch.setenv("MGG_SLURM", str(site))
    assert mgg("submit", "job.toml") == 0
    lines = Path(os.environ["NOTES"], "environment").read_text().splitlines()
    assert {"SBATCH_PARTITION=cpu", f"MGG_SLURM={site}"} <= set(lines)


# ---- what is refused ------------------------------------------------------------------------------------


MINUTES = {"90": 90, "1:30": 1.5, "1:30:00": 90, "2-0": 2880, "1-12:30": 2190, "0-0:1:0": 1, "0:60": 1}
NO_TIMES = ["", "0", "0:59", "1h", "-5", "1:2:3:4", "1-", "1.5", " 5", "٣٠", "5\n", "UNLIMITED"]


def test_times_are_slurms():
    assert {text: _minutes(text) for text in MINUTES} == MINUTES
    for text in NO_TIMES:
        with pytest.raises(
            InputError, match=r"--time '.*': write at least a minute as hours:minutes:seconds"
        ):
            _minutes(text)


REFUSED = {
    "--time soon": "--time 'soon': write at least a minute as",
    "--time 6 --requeue": "ask for 7 minutes or more",
    "--name 'a b'": "--name 'a b': use up to 64 letters",
    "--name " + "a" * 65: "use up to 64 letters",
    "--partition 'a;b'": "--partition 'a;b': use letters",
    "--account --x": "--account '--x': use letters",
    "--gpus 2 --ranks 4": "--ranks: a rank drives one GPU",
    "--nodes 0": "Invalid value for '--nodes'",
    "--at-once 2": "--at-once is for several job files",
    "--set train.epoch=5": "--set train.epoch=5: unknown key train.epoch; did you mean train.epochs?",
    "--set graph.file=h.h5": "h.h5: no such file",
    "--gpus 2 --set run.backend=shm": 'run.backend = "shm" is for CPUs',
    "--set run.backend=cuda": "ask for them: --gpus 1",
    "--nodes 2 --set run.backend=shm": 'run.backend = "shm" is for one node',
    "--ranks 2 --set run.backend=serial": 'run.backend = "serial" is for one rank',
    "absent.toml": "absent.toml: no such job file",
    "second.toml --set run.folder=runs --requeue": "second.toml: run.folder is runs, as that of job.toml",
}


def test_what_cannot_run_is_refused_before_it_is_submitted(folder, capsys):
    write("second.toml")
    for options, message in REFUSED.items():
        assert message in refused(capsys, "job.toml", *shlex.split(options)), options
    submitted("job.toml", "second.toml", "--requeue")
    submitted("job.toml", "second.toml", "--set", "run.folder=runs")


def test_a_run_that_has_finished_is_named(folder, capsys):
    run = folder / "runs" / "job" / "001"
    run.mkdir(parents=True)
    (folder / "runs" / "job" / "latest").symlink_to("001")
    write(run / "job.toml", train={"epochs": 50})
    words = ("job.toml", "--requeue", "--set", "train.epochs=50")
    submitted(*words)  # it has not finished
    (run / "summary.json").touch()
    assert "has finished, and this job would go on with it" in refused(capsys, *words)
    submitted("job.toml", "--requeue", "--set", "train.epochs=51")
    submitted("job.toml", "--set", "train.epochs=50")  # it begins a run of its own


def test_without_slurm_one_line_says_so(folder, capsys, monkeypatch, tmp_path):
    programs = tmp_path / "few"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "basename"):
        (programs / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(programs))
    line = refused(capsys, "job.toml")
    assert line.startswith("no sbatch on PATH: submit where Slurm is, or train on this machine")
    assert mgg("submit", "job.toml", "--dry-run") == 0


def test_what_sbatch_says_is_passed_on(folder, capsys, tmp_path):
    (tmp_path / "bin" / "sbatch").write_text(
        "#!/bin/bash\necho 'sbatch: error: invalid partition' >&2\nexit 1\n"
    )
    assert refused(capsys, "job.toml") == "sbatch refused the job: sbatch: error: invalid partition"


def test_missing_scripts_and_a_broken_site_are_named(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MGG_SLURM", str(tmp_path))
    assert f"{tmp_path}: holds no scripts for Slurm (common.sh); set MGG_SLURM" in refused(capsys, "job.toml")
    site = shutil.copytree(SCRIPTS, tmp_path / "site")
    monkeypatch.setenv("MGG_SLURM", str(site))
    monkeypatch.setenv("MGG_VENV", str(tmp_path))
    assert refused(capsys, "job.toml").startswith(f"{tmp_path}/bin/mgg is missing: run make setup there")
    (site / "site.env.sh").write_text("echo no module load >&2\nfalse\n")
    assert "site.env.sh ended with 1 (no module load)" in refused(capsys, "job.toml")


# ---- hostile strings ------------------------------------------------------------------------------------

COMMANDS = ("touch EXECUTED", "touch${IFS}EXECUTED", "touch\tEXECUTED", ">EXECUTED")
AROUND = (
    "$(|) `|` ;|; || && |& '|' \"|\" $((|)) <(|) ${x:=|} --wrap=| --output=../| -o/| #| \\| *|? %j%x%u| %%|"
)
AROUND += " ../../| ~/| /| !| {|,|} x=| @| é\u202e| \udcff| $|"
AROUND = [
    *AROUND.split(),
    "\n|\n",
    "'; |; '",
    '"; |; "',
    " -- |",
    "a.toml --wrap |",
    "\r|",
    "\x1b[2J|",
    "\\\n|",
]
EXTREMES = ("", " ", "-", "--", ".", "..", "/", "~", "*", "$", "'", '"', "\\", "%", "%j", "\0", "a" * 5000)


def hostile(rng, count):
    """Return so many different strings: extremes, and commands that would leave a file, between what could run them."""
    found = dict.fromkeys(EXTREMES[:: max(1, len(EXTREMES) * 2 // count)])
    while len(found) < count:
        text = str(rng.choice(COMMANDS))
        for _ in range(rng.integers(1, 4)):
            text = AROUND[rng.integers(len(AROUND))].replace("|", text)
        found[text] = None
    return list(found)


def as_a_name(text):
    """Return a string as the name of a file can have it."""
    name = text.replace("/", "_").replace("\0", "_")[:60]
    return name if name not in ("", ".", "..") else "x" + name


def as_toml(text):
    """Return a string as UTF-8 can have it."""
    return text.encode(errors="replace").decode()


def by_option(option):
    """Return a submission with the string as an option's value, which is refused or reaches sbatch in one piece."""

    def submit(text):
        code = mgg("submit", "job.toml", f"--{option}={text}")
        if code == 0:
            options, _, _ = parsed(noted("sbatch"))
            assert options["job-name" if option == "name" else option] == text
            assert "/" not in text and not set(text) & set("$`;|&<>\\'\" \n%")
        return code, ["job.toml"]

    return submit


def by_file_name(text):
    path = Path(as_a_name(text) + ".toml")
    write(path)
    assert mgg("submit", "--", path) == 0
    path.unlink()
    return 0, [f"./{path}" if str(path).startswith("-") else str(path)]


def by_graph(text):
    """graph.file of the job file, of a file that exists where one can have this name."""
    name = as_toml(text)
    write("other.toml", graph={"file": name})
    with_name = Path(as_a_name(name))
    there = str(with_name) == name and not with_name.exists()
    if there:
        with_name.touch()
    code = mgg("submit", "other.toml")
    if there:
        with_name.unlink()
        assert code == 0
    return code, ["other.toml"]


def by_run_folder(text):
    write("other.toml", run={"folder": as_toml(text), "resume": "auto"})
    return mgg("submit", "other.toml"), ["other.toml"]


def by_value(text):
    value = f"run.folder={text}".replace("\0", "")
    return mgg("submit", "job.toml", "--set", value), ["--set", value, "--", "job.toml"]


def by_override(text):
    return mgg("submit", "job.toml", "--set", as_toml(text.replace("\0", ""))), []


def by_scripts(text):
    """The name of the folder of the scripts."""
    name = as_a_name(text).rstrip("\n")  # $(pwd) loses those
    scripts = shutil.copytree(SCRIPTS, Path(os.environ["NOTES"]).parent / name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MGG_SLURM", str(scripts))
        assert mgg("submit", "job.toml") == 0
    shutil.rmtree(scripts)
    return 0, ["job.toml"]


FIELDS = {
    **{option: by_option(option) for option in ("name", "time", "partition", "account")},
    "job file": by_file_name,
    "graph.file": by_graph,
    "run.folder": by_run_folder,
    "value of --set": by_value,
    "--set": by_override,
    "MGG_SLURM": by_scripts,
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.trials(20, torture=500)
def test_hostile_strings_are_refused_or_stay_what_they_are(folder, rng, trials, capsys, field):
    """They are executed by neither `mgg submit` nor the script, leave no file, and reach `mgg train` unchanged."""
    began, accepted = time.monotonic(), 0
    write("other.toml")
    before = sorted(folder.parent.rglob("*"))
    for text in hostile(rng, trials):
        code, ending = FIELDS[field](text)
        out, err = capsys.readouterr()
        words = noted("srun")
        noted("sbatch")
        if code == 0:
            accepted += 1
            assert words[len(words) - len(ending) :] == ending, text
        else:
            assert (code, out, words) == (2, "", None), (text, err)
            assert err.startswith("mgg: error: ") and err.count("\n") == 1, text
        assert sorted(folder.parent.rglob("*")) == before, text
    seconds = time.monotonic() - began
    record(f"hostile strings, mgg submit, {field}", trials, 0, seconds=seconds, refused=trials - accepted)
