"""Job files: defaults, overrides, and errors that name the key and what would be right."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from mgg_hpc import config
from mgg_hpc.errors import InputError

# Every key and its default, as the design of job files lists them.
DEFAULTS = {
    "graph": {"file": ""},
    "model": {
        "name": "gcn",
        "hidden": 16,
        "layers": 2,
        "dropout": 0.5,
        "jumping": "none",
        "residual": False,
        "norm": "none",
        "train_eps": False,
        "aggr": "mean",
        "heads": 8,
        "output_heads": 1,
        "attention": "additive",
        "attention_dropout": 0.0,
        "input": "features",
        "embedding": 64,
    },
    "train": {
        "epochs": 200,
        "learning_rate": 0.01,
        "weight_decay": 5e-4,
        "weight_decay_layers": "first",
        "normalize_features": "none",
        "patience": 0,
        "select": "best",
        "metric": "auto",
        "seed": 0,
        "dtype": "float32",
        "recompute": [],
    },
    "run": {
        "folder": "",
        "backend": "auto",
        "threads": 0,
        "features": "auto",
        "share_gpu": False,
        "cuda_graphs": True,
        "watchdog": "auto",
    },
    "plan": {"transfer": "auto", "ps": "auto", "dist": "auto", "wpb": "auto"},
}


@pytest.fixture
def write(tmp_path):
    """Write a job file and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "job.toml"
        path.write_text(text)
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


def test_what_is_true_or_false_is_said_so(write):
    line = refusal(write('[graph]\nfile = "g.h5"\n[run]\nshare_gpu = "yes"'))
    assert line.endswith("run.share_gpu is 'yes'; it must be true or false")


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        config.Settings().train.epochs = 3


def test_load_resolves_the_graph_beside_the_job_file_and_names_the_run_folder(write, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    settings = config.load(write('[graph]\nfile = "sub/g.h5"'))
    assert settings.graph.file == str(tmp_path / "sub" / "g.h5")
    assert settings.run.folder == "runs/job"


def test_load_keeps_an_absolute_graph_and_a_given_run_folder(write):
    settings = config.load(write('[graph]\nfile = "/data/g.h5"\n[run]\nfolder = "elsewhere"'))
    assert (settings.graph.file, settings.run.folder) == ("/data/g.h5", "elsewhere")


def test_values_of_the_file_replace_defaults(write):
    text = '[graph]\nfile = "g.h5"\n[model]\nhidden = 3\n[train]\nlearning_rate = 1\n[plan]\nps = 8\ndist = 0'
    settings = config.load(write(text))
    assert (settings.model.hidden, settings.plan.ps, settings.plan.dist) == (3, 8, 0)
    assert settings.train.learning_rate == 1.0
    assert isinstance(settings.train.learning_rate, float)  # whole numbers do where a number is asked for
    assert settings.model.layers == 2


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
    path = write("")
    settings = config.load(path, ("model.hidden=4", "graph.file=g.h5", "model.hidden=5"))
    assert settings.model.hidden == 5
    assert Path(settings.graph.file).name == "g.h5"


def test_overrides_keep_words_that_are_no_toml(write):
    assert config.load(write(""), ("graph.file=a b.h5",)).graph.file.endswith("/a b.h5")


@pytest.mark.parametrize("text", ["train.epochs", "epochs=3", ".epochs=3", "train.=3", "=3", ""])
def test_overrides_of_another_form_are_refused(write, text):
    assert refusal(write(""), text).startswith(f"--set {text}: write it as section.key=value")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nepoch = 3", "unknown key train.epoch; did you mean train.epochs?"),
        ("[train]\nlr = 3", "unknown key train.lr; [train] has epochs, learning_rate, "),
        ("[train]\nhidden = 3", "unknown key train.hidden; did you mean model.hidden?"),
        ("[trian]\nepochs = 3", "unknown section [trian]; did you mean train?"),
        ("[checkpoints_of_mine]\na = 3", "unknown section [checkpoints_of_mine]"),
        ("train = 3", "train is a section; write [train] and its keys below"),
        ("epochs = 3", "unknown section [epochs]"),
    ],
)
def test_unknown_names_give_the_nearest_known_one(write, text, message):
    path = write(text)
    assert refusal(path).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('train.epochs = "many"', "train.epochs is 'many'; it must be a whole number, at least 1"),
        ("train.epochs = 2.5", "train.epochs is 2.5; it must be a whole number, at least 1"),
        ("train.epochs = true", "train.epochs is True; it must be a whole number, at least 1"),
        ("train.epochs = 0", "train.epochs is 0; it must be a whole number, at least 1"),
        (
            "train.learning_rate = 0",
            "train.learning_rate is 0; it must be a number, more than 0 and at most 1000000.0",
        ),
        (
            "train.learning_rate = [1]",
            "train.learning_rate is [1]; it must be a number, more than 0 and at most 1000000.0",
        ),
        (
            "train.weight_decay = -1e-9",
            "train.weight_decay is -1e-09; it must be a number, at least 0 and at most 1000000.0",
        ),
        ("train.patience = -1", "train.patience is -1; it must be a whole number, at least 0"),
        (
            "train.seed = -1",
            "train.seed is -1; it must be a whole number, at least 0 and at most 9223372036854775807",
        ),
        (
            'train.select = "bset"',
            "train.select is 'bset'; it must be \"best\" or \"last\"; did you mean 'best'?",
        ),
        (
            'train.dtype = "float8"',
            'train.dtype is \'float8\'; it must be "float32" or "float64" or "bfloat16"',
        ),
        ("train.recompute = [1, 0]", 'train.recompute is [1, 0]; it must be a list of layers or "all"'),
        ('train.recompute = "none"', "train.recompute is 'none'; it must be a list of layers or \"all\""),
        ("model.dropout = 1", "model.dropout is 1; it must be a number, at least 0 and less than 1"),
        ("model.dropout = -0.1", "model.dropout is -0.1; it must be a number, at least 0 and less than 1"),
        (
            'model.name = "gcnn"',
            'model.name is \'gcnn\'; it must be "gcn" or "gin" or "sage" or "gat"; did you mean \'gcn\'?',
        ),
        ("model.heads = 0", "model.heads is 0; it must be a whole number, at least 1 and at most 1024"),
        (
            'model.attention = "dots"',
            "model.attention is 'dots'; it must be \"additive\" or \"dot\"; did you mean 'dot'?",
        ),
        ("model.hidden = 0", "model.hidden is 0; it must be a whole number, at least 1 and at most 1048576"),
        (
            "model.hidden = 1048577",
            "model.hidden is 1048577; it must be a whole number, at least 1 and at most",
        ),
        (
            "plan.dist = 2147483648",
            "plan.dist is 2147483648; it must be a whole number, at least 0 and at most",
        ),
        (
            'plan.transfer = ["halo", "post"]',
            'plan.transfer is [\'halo\', \'post\']; it must be "auto" or "direct" or "get" or "halo" or '
            'a list of "direct" or "get" or "halo", one for each layer',
        ),
        ("plan.transfer = []", "plan.transfer is []; it must be"),
        ("graph.file = 3", "graph.file is 3; it must be a text in quotes"),
        ("run.threads = -2", "run.threads is -2; it must be a whole number, at least 0 and at most 1024"),
        ('run.backend = "cdua"', 'run.backend is \'cdua\'; it must be "auto" or "serial" or "shm"'),
        (
            "plan.ps = 0",
            'plan.ps is 0; it must be a whole number, at least 1 and at most 1048576 or "auto"',
        ),
        (
            'plan.wpb = "atuo"',
            "plan.wpb is 'atuo'; it must be a whole number, at least 1 and at most 1048576 or \"auto\"; did you",
        ),
        (
            "train.learning_rate = nan",
            "train.learning_rate is nan; it must be a number, more than 0 and at most 1000000.0",
        ),
        (
            "train.learning_rate = inf",
            "train.learning_rate is inf; it must be a number, more than 0 and at most",
        ),
        (
            "train.weight_decay = nan",
            "train.weight_decay is nan; it must be a number, at least 0 and at most 1000000.0",
        ),
        ("model.dropout = nan", "model.dropout is nan; it must be a number, at least 0 and less than 1"),
    ],
)
def test_wrong_types_and_bounds_say_what_would_be_right(write, line, message):
    path = write(line)
    assert refusal(path).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    "line",
    ["train.epochs = 1", "train.seed = 9223372036854775807", "model.dropout = 0", "model.dropout = 0.999"],
)
def test_bounds_themselves_are_allowed(line):
    config.from_tree(tomllib.loads(line), "job")


