"""Job files: TOML to frozen, validated settings. Every default is defined here and nowhere else."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from . import sizes
from .errors import InputError, did_you_mean

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**20)]  # beyond any use, and safe in any arithmetic
Count = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Knob = Positive | Literal["auto"]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**50, title="a number of bytes")]
Size = Bytes | Annotated[str, msgspec.Meta(pattern=sizes.PATTERN, title='a text such as "2G"')]
AutoSize = (
    Bytes
    | Annotated[str, msgspec.Meta(pattern=f"^auto$|{sizes.PATTERN}", title='a text such as "2G", or "auto"')]
)
Width = Annotated[int, msgspec.Meta(ge=1, le=2**20, title="numbers of columns")]
Category = Annotated[int, msgspec.Meta(ge=1, le=26, title="columns of categories, 1 to 26")]
Named = str | dict[str, Any]  # a name, or { name = ..., and arguments }
ClassWeight = Annotated[float, msgspec.Meta(ge=0, le=1e6, title="weights, one for each class")]
Fanout = Annotated[
    int, msgspec.Meta(ge=-1, le=2**20, title="numbers of edges, one for each layer, -1 for all")
]


class GraphSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[graph]"""

    file: str = ""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[model]"""

    name: Literal["gcn", "gin", "sage", "gat"] = "gcn"
    hidden: Positive = 16  # columns of a hidden layer; gat: of each head
    layers: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2  # at most as many as there are random streams
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5
    jumping: Literal["none", "cat", "max"] = "none"  # a linear map of all layers' outputs gives the classes
    residual: bool = False  # whether a layer's input is added to its output, where they are as wide
    norm: Literal["none", "layer", "batch"] = "none"  # normalisation between layers; gin: within them too
    train_eps: bool = False  # only gin
    aggr: Literal["mean", "sum", "max"] = "mean"  # only sage
    heads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8  # only gat, as the next three
    output_heads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1  # of the last layer; they are averaged
    attention: Literal["additive", "dot"] = "additive"
    attention_dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    edge_data: str = ""  # only gat: data of edges that scores take, by name; "weight": the weights
    input: Literal["features", "learned", "degree"] = "features"
    embedding: Positive = 64  # columns of a learned input
    # A class of the user's in place of a named model, which gets the arguments; of the other keys only input counts.
    module: Annotated[
        str, msgspec.Meta(pattern=r"^$|^.+:\w+$", title='a text such as "my.py:Net" or "package.module:Net"')
    ] = ""
    arguments: dict[str, Any] = {}


class TrainSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[train]"""

    epochs: Positive = 200
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 0.01
    optimizer: Named = "Adam"  # of torch.optim
    scheduler: Named = ""  # of torch.optim.lr_scheduler; "": none
    clip_norm: Rate = 0.0  # largest norm of all gradients together; 0: any
    class_weights: list[ClassWeight] = []  # of the training loss
    weight_decay: Rate = 5e-4
    weight_decay_layers: Literal["first", "all"] = "first"
    normalize_features: Literal["none", "row"] = "none"
    patience: Count = 0
    select: Literal["best", "last"] = "best"
    metric: Literal["auto", "accuracy", "roc_auc", "f1", "f1_top"] = "auto"
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"  # type of rows
    recompute: list[Positive] | Literal["all"] = []  # layers that the backward computes again
    # A step an epoch, over the whole graph, or steps over sampled batches of its rows. The next keys are of "sampled".
    mode: Literal["full", "sampled"] = "full"
    fanouts: list[Fanout] = []  # edges to draw of each row, the last layer's first
    batch_size: Positive = 1024  # training rows of a batch, on all ranks together
    prefetch: Count = 2  # batches that are sampled ahead
    # What prepares batches: threads of the CPU, the device, both by a plan, or what is fastest by measured times.
    prepare: Literal["cpu", "device", "hybrid", "auto"] = "cpu"
    # Batches that wait on each side, at most; not with "cpu".
    buffer: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 10

    @property
    def plain_adam(self) -> bool:
        """Whether the optimiser is Adam with its defaults, at a constant rate."""
        return self.optimizer in ("Adam", {"name": "Adam"}) and not self.scheduler


class RunSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[run]"""

    folder: str = ""
    backend: Literal["auto", "serial", "shm", "shmem", "cuda"] = "auto"
    threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    features: Literal["auto", "device", "host"] = "auto"  # where dense features are stored, with a GPU
    share_gpu: bool = False  # whether several ranks may drive one GPU
    cuda_graphs: bool = True  # whether epochs are recorded and replayed where that is possible
    resume: Literal["never", "auto"] = (
        "never"  # auto: go on with the latest run of the folder, if it has not finished
    )
    watchdog: Count | Literal["auto"] = "auto"  # seconds without progress after which the job ends; 0: never


class FeaturesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[features]: bytes of memory for the rows of features that batches read most often; others stay in the file."""

    near: Size = 0  # copies on each rank: of a GPU's memory, with a GPU; and there as many of edges
    peers: AutoSize = 0  # on each rank, which all ranks read; auto: near is divided between both
    host: Size = 0  # of each node, which its ranks share
    score: Literal["visits", "pagerank", "degree", "none"] = "visits"  # none: rows as the file has them


class PlanSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[plan]"""

    transfer: (
        Literal["auto", "direct", "get", "halo"]
        | Annotated[list[Literal["direct", "get", "halo"]], msgspec.Meta(min_length=1)]
    ) = "auto"
    ps: Knob = "auto"
    dist: Count | Literal["auto"] = "auto"
    wpb: Knob = "auto"
    far_ps: Knob = "auto"  # ps of rows that no pointer reaches, with "get" between GPUs; auto: ps
    tune: Literal["auto", "full", "never"] = (
        "auto"  # search for ps, dist and wpb in the first epochs; auto: as far as no bit of the results changes
    )
    # Keep plans beside the graph for the next run; auto: of graphs with millions of edges for each rank.
    cache: Literal["auto", "always", "never"] = "auto"
    memory: Size = 0  # bytes of each rank that a graph is streamed through; 0: rows stay in memory
    scratch: str = ""  # folder of the rows of a graph that is streamed; "": they stay in the host's memory


class DlrmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[dlrm]: a recommendation model on clicks, in place of a graph; of [train] only epochs and seed are read."""

    data: str = ""  # file of clicks
    columns: list[Category] = []  # categories, counted from 1; []: all
    rows: Annotated[int, msgspec.Meta(ge=2, le=2**40)] = 100_000  # of each table; words are hashed by modulo
    dim: Positive = 16  # columns of the tables, and of the bottom MLP's output
    # Columns of the MLPs' hidden layers.
    bottom: list[Width] = msgspec.field(default_factory=lambda: [512, 256])
    top: list[Width] = msgspec.field(default_factory=lambda: [512, 256])
    optimizer: Literal["sgd", "adagrad", "rowwise_adagrad"] = "rowwise_adagrad"
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 0.01
    batch_size: Positive = 2048  # rows of a batch, on all ranks together
    memory: Size = (
        0  # bytes of each rank for rows of the tables, the others are in a file; 0: all rows are in memory
    )
    scratch: str = ""  # folder of the file; "": the system's temporary one
    test: Annotated[float, msgspec.Meta(ge=0, lt=1)] | Literal["day"] = (
        0.1  # share of the last rows, or last log
    )


class CheckpointSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[checkpoint]"""

    every_epochs: Count = 0  # 0: not by epochs
    every_minutes: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 10.0  # 0: not by time
    keep: Positive = 2  # the newest ones


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole job."""

    graph: GraphSettings = GraphSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    run: RunSettings = RunSettings()
    features: FeaturesSettings = FeaturesSettings()
    plan: PlanSettings = PlanSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    dlrm: DlrmSettings = DlrmSettings()


