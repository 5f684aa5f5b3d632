"""The folder in which tests of `mgg submit` run."""

from __future__ import annotations

import os
import sys

import pytest
from tools.submit.stand_ins import NOTES, SBATCH, SCONTROL, SCRIPTS, write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a graph; Slurm's commands are stand-ins."""
    programs, folder = tmp_path / "bin", tmp_path / "here"
    for made in (programs, folder, tmp_path / "notes", tmp_path / "scratch"):
        made.mkdir()
    for name, text in {"sbatch": NOTES + SBATCH, "srun": NOTES, "scontrol": SCONTROL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name, value in {
        "PATH": f"{programs}:/usr/bin:/bin",
        "NOTES": str(tmp_path / "notes"),
        "TMPDIR": str(tmp_path / "scratch"),
        "MGG_SLURM": str(SCRIPTS),
        "MGG_VENV": sys.prefix,
    }.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "MGG_SRUN"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    (folder / "g.h5").touch()
    write("job.toml")
    return folder
