"""Job files: defaults, overrides, and errors that name the key and what would be right."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from mgg_hpc import config, sizes
from mgg_hpc.errors import InputError

# Every key and its default, as the design of job files lists them.
DEFAULTS = {
    "graph": {"file": ""},
    "model": {
        "name": "gcn", "hidden": 16, "layers": 2, "dropout": 0.5, "jumping": "none", "residual": False, "norm": "none",
        "train_eps": False, "aggr": "mean", "heads": 8, "output_heads": 1, "attention": "additive",
        "attention_dropout": 0.0, "edge_data": "", "input": "features", "embedding": 64,
    },
    "train": {
        "epochs": 200, "learning_rate": 0.01, "weight_decay": 5e-4, "weight_decay_layers": "first",
        "normalize_features": "none", "patience": 0, "select": "best", "metric": "auto", "seed": 0,
        "dtype": "float32", "recompute": [], "mode": "full", "fanouts": [], "batch_size": 1024, "prefetch": 2,
        "prepare": "cpu", "buffer": 10,
    },
    "run": {
        "folder": "", "backend": "auto", "threads": 0, "features": "auto", "share_gpu": False, "cuda_graphs": True,
        "resume": "never", "watchdog": "auto",
    },
    "features": {"near": 0, "peers": 0, "host": 0, "score": "visits"},
    "plan": {
        "transfer": "auto", "ps": "auto", "dist": "auto", "wpb": "auto", "far_ps": "auto", "tune": "auto",
        "cache": "auto", "memory": 0, "scratch": "",
    },
    "checkpoint": {"every_epochs": 0, "every_minutes": 10.0, "keep": 2},
    "dlrm": {
        "data": "", "columns": [], "rows": 100_000, "dim": 16, "bottom": [512, 256], "top": [512, 256],
        "optimizer": "rowwise_adagrad", "learning_rate": 0.01, "batch_size": 2048, "test": 0.1,
        "memory": 0, "scratch": "",
    },
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """Write a job file and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "job.toml"
        path.write_text(text, encoding="latin-1" if "\xff" in text else None)
        return path

    return write


def refusal(path: Path, *overrides: str) -> str:
    """The one line with which a job file is refused."""
    with pytest.raises(InputError) as caught:
        config.load(path, overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_an_empty_job_has_the_documented_defaults():
    assert msgspec.to_builtins(config.from_tree({}, "job")) == DEFAULTS


@pytest.mark.parametrize(
    ("key", "value", "needed"),
    [
        ("train.fanouts", [5, 5], 'train.mode = "sampled"; it is "full"'),
        ("train.batch_size", 64, 'train.mode = "sampled"'),
        ("model.heads", 4, 'model.name = "gat"; it is "gcn"'),
        ("model.edge_data", "feat", 'model.name = "gat"'),
        ("model.aggr", "max", 'model.name = "sage"'),
        ("model.train_eps", True, 'model.name = "gin"'),
        ("features.near", "1G", 'train.mode = "sampled"; it is "full"'),
        ("model.embedding", 8, 'model.input = "learned"; it is "features"'),
    ],
)
def test_a_key_that_would_do_nothing_is_refused_with_what_it_needs(write, key, value, needed):
    path = write('[graph]\nfile = "g.h5"')
    said = refusal(path, f"{key}={json.dumps(value)}")
    assert f"{key} is {value!r}, which is for {needed}" in said
    other, _, rest = needed.partition(" = ")
    section, _, name = key.partition(".")
    given = (f"{key}={json.dumps(value)}", f"{other}={rest.partition(';')[0]}")
    assert getattr(getattr(config.load(path, given), section), name) == value
    assert getattr(getattr(config.load(path, given[:1], of_run=True), section), name) == value


def test_features_have_one_place(write):
    text = '[graph]\nfile = "g.h5"\n[train]\nmode = "sampled"\n[run]\nfeatures = "host"\n'
    config.load(write(text))
    said = refusal(write(text + '[features]\nhost = "1G"'))
    assert 'run.features is "host", and [features] has the tiers' in said


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        config.Settings().train.epochs = 3


def test_values_of_the_file_replace_defaults_and_paths_are_beside_it(write, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    text = '[graph]\nfile = "sub/g.h5"\n[model]\nhidden = 3\n[train]\nlearning_rate = 1\n[plan]\nps = 8\ndist = 0'
    settings = config.load(write(text))
    assert (settings.model.hidden, settings.plan.ps, settings.plan.dist, settings.model.layers) == (
        3,
        8,
        0,
        2,
    )
    assert type(settings.train.learning_rate) is float  # whole numbers do where a number is asked for
    assert settings.graph.file == str(tmp_path / "sub" / "g.h5")
    assert settings.run.folder == "runs/job"
    settings = config.load(write('[graph]\nfile = "/data/g.h5"\n[run]\nfolder = "elsewhere"'))
    assert (settings.graph.file, settings.run.folder) == ("/data/g.h5", "elsewhere")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.epochs=50", 50),
        ("train.epochs = 7 ", 7),
        ("train.learning_rate=1e-3", 1e-3),
        ("train.select=last", "last"),
        ('train.select="last"', "last"),
    ],
)
def test_overrides_win_over_the_file(write, override, value):
    path = write('[graph]\nfile = "g.h5"\n[train]\nepochs = 9\nselect = "best"')
    key = override.partition("=")[0].strip().partition(".")[2]
    assert getattr(config.load(path, (override,)).train, key) == value


