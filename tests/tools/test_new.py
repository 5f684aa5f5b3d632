"""`mgg new`: a job file with the defaults, for a graph."""

from __future__ import annotations

import dataclasses
import shutil

import msgspec
from command import mgg, refused
from jobs import blocks

from mgg_hpc import config
from mgg_hpc.data import writer


def test_a_new_job_has_the_defaults_and_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    writer.write(tmp_path / "g.h5", blocks())
    writer.write(tmp_path / "bare.h5", dataclasses.replace(blocks(), x=None))
    (tmp_path / "jobs").mkdir()
    for words, path, model in (
        ("g.h5", "g.toml", "features"),
        ("bare.h5 -o jobs/b.toml", "jobs/b.toml", "degree"),
    ):
        assert mgg("new", *words.split()) == 0
        assert f"mgg train {path}" in capsys.readouterr().out
        job = config.load(tmp_path / path)
        assert job.graph.file == str(tmp_path / words.split()[0]) and job.model.input == model
        plain = msgspec.structs.replace(job, graph=config.GraphSettings(), run=config.RunSettings())
        assert plain == config.Settings(model=config.ModelSettings(input=model))
        assert mgg("train", path, "--set", "train.epochs=2") == 0
    for folder in ("jobs", "runs"):
        shutil.rmtree(folder, ignore_errors=True)
    assert "g.toml exists" in refused(capsys, "new", "g.h5")
    assert "a job file ends in .toml" in refused(capsys, "new", "g.h5", "-o", "g.txt")
