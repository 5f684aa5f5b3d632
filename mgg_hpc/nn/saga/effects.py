"""Side effects of ApplyEdge while its operations are recorded.

Changes of the layer are undone if the recording fails, since the code then runs again. Random draws, and
changes of tensors that were read before, are refused.
"""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from logging import Logger
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..graph.view import GraphView

IN_PLACE = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()  # noqa: SIM905
CHANGES = {"setitem", *(f"i{name}" for name in IN_PLACE)}
DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal"),
    *("multinomial", "poisson", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "cauchy_"),
    *("bernoulli", "geometric_", "log_normal_"),
}
ATOMS = {int, float, bool, str, bytes, type(None), Tensor, torch.nn.Parameter, ModuleType}
UNSEEN = {*vars(torch.nn.Module())} - {"_parameters", "_buffers", "_modules"} | {"_programs", "_kept", "rows"}
OUTSIDE = (Tensor, GraphView, Logger)  # types of objects that are not part of a layer's own state
# Most objects of a layer, elements of a container, and bytes of an array whose changes are undone.
MOST_HELD, MOST_BYTES = 10_000, 1 << 20


class DrawsError(ValueError):
    """ApplyEdge draws random numbers."""

    def __init__(self) -> None:
        super().__init__(
            "apply_edge draws random numbers, which would differ between ranks and passes; draw them for each vertex "
            "before the layer, or in apply_vertex, with mgg.nn.Dropout for dropout"
        )


class DependsError(ValueError):
    """A message depends on other edges, of which each rank has only a part."""

    def __init__(self) -> None:
        super().__init__(
            "a message of apply_edge depends on other edges, of which each rank has its own alone (a mean or softmax "
            "over edges, or torch's BatchNorm); compute it for each vertex, with mgg.nn.BatchNorm for BatchNorm"
        )


