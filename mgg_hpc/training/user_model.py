"""A model of the user's own: `model.module` names its class, which is imported, made, and converted to the job's graph.

`UserModel` stands in a job where `GNN` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch.nn import Module

from ..config import Settings
from ..errors import InputError, did_you_mean
from ..nn.convert.convert import convert, takes_data
from ..nn.graph.dist_graph import DistGraph
from ..nn.layers.random import DRAWS, Draws, Dropout
from ..runtime.exit_code import FailedElsewhere
from .screen import print_line

DRAWS_A_STEP = 1 << 10  # dropouts of a step, which count on from its number times this
GIVEN = ("x", "edge_index")  # arguments of forward that each graph has


class UserModel:
    """A module of the user's, called as `GNN` is: with input rows and a graph, for this rank's logits [n, C].

    Other attributes are those of the module.

    Attributes:
        net: the module itself.
        name: as in model.module, without folders.
        digest: of the source that it was read from.
        edge_names: names of the data of edges that forward may take; None for all.
        unmeasured: why the memory of a step could not be measured.
        draws: its `begin` sets torch's generator and the dropouts of a step, which thus need no state.
    """

    by_edge, edge_dim, state, columns, unmeasured = False, 0, 0, 1, ""

    def __init__(self, net: Module, name: str, digest: str, seed: int) -> None:
        self.net, self.name, self.digest, self.seed = net, name, digest, seed
        self.takes = inspect.signature(net.forward).parameters
        self.of_data = takes_data(self.takes)
        self.draws = _Steps(seed)
        net.__dict__[DRAWS] = Dropout(0.5, 0, self.draws.inside)
        self._graph: DistGraph | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    def __deepcopy__(self, memo: Any) -> UserModel:
        return UserModel(deepcopy(self.net, memo), self.name, self.digest, self.seed)

    @property
    def edge_names(self) -> set[str] | None:
        if self.of_data:
            return None
        return {each for name in self.takes for each in (name, name.removeprefix("edge_"))} - set(GIVEN)

    def __call__(self, x: Tensor, graph: DistGraph) -> Tensor:
        """Return the logits of this rank's rows. Collective. Raises InputError for another result."""
        if graph is not self._graph:
            self._say_of_weights(graph)
            self._converted, self._given = convert(self.net, graph), self._arguments(graph)
            features, classes = x.shape[1], graph.num_classes
            with _errors(
                f"model.module: forward of {self.name} fails for {features} features, {classes} classes"
            ):
                out = self._forward(x)
            self._graph = graph
        else:
            out = self._forward(x)
        shape, classes = tuple(getattr(out, "shape", ())), graph.num_classes
        if len(shape) != 2 or shape[0] != graph.rows or (classes and shape[1] != classes):
            what = f"a tensor {list(shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise InputError(
                f"model.module: forward of {self.name} returns {what} for {graph.rows} rows; expected logits "
                f"[rows, {classes or 'classes'}], one for each class of the graph"
            )
        return out

    def _say_of_weights(self, graph: DistGraph) -> None:
        """Print, once, that a graph's weights are not used."""
        name = f"{self.name}, weights"
        if graph.rank == 0 and not self.of_data and _weights(graph) and "edge_weight" not in self.takes:
            if name not in _told:
                print_line(
                    f"model.module: {self.name} takes no edge_weight, so the graph's weights are not used"
                )
            _told.add(name)

    def _forward(self, x: Tensor) -> Any:
        if self.of_data:
            from torch_geometric.data import Data

            return self._converted(Data(x=x, **self._given))
        return self._converted(**({"x": x} if "x" in self.takes else {}), **self._given)

    @property
    def convolutions(self) -> list[Any]:
        return [self]

    @property
    def widths(self) -> list[int]:
        return []

    def widest(self, sparse: bool) -> int:
        """Return the columns of the widest exchanged rows, as `footprint.measure` sets them; 1 before that."""
        return self.columns

    @property
    def crossing(self) -> int:
        """Columns of the widest rows that ranks exchanged in the last call."""
        return max((columns for *_, columns in self._converted._conversion.last.exchanges), default=1)

    def layers(self, x: Tensor, graph: DistGraph) -> list[Tensor]:
        """Return the logits as the output of a single layer. Collective."""
        return [self(x, graph)]

    def _arguments(self, graph: DistGraph) -> dict[str, Tensor]:
        """Return the arguments of forward but x by name. Raises InputError for what the graph lacks."""
        if self.of_data:
            found = {f"edge_{name}": _data(graph, name) for name in graph.part.edge_data}
            return found | {"edge_index": graph.edge_index()} | _weights(graph)
        found = {}
        for name, argument in self.takes.items():
            required = argument.default is argument.empty
            if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) or name == "x":
                continue
            there = _weights(graph) if name == "edge_weight" else {}
            if name == "edge_index":
                there = {name: graph.edge_index()}
            elif not there and (required or name.startswith("edge_")):
                stored = [each for each in (name, name.removeprefix("edge_")) if each in graph.part.edge_data]
                there = {name: _data(graph, stored[0])} if stored else {}
            if required and not there:
                has = ["x", "edge_index", *_weights(graph), *graph.part.edge_data]
                raise InputError(
                    f"model.module: forward of {self.name} takes {name}, which {graph.part.path} lacks; it has "
                    f"{', '.join(has)}"
                )
            found |= there
        return found


