"""`mgg submit`: no text of a user is executed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from command import mgg
from tools.submit.stand_ins import SCRIPTS, noted, parsed, write
from torture.report import record

COMMANDS = ("touch EXECUTED", "touch${IFS}EXECUTED", "touch\tEXECUTED", ">EXECUTED")
AROUND = (
    *(
        "$(|)",
        "`|`",
        ";|;",
        "||",
        "&&|&",
        "\n|\n",
        "'|'",
        '"|"',
        "'; |; '",
        '"; |; "',
        "$((|))",
        "<(|)",
        "${x:=|}",
    ),
    *(
        "--wrap=|",
        "--output=../|",
        "-o/|",
        " -- |",
        "#|",
        "\\|",
        "*|?",
        "%j%x%u|",
        "%%|",
        "../../|",
        "~/|",
        "/|",
    ),
    *(
        "a.toml --wrap |",
        "\r|",
        "\x1b[2J|",
        "!|",
        "{|,|}",
        "x=|",
        "||",
        "@|",
        "é\u202e|",
        "\udcff|",
        "$|",
        "\\\n|",
    ),
)
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
    """The name of the job file."""
    path = Path(as_a_name(text) + ".toml")
    write(path)
    code = mgg("submit", "--", path)
    path.unlink()
    assert code == 0
    return code, [f"./{path}" if str(path).startswith("-") else str(path)]


def by_graph(text):
    """graph.file of the job file, of a file that exists where one can have this name."""
    name = text.encode(errors="replace").decode()  # TOML is UTF-8
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
    """run.folder of the job file."""
    write("other.toml", run={"folder": text.encode(errors="replace").decode(), "resume": "auto"})
    return mgg("submit", "other.toml"), ["other.toml"]


def by_value(text):
    """The value of --set."""
    text = text.replace("\0", "")
    return mgg("submit", "job.toml", "--set", f"run.folder={text}"), [
        "--set",
        f"run.folder={text}",
        "--",
        "job.toml",
    ]


def by_override(text):
    """The whole of --set."""
    text = text.replace("\0", "").encode(errors="replace").decode()  # so that the error can be captured
    return mgg("submit", "job.toml", "--set", text), None


def by_scripts(text):
    """The name of the folder of the scripts."""
    name = as_a_name(text).rstrip("\n")  # $(pwd) loses those
    scripts = Path(os.environ["NOTES"]).parent / name
    shutil.copytree(SCRIPTS, scripts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MGG_SLURM", str(scripts))
        code = mgg("submit", "job.toml")
    shutil.rmtree(scripts)
    assert code == 0
    return code, ["job.toml"]


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
    parent = folder.parent
    before = sorted(path for path in parent.rglob("*"))
    for text in hostile(rng, trials):
        code, ending = FIELDS[field](text)
        out, err = capsys.readouterr()
        words = noted("srun")
        noted("sbatch")
        if code == 0:
            accepted += 1
            assert ending is None or words[-len(ending) :] == ending, text
        else:
            assert (code, out, words) == (2, "", None), (text, err)
            assert err.startswith("mgg: error: ") and err.count("\n") == 1, text
        assert sorted(path for path in parent.rglob("*")) == before, text
    seconds = time.monotonic() - began
    record(f"hostile strings, mgg submit, {field}", trials, 0, seconds=seconds, refused=trials - accepted)
