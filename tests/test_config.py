"""Job files: defaults, overrides, and errors that name the key and what would be right."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from mgg_hpc import config
from mgg_hpc.errors import InputError

# Every key and its default, as the design of job files lists them.
DEFAULTS = """
[graph] file=''
[model] name='gcn' hidden=16 layers=2 dropout=0.5 jumping='none' residual=False norm='none' train_eps=False
aggr='mean' heads=8 output_heads=1 attention='additive' attention_dropout=0.0 input='features' embedding=64
[train] epochs=200 learning_rate=0.01 weight_decay=0.0005 weight_decay_layers='first' normalize_features='none'
patience=0 select='best' metric='auto' seed=0 dtype='float32' recompute=[]
[run] folder='' backend='auto' threads=0 features='auto' share_gpu=False cuda_graphs=True watchdog='auto'
[plan] transfer='auto' ps='auto' dist='auto' wpb='auto'
"""


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
    tree = msgspec.to_builtins(config.from_tree({}, "job"))
    words = [
        word
        for name, keys in tree.items()
        for word in (f"[{name}]", *(f"{k}={v!r}" for k, v in keys.items()))
    ]
    assert words == DEFAULTS.split()


def test_the_graph_lies_beside_the_job_file_and_the_run_folder_has_its_name(write, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    settings = config.load(write('[graph]\nfile = "sub/g.h5"'))
    assert (settings.graph.file, settings.run.folder) == (str(tmp_path / "sub" / "g.h5"), "runs/job")
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


def test_the_last_of_two_overrides_counts_and_words_need_no_quotes(write):
    settings = config.load(write(""), ("model.hidden=4", "graph.file=a b.h5", "model.hidden=5"))
    assert settings.model.hidden == 5
    assert Path(settings.graph.file).name == "a b.h5"


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


A_COUNT = "a whole number, at least 1"
A_SIZE = "a whole number, at least 1 and at most 1048576"
A_RATE = "a number, more than 0 and at most 1000000.0"
A_DECAY = "a number, at least 0 and at most 1000000.0"
A_SHARE = "a number, at least 0 and less than 1"


@pytest.mark.parametrize(
    ("key", "values", "right"),
    [
        ("run.share_gpu", ['"yes"'], "true or false"),
        ("train.epochs", ['"many"', "2.5", "true", "0", "-1"], A_COUNT),
        ("train.patience", ["-1"], "a whole number, at least 0"),
        ("train.seed", ["-1"], "a whole number, at least 0 and at most 9223372036854775807"),
        ("train.learning_rate", ["0", "[1]", "nan", "inf"], A_RATE),
        ("train.weight_decay", ["-1e-9", "nan"], A_DECAY),
        ("train.select", ['"bset"'], '"best" or "last"; did you mean \'best\'?'),
        ("train.dtype", ['"float8"'], '"float32" or "float64" or "bfloat16"'),
        ("train.recompute", ["[1, 0]", '"none"'], 'a list of layers or "all"'),
        ("model.dropout", ["1", "-0.1", "nan"], A_SHARE),
        ("model.name", ['"gcnn"'], '"gcn" or "gin" or "sage" or "gat"; did you mean \'gcn\'?'),
        ("model.heads", ["0"], "a whole number, at least 1 and at most 1024"),
        ("model.attention", ['"dots"'], '"additive" or "dot"; did you mean \'dot\'?'),
        ("model.hidden", ["0", "1048577"], A_SIZE),
        ("graph.file", ["3"], "a text in quotes"),
        ("run.threads", ["-2"], "a whole number, at least 0 and at most 1024"),
        ("run.backend", ['"cdua"'], '"auto" or "serial" or "shm"'),
        ("plan.ps", ["0"], f'{A_SIZE} or "auto"'),
        ("plan.wpb", ['"atuo"'], f"{A_SIZE} or \"auto\"; did you mean 'auto'?"),
        ("plan.dist", ["2147483648"], "a whole number, at least 0 and at most"),
        (
            "plan.transfer",
            ['["halo", "post"]', "[]"],
            '"auto" or "direct" or "get" or "halo" or a list of "direct" or "get" or "halo", one for each layer',
        ),
    ],
)
def test_wrong_types_and_bounds_say_what_would_be_right(write, key, values, right):
    for value in values:
        line = f"{key} = {value}"
        path, read = write(line), tomllib.loads(f"value = {value}")["value"]
        assert refusal(path).startswith(f"{path}: {key} is {read!r}; it must be {right}"), line


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[graph]\nfile g.h5\n", "not TOML: .*line"),
        (b"epochs : 3", "not TOML: .*line"),
        (b"[a]\n[a]\nb = 1", "not TOML: .*line"),
        (b"\x89HDF\r\n\x1a\n\xff\xfe", "cannot be read as a job file"),
    ],
)
def test_what_is_not_toml_is_refused(tmp_path, content, said):
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    assert re.match(f"{path}: {said}", refusal(path))


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