class Effects:
    """Records the changes that a run makes to a layer's attributes, containers, objects and tensors.

    Construction copies the present state of ``layer``, except its tensors, which are copied before they change.
    """

    def __init__(self, layer: torch.nn.Module) -> None:
        self._held: list[tuple[Any, Any]] = []  # objects, and copies from before the run
        self._drawn: list[tuple[Any, Any]] = []  # generators, and their states from before the run
        self._undo: list[Callable[[], Any]] = []  # functions that restore tensors to their former values
        self._read: list[tuple[Tensor, int]] = []  # tensors that operations read, and their versions then
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._open: set[int] = set()  # storages that may change without a change of their tensors' versions
        todo, seen = list[Any]([layer]), set[int]()
        while todo and len(seen) < MOST_HELD:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, (np.random.Generator, np.random.RandomState, random.Random)):
                self._drawn.append((each, _drawn(each)))
            elif isinstance(each, np.ndarray):
                if each.nbytes <= MOST_BYTES:
                    self._held.append((each, each.copy()))
            elif isinstance(each, (dict, list, set, deque, tuple)):
                if len(each) > MOST_HELD:  # too much to keep
                    continue
                todo += [
                    v for v in (each.values() if isinstance(each, dict) else each) if type(v) not in ATOMS
                ]
                if not isinstance(each, tuple):
                    self._held.append((each, copy(each)))
            elif isinstance(each, torch.nn.Module):
                self._held.append((vars(each), vars(each).copy()))
                todo += [v for k, v in vars(each).items() if type(v) not in ATOMS and k not in UNSEEN]
            elif hasattr(each, "__dict__") and not (isinstance(each, OUTSIDE) or callable(each)):
                todo.append(vars(each))

    def restore(self) -> None:
        """Undo all recorded changes."""
        for held, before in self._held:
            if isinstance(held, np.ndarray):
                held[...] = before
            elif isinstance(held, (dict, set)):
                held.clear()
                held.update(before)
            else:
                held.clear()
                held.extend(before)
        for undo in reversed(self._undo):
            undo()

    def check(self) -> None:
        """Raise DrawsError if a generator of the layer was drawn from during the run.

        Raises ValueError if a tensor was changed in place after an operation had read it (`read`).
        """
        if any(_drawn(each) != before for each, before in self._drawn):
            raise DrawsError
        changed = any(now.shape != was.shape or not _equal(now, was) for now, was in self._copies)
        if changed or any(version(each) != before for each, before in self._read):
            raise ValueError(
                "apply_edge changes a tensor in place after reading it; change it in apply_vertex, or "
                "assign a new tensor"
            )

    def read(self, tensor: Tensor) -> None:
        """Record that an operation reads a tensor, for `check`.

        Messages are computed after the recording, from the tensor's final values, so a change in place after
        this read would give wrong ones.
        """
        self._read.append((tensor, version(tensor)))
        if self._open and _storage(tensor) in self._open:
            self._copies.append((tensor, tensor.detach().clone()))

    def called(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Record that a function of torch is about to be called: copy the tensors that it changes."""
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__"):
            if getattr(function.__self__, "__name__", "") == "data":
                self._expose(args[0], sets=name == "__set__")
        elif name in ("numpy", "__array__", "untyped_storage", "__dlpack__", "data_ptr", "set_"):
            self._expose(args[0], sets=name == "set_")
        elif is_in_place(name) or kwargs.get("out") is not None:
            for each in (*args[:1], kwargs.get("out")):
                for tensor in each if type(each) in (list, tuple) else [each]:
                    if issubclass(type(tensor), Tensor):
                        self._keep(tensor)

    def _keep(self, tensor: Tensor) -> None:
        copy = tensor.detach().clone()
        self._undo.append(lambda: tensor.data.copy_(copy))

    def _expose(self, tensor: Any, *, sets: bool) -> None:
        """Record that a tensor may change without a new version, so that `check` compares its values.

        sets: True if the tensor's storage is about to be replaced (``tensor.data = ...`` or ``set_``).
        """
        if not issubclass(type(tensor), Tensor):
            return
        was = tensor.data
        self._keep(tensor)
        if sets:
            self._undo.append(lambda: setattr(tensor, "data", was))
        self._open.add(_storage(tensor))
        self._copies += [
            (each, each.detach().clone()) for each, _ in self._read if _storage(each) == _storage(tensor)
        ]


@contextmanager
def without_draws(device: torch.device, effects: Effects | None = None, ranks: int = 1) -> Iterator[None]:
    """Run the body of ``with``; raise DrawsError if it draws from a generator of Python, NumPy or torch.

    effects: told of each call of a function of torch (`Effects.called`). ranks: number of ranks; if there are
    several, a BatchNorm in training raises DependsError.
    """
    before = _generators(device)
    with _Watch(effects, ranks):
        yield
    if _generators(device) != before:
        raise DrawsError


class _Watch(TorchFunctionMode):
    """Raises DrawsError for torch's random functions, with any generator, and DependsError for BatchNorm on
    several ranks.
    """

    def __init__(self, effects: Effects | None, ranks: int) -> None:
        super().__init__()
        self._effects, self._ranks = effects, ranks

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, name = (*args, *kwargs.values()), getattr(function, "__name__", "")
        if name in DRAWS or any(type(each) is torch.Generator for each in given):
            raise DrawsError
        if self._ranks > 1 and name == "batch_norm" and kwargs.get("training", args[5:6] == (True,)):
            raise DependsError
        if self._effects is not None:
            self._effects.called(function, args, kwargs)
        return function(*args, **kwargs)


def _generators(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the default generators of Python, NumPy and torch."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    held: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    values = *held.pop("state").values(), *held.values()
    numbers = [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]
    return random.getstate(), numbers, *(each.numpy().tobytes() for each in states)


def _drawn(generator: Any) -> Any:
    """Return the state of a generator object of Python or NumPy, for comparison."""
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    return pickle.dumps(generator)


def is_in_place(name: str) -> bool:
    """Return True if a function or method of this name changes its first argument in place, as add_ does."""
    return name.strip("_") in CHANGES or (name.endswith("_") and not name.endswith("__"))


def version(tensor: Tensor) -> int:
    """Return the number of in-place changes of a tensor; 0 for inference tensors, which do not count them."""
    return 0 if tensor.is_inference() else tensor._version


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | a.isnan() & b.isnan()).all())