# Keys that do something only if another key has a value.
NEEDS = {
    "model.train_eps": ("model.name", "gin"),
    "model.aggr": ("model.name", "sage"),
    **dict.fromkeys(
        [f"model.{key}" for key in ("heads", "output_heads", "attention", "attention_dropout", "edge_data")],
        ("model.name", "gat"),
    ),
    "model.embedding": ("model.input", "learned"),
    **dict.fromkeys(
        [
            *(f"train.{key}" for key in ("fanouts", "batch_size", "prefetch", "prepare", "buffer")),
            *(f"features.{key}" for key in ("near", "peers", "host", "score")),
        ],
        ("train.mode", "sampled"),
    ),
}
# Keys that do not go with model.module: parts of the named models, and what needs their layers.
WITH_MODULE = [
    *(
        f"model.{key}"
        for key in ModelSettings.__struct_fields__[: -len(("input", "embedding", "module", "arguments"))]
    ),
    *(f"train.{key}" for key in ("weight_decay_layers", "recompute", "mode")),
    *("plan.tune", "plan.memory", "plan.scratch", "run.features"),
]


# Keys that jobs of clicks read, beside [dlrm] and [checkpoint]; graph.file has a message of its own.
OF_CLICKS = {"graph.file", "train.epochs", "train.seed"}
OF_CLICKS |= {f"run.{key}" for key in ("folder", "backend", "threads", "resume", "watchdog")}