def test_the_last_of_two_overrides_counts_and_sections_may_be_new(write):
    settings = config.load(write(""), ("model.hidden=4", "graph.file=a b.h5", "model.hidden=5"))
    assert settings.model.hidden == 5
    assert Path(settings.graph.file).name == "a b.h5"  # words that are no TOML


@pytest.mark.parametrize("text", ["train.epochs", "epochs=3", ".epochs=3", "train.=3", "=3", ""])
def test_overrides_of_another_form_are_refused(write, text):
    said = refusal(write(""), text)
    assert said.startswith(f"--set {text}: write it as section.key=value")
    assert text != "epochs=3" or said.endswith("for example --set train.epochs=3")


def test_overrides_of_unknown_keys_are_refused_by_what_was_written(write):
    said = refusal(write(""), "train.epoch=3")
    assert said == "--set train.epoch=3: unknown key train.epoch; did you mean train.epochs?"
    assert refusal(write(""), "trian.epochs=3").endswith("unknown section [trian]; did you mean train?")


WIDTH = "a whole number, at least 1 and at most 1048576"
TRANSFER = (
    '"auto" or "direct" or "get" or "halo" or a list of "direct" or "get" or "halo", one for each layer'
)
WRONG = {  # a line of a job file: what the key must be
    'train.epochs = "many"': "a whole number, at least 1",
    "train.epochs = 2.5": "a whole number, at least 1",
    "train.epochs = true": "a whole number, at least 1",
    "train.epochs = 0": "a whole number, at least 1",
    "train.learning_rate = 0": "a number, more than 0 and at most 1000000.0",
    "train.learning_rate = inf": "a number, more than 0 and at most 1000000.0",
    "train.weight_decay = -1e-9": "a number, at least 0 and at most 1000000.0",
    "train.weight_decay = nan": "a number, at least 0 and at most 1000000.0",
    "train.seed = -1": "a whole number, at least 0 and at most 9223372036854775807",
    'train.select = "bset"': '"best" or "last"; did you mean \'best\'?',
    'model.name = "gnc"': '"gcn" or "gin" or "sage" or "gat"; did you mean \'gcn\'?',
    "train.recompute = [1, 0]": 'a list of layers or "all"',
    'train.recompute = "none"': 'a list of layers or "all"',
    "train.fanouts = [4, -2]": "a list of numbers of edges, one for each layer, -1 for all",
    "model.dropout = 1": "a number, at least 0 and less than 1",
    "model.hidden = 1048577": WIDTH,
    "graph.file = 3": "a text in quotes",
    "run.threads = -2": "a whole number, at least 0 and at most 1024",
    'run.share_gpu = "yes"': "true or false",
    'plan.transfer = ["halo", "post"]': TRANSFER,
    "plan.transfer = []": TRANSFER,
    "plan.dist = 2147483648": "a whole number, at least 0 and at most",
    'plan.wpb = "atuo"': f"{WIDTH} or \"auto\"; did you mean 'auto'?",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_types_and_bounds_say_what_would_be_right(write, line):
    path, key = write(line), line.partition(" =")[0]
    section, _, name = key.partition(".")
    value = tomllib.loads(line)[section][name]
    assert refusal(path).startswith(f"{path}: {key} is {value!r}; it must be {WRONG[line]}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nepoch = 3", "unknown key train.epoch; did you mean train.epochs?"),
        ("[train]\nlr = 3", "unknown key train.lr; [train] has epochs, learning_rate, "),
        ("[train]\nhidden = 3", "unknown key train.hidden; did you mean model.hidden?"),
        ("[trian]\nepochs = 3", "unknown section [trian]; did you mean train?"),
        ("[checkpoints_of_mine]\na = 3", "unknown section [checkpoints_of_mine]"),
        ("train = 3", "train is a section; write [train] and its keys below"),
        ("epochs = 3", "unknown section [epochs]; did you mean train.epochs?"),
        ("", 'graph.file is missing; name the graph: [graph] file = "graph.h5"'),
        ("[graph]\nfile g.h5\n", "not TOML: "),
        ("[a]\n[a]\nb = 1", "not TOML: "),
        ("\x89HDF\r\n\x1a\n\xff\xfe", "cannot be read as a job file"),
        (r'graph.file = "a\u0000b"', "graph.file is 'a\\x00b'; no name of a file has a zero byte"),
        (
            'graph.file = "g"\nrun.folder = "\\u0000"',
            "run.folder is '\\x00'; no name of a file has a zero byte",
        ),
    ],
)
def test_what_is_no_job_file_is_refused_by_name(write, text, message):
    path = write(text)
    line = refusal(path)
    assert line.startswith(f"{path}: {message}") and ("not TOML" not in message or "line" in line)