class _Steps(Draws):
    """Draws whose `begin` also sets torch's generator for a step, so that each step can be repeated.

    inside: draws of the model's dropouts, whose numbers count up from DRAWS_A_STEP times the step's number.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.inside = Draws(seed)

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self.inside.begin(epoch * DRAWS_A_STEP)
        torch.manual_seed(xxhash.xxh32_intdigest(f"{self.seed} {epoch}".encode()))


def _weights(graph: DistGraph) -> dict[str, Tensor]:
    return {} if graph.edge_weight() is None else {"edge_weight": _data(graph, "weight")}


def _data(graph: DistGraph, name: str) -> Tensor:
    values = graph.edge_data(name)
    return values.to(graph.dtype) if values.is_floating_point() else values


_told = set[str]()  # modules of which the user was told


def load(settings: Settings, say: Callable[[str], None]) -> UserModel:
    """Import the class of model.module and make it with model.arguments. Raises InputError.

    say: called with a line to print before the user's code runs.
    """
    where, _, name = settings.model.module.rpartition(":")
    if settings.train.dtype not in ("float32", "float64"):
        raise InputError(
            f'train.dtype is "{settings.train.dtype}"; with model.module it is "float32" or "float64"'
        )
    if where not in _told:
        say(f"model.module: {where} is imported, and its code runs")
        _told.add(where)
    with _errors(f"model.module: {where} cannot be imported"):
        module = _file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Module)):
        known = [
            each
            for each, found in vars(module).items()
            if isinstance(found, type) and issubclass(found, Module)
        ]
        own = [each for each in known if getattr(module, each).__module__ == module.__name__] or known
        wrong = f"has no {name}" if kind is None else f"has {name}, which is no class of a torch.nn.Module"
        has = f"; it has {', '.join(own[:8])}" if own else "; it has no such class"
        raise InputError(f"model.module: {where} {wrong}{did_you_mean(name, own) or has}")
    try:
        taken = inspect.signature(kind)
        taken.bind(**settings.model.arguments)
    except TypeError as error:
        raise InputError(f"model.arguments: {error}; {name} takes {taken}") from error
    torch.manual_seed(settings.train.seed)  # the same values on all ranks
    with _errors(f"model.arguments: {name} cannot be made of them"):
        net = kind(**settings.model.arguments)
    for path, each in (*net.named_parameters(), *net.named_buffers()):
        if torch.nn.parameter.is_lazy(each):
            raise InputError(
                f"model.arguments: {path} of {name} has no shape yet; give its number of input channels, not -1"
            )
    other = next((path for path, each in net.state_dict().items() if not isinstance(each, Tensor)), "")
    if other or not any(each.requires_grad for each in net.parameters()):
        wrong = f"keeps {other}, which is no tensor" if other else "has no parameters that are trained"
        raise InputError(f"model.module: {name} {wrong}; checkpoints and optimisers need tensors")
    source = inspect.getsourcefile(kind)
    digest = xxhash.xxh3_64_hexdigest(Path(source).read_bytes()) if source else ""
    shown = f"{Path(where).name if where.endswith('.py') else where}:{name}"
    return UserModel(net, shown, digest, settings.train.seed)


def _file(path: Path) -> ModuleType:
    """Import a Python file, which may import other files of its folder."""
    if not path.is_file():
        raise InputError(f"model.module: there is no file {path}; it is found relative to the job file")
    spec = importlib.util.spec_from_file_location(f"mgg_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Turn an error of the user's code into InputError, with its innermost line outside of libraries."""
    try:
        yield
    except (InputError, FailedElsewhere, torch.OutOfMemoryError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        libraries = {"torch", "torch_geometric", "mgg_hpc"}
        own = [each for each in frames if libraries.isdisjoint(Path(each.filename).parts)]
        last = (own or frames)[-1]
        at = (
            ""
            if last.filename.startswith("<frozen")
            else f" ({Path(last.filename).name}, line {last.lineno})"
        )
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{what}: {text[:400]}{at}") from error