def load(
    path: Path, overrides: tuple[str, ...] = (), *, of_run: bool = False, clicks: bool = False
) -> Settings:
    """Read a job file and apply ``section.key=value`` overrides.

    ``graph.file`` becomes absolute, relative to the job file; ``run.folder`` stays relative to the current folder
    and is ``runs/<name of the job file>`` if not given. of_run: the file is a run's, which was checked when the run
    began. clicks: the job may have dlrm.data in place of a graph. Raises InputError with file, key and valid values.
    """
    try:
        tree = _tree(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such job file; 'mgg new GRAPH' writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a job file ({error})") from error
    for override in overrides:
        _override(tree, override)
    settings = from_tree(tree, str(path))
    if not of_run:
        _check_needs(settings, str(path))
    data = settings.dlrm.data
    if data and settings.graph.file:
        raise InputError(
            f"{path}: has graph.file and dlrm.data, and trains on one of them; leave the other out"
        )
    if data and not clicks:
        raise InputError(f"{path}: trains on clicks (dlrm.data), and this command is for jobs of graphs")
    if data:
        _check_dlrm(settings.dlrm, str(path))
    if not data and not settings.graph.file:
        raise InputError(f'{path}: graph.file is missing; name the graph: [graph] file = "graph.h5"')
    for key, name in (
        ("graph.file", settings.graph.file),
        ("dlrm.data", data),
        ("model.module", settings.model.module),
        ("run.folder", settings.run.folder),
    ):
        if "\0" in name:
            raise InputError(f"{path}: {key} is {name!r}; no name of a file has a zero byte")
    folder = settings.run.folder or f"runs/{path.stem}"
    return msgspec.structs.replace(
        settings,
        graph=msgspec.structs.replace(settings.graph, file=_beside(path, settings.graph.file)),
        model=msgspec.structs.replace(settings.model, module=_module(path, settings.model.module)),
        dlrm=msgspec.structs.replace(settings.dlrm, data=_beside(path, data)),
        run=msgspec.structs.replace(settings.run, folder=folder),
    )


def of_model(graph: Path, module: str, arguments: str, overrides: tuple[str, ...] = ()) -> Settings:
    """Return the settings that evaluate a model on a graph, for `mgg predict`. Raises InputError.

    module: as model.module, relative to the current folder. arguments: of the class, a table in TOML.
    """
    tree: dict[str, Any] = {
        "graph": {"file": str(graph.resolve())},
        "model": {"module": _module(Path(), module)},
    }
    for override in (f"model.arguments={arguments}", *overrides):
        _override(tree, override)
    return from_tree(tree, "mgg predict")


def _module(job: Path, name: str) -> str:
    """Return model.module with the absolute path of its file; the name of an importable module as it is."""
    where, colon, kind = name.rpartition(":")
    return f"{_beside(job, where)}:{kind}" if where.endswith(".py") else f"{where}{colon}{kind}"


def _beside(job: Path, name: str) -> str:
    """Return the absolute path of a file that a job file names, "" for none."""
    return str((job.parent / name).resolve()) if name else ""


def _check_dlrm(dlrm: DlrmSettings, where: str) -> None:
    """Raise InputError for keys of [dlrm] that do not go together."""
    if len(set(dlrm.columns)) < len(dlrm.columns):
        raise InputError(f"{where}: dlrm.columns are {dlrm.columns}; expected distinct ones of 1 to 26")
    if dlrm.scratch and not dlrm.memory:
        raise InputError(
            f"{where}: dlrm.scratch is for tables larger than memory: set dlrm.memory too, or leave it out"
        )


def _check_needs(settings: Settings, where: str) -> None:
    """Raise InputError for a key that does nothing, since another one has not the value that it needs."""
    defaults, clicks = msgspec.to_builtins(Settings()), bool(settings.dlrm.data)
    for section, keys in msgspec.to_builtins(settings).items():
        for key, value in keys.items():
            name = f"{section}.{key}"
            of_clicks = section == "dlrm" or (clicks and (section == "checkpoint" or name in OF_CLICKS))
            if value != defaults[section][key] and of_clicks != clicks and (clicks or section == "dlrm"):
                kind, other = ("graphs", "it has") if clicks else ("clicks", "it lacks")
                raise InputError(
                    f"{where}: {name} is {value!r}, which is for jobs of {kind}; {other} dlrm.data"
                )
    if clicks and settings.run.backend == "shmem":
        raise InputError(f"{where}: run.backend: shmem is for jobs of graphs; with auto rows cross by MPI")
    if settings.run.features != "auto" and settings.features != FeaturesSettings():
        raise InputError(
            f'{where}: run.features is "{settings.run.features}", and [features] has the tiers of the features; leave '
            "one of them out"
        )
    for key, (other, needed) in NEEDS.items():
        value = attrgetter(key)
        if value(settings) != value(Settings()) and (found := attrgetter(other)(settings)) != needed:
            raise InputError(
                f'{where}: {key} is {value(settings)!r}, which is for {other} = "{needed}"; it is "{found}"'
            )
    prepare, values = settings.train.prepare, {"prefetch": '"cpu"', "buffer": '"device", "hybrid" or "auto"'}
    key = "buffer" if prepare == "cpu" else "prefetch"
    if (found := getattr(settings.train, key)) != getattr(Settings().train, key):
        raise InputError(
            f'{where}: train.{key} is {found}, which is for train.prepare = {values[key]}; it is "{prepare}"'
        )
    if settings.model.arguments and not settings.model.module:
        raise InputError(f"{where}: model.arguments are for a class of your own, which model.module names")
    for key in WITH_MODULE if settings.model.module else ():
        value = attrgetter(key)
        if value(settings) != value(Settings()):
            raise InputError(
                f"{where}: {key} is {value(settings)!r}, which does not go with model.module; leave one of them out"
            )


def parse(text: str, where: str) -> Settings:
    """Return the settings of a job file's text; ``where`` begins the messages. Raises InputError."""
    return from_tree(_tree(text, where), where)


def _tree(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where}: not TOML: {error}") from error


def from_tree(tree: dict[str, Any], where: str) -> Settings:
    """Validate a parsed job file; ``where`` begins the messages. Raises InputError."""
    _check_names(tree, where)
    try:
        settings = msgspec.convert(tree, Settings)
    except msgspec.ValidationError as error:
        key = str(error).partition(" - at `$.")[2].rstrip("`").partition("[")[0]
        section, _, name = key.partition(".")
        value = tree[section][name]
        ask = did_you_mean(value, _words(_hint(key))) if isinstance(value, str) else ""
        raise InputError(f"{where}: {key} is {value!r}; it must be {_expected(_hint(key))}{ask}") from error
    return settings


def with_plan(settings: Settings, transfers: Sequence[Any], knobs: Mapping[str, int]) -> Settings:
    """Return the job with plan.transfer as it was chosen for each layer, and some knobs of [plan]."""
    transfer = transfers[0] if len(set(transfers)) == 1 else list(transfers)
    plan = msgspec.structs.replace(settings.plan, transfer=transfer, **knobs)
    return msgspec.structs.replace(settings, plan=plan)


def dumps(settings: Settings) -> str:
    """Return the text of a job file with exactly these settings."""
    return tomli_w.dumps(msgspec.to_builtins(settings))


def _hint(key: str) -> Any:
    """Return the declared type of ``section.name``, or None."""
    section, _, name = key.partition(".")
    kind = _section_types().get(section)
    return get_type_hints(kind, include_extras=True).get(name) if kind and name else None


def _expected(hint: Any) -> str:
    """Describe a declared type for users who write job files."""
    if get_origin(hint) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(hint))
    if get_origin(hint) is Annotated:
        kind, meta = get_args(hint)
        limits = {"at least": meta.ge, "more than": meta.gt, "at most": meta.le, "less than": meta.lt}
        shown = [f"{word} {limit}" for word, limit in limits.items() if limit is not None]
        what = meta.title or _expected(kind)
        return ", ".join([what, *([" and ".join(shown)] if shown else [])])
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        named = (
            f"{_expected(item)}, one for each layer"
            if get_origin(item) is Literal
            else get_args(item)[1].title
        )
        return f"a list of {named or 'layers'}"
    if get_origin(hint) is dict:
        return "a table, { name = value }"
    if get_args(hint):
        return " or ".join(_expected(part) for part in get_args(hint))
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
    return words.get(hint, str(hint))