def test_overrides_missing_files_and_folders_are_named(write, tmp_path):
    assert "train.epochs is 'fifty'" in refusal(write(""), "train.epochs=fifty")
    absent = tmp_path / "absent.toml"
    assert refusal(absent) == f"{absent}: no such job file; 'mgg new GRAPH' writes one"
    assert refusal(tmp_path).startswith(f"{tmp_path}: cannot be read as a job file")


@pytest.mark.parametrize(
    "line",
    ["train.epochs = 1", "train.seed = 9223372036854775807", "model.dropout = 0", "model.dropout = 0.999"],
)
def test_bounds_themselves_are_allowed(line):
    config.from_tree(tomllib.loads(line), "job")


def test_dumps_gives_the_same_settings_back(write, tmp_path):
    text = '[graph]\nfile = "g\\"ü.h5"\n[train]\nlearning_rate = 0.1\nseed = 1234567890123456\n[plan]\nps = 3'
    settings = config.load(write(text))
    copy = tmp_path / "elsewhere" / "copy.toml"
    copy.parent.mkdir()
    copy.write_text(config.dumps(settings))
    assert config.load(copy) == settings


def test_sizes_are_read_as_they_are_shown(rng):
    for nbytes in (2.0 ** rng.uniform(0, 50, 200)).astype(int).tolist():
        assert sizes.parse(sizes.shown(nbytes)) == pytest.approx(nbytes, rel=0.05)
    assert [sizes.shown(n) for n in (100, 1536, 9 << 30)] == ["100 B", "1.5 KiB", "9.0 GiB"]