def test_an_override_that_is_wrong_is_named_like_a_key(write):
    assert "train.epochs is 'fifty'" in refusal(write(""), "train.epochs=fifty")


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    assert refusal(tmp_path / "absent.toml").startswith(f"{tmp_path / 'absent.toml'}: no such job file")
    assert refusal(tmp_path).startswith(f"{tmp_path}: cannot be read as a job file")


@pytest.mark.parametrize("content", [b"[graph]\nfile g.h5\n", b"epochs : 3", b"[a]\n[a]\nb = 1"])
def test_what_is_not_toml_is_refused_with_its_line(tmp_path, content):
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    line = refusal(path)
    assert line.startswith(f"{path}: not TOML: ")
    assert "line" in line


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "job.toml"
    path.write_bytes(b"\x89HDF\r\n\x1a\n\xff\xfe")
    assert refusal(path).startswith(f"{path}: cannot be read as a job file")


def test_a_job_without_a_graph_says_how_to_name_one(write):
    path = write("")
    assert refusal(path) == f'{path}: graph.file is missing; name the graph: [graph] file = "graph.h5"'


def test_dumps_gives_the_same_settings_back(write, tmp_path):
    text = (
        '[graph]\nfile = "g\\"ü.h5"\n[train]\nlearning_rate = 0.1\nseed = 12345678901234567\n[plan]\nps = 3'
    )
    settings = config.load(write(text))
    copy = tmp_path / "elsewhere" / "copy.toml"
    copy.parent.mkdir()
    copy.write_text(config.dumps(settings))
    assert config.load(copy) == settings


def test_the_demos_job_file_is_valid():
    settings = config.load(Path(__file__).parents[1] / "inputs" / "digits.toml")
    assert (settings.model.hidden, settings.run.folder) == (64, "runs/digits")