def _words(hint: Any) -> list[str]:
    """Return the strings that are valid for a declared type."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return [word for part in get_args(hint) for word in _words(part)]


def _section_types() -> dict[str, type]:
    return {name: hint for name, hint in get_type_hints(Settings).items() if isinstance(hint, type)}


def _key_names() -> dict[str, list[str]]:
    """Return the keys of each section."""
    return {name: list(kind.__struct_fields__) for name, kind in _section_types().items()}  # type: ignore[attr-defined]


def _check_names(tree: dict[str, Any], where: str) -> None:
    """Raise InputError, with the nearest known name, for an unknown section or key."""
    sections = _key_names()
    for section, content in tree.items():
        if section not in sections:
            near = [f"{each}.{section}" for each, keys in sections.items() if section in keys]
            near += difflib.get_close_matches(section, sections, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sections)}"
            raise InputError(f"{where}: unknown section [{section}]; {hint}")
        if not isinstance(content, dict):
            raise InputError(f"{where}: {section} is a section; write [{section}] and its keys below")
        for name in content:
            if name not in sections[section]:
                # The key of this section with the nearest spelling, else the same key of another section.
                near = [f"{section}.{key}" for key in difflib.get_close_matches(name, sections[section], 1)]
                near += [f"{other}.{name}" for other, keys in sections.items() if name in keys]
                known = f"[{section}] has {', '.join(sections[section])}"
                hint = f"did you mean {near[0]}?" if near else known
                raise InputError(f"{where}: unknown key {section}.{name}; {hint}")


def _override(tree: dict[str, Any], text: str) -> None:
    """Apply ``section.key=value`` to the tree; the value is TOML, or a bare word for a string."""
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot or not section or not name:
        holders = [f"{each}.{section}" for each, keys in _key_names().items() if section in keys]
        example = f"{holders[0]}={value or '...'}" if holders and not dot else "train.epochs=50"
        raise InputError(f"--set {text}: write it as section.key=value, for example --set {example}")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    _check_names({section: {name: parsed}}, f"--set {text}")
    content = tree.setdefault(section, {})
    if isinstance(content, dict):
        content[name] = parsed
