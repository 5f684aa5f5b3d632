"""Layouts: which dimension of a tensor is divided between ranks, and which tensors hold numbers of divided rows.

A converted model runs its own code on each rank's part. What makes that right or wrong is known of each tensor: one
without a layout is the same on all ranks, as parameters are; one dimension of another has an item for each of this
rank's nodes, of its edges, or of a part of these. `rules` derives the layout of each result, or refuses the operation.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NAME, _VERSION = "_mgg_layout", "_mgg_version"  # attributes of tensors
_serials = itertools.count()
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class Refused(Exception):  # noqa: N818 - it becomes an InputError that names the module
    """What is wrong, and what would do."""


class Domain:
    """A list, each of whose items is on one rank: nodes, edges, or a part or a concatenation of such lists.

    name: for messages, the same on all ranks. local: number of this rank's items. total: of all ranks' items. keys:
    uint64 [local], numbers of the items that depend neither on ranks nor on the order of rows, for random draws. parts:
    of a concatenation. owner: of rows with a halo, the list of the rows. beyond: of nodes, the list of the rows with a
    halo. numbers: int64, the graph's numbers of the latter. ends: returns the ends [2, local] of edges. chosen_of: of a
    list that a mask chose, the list that it chose from. counted: whether the number of all ranks' items is known.
    """

    parts: Sequence[Domain] = ()
    owner: Domain | None = None
    beyond: Domain | None = None
    numbers: NDArray[np.int64]
    ends: Callable[[], Tensor] | None = None
    chosen_of: Domain | None = None
    counted = True

    def __init__(
        self, name: str, local: int, total: int | Callable[[], int], keys: Callable[[], NDArray[np.uint64]]
    ) -> None:
        self.name, self.local, self._total, self._keys = name, local, total, keys

    @property
    def total(self) -> int:
        """Number of items on all ranks. Collective at the first call, unless known."""
        if not isinstance(self._total, int):
            self._total = self._total()
        return self._total

    @property
    def root(self) -> Domain:
        """The list that masks chose this one from, or this one."""
        return self if self.chosen_of is None else self.chosen_of.root

    @property
    def own(self) -> NDArray[np.int64]:
        """The graph's numbers of this rank's rows."""
        return self.numbers[: self.local]

    @property
    def keys(self) -> NDArray[np.uint64]:
        if not isinstance(self._keys, np.ndarray):
            self._keys = self._keys()  # type: ignore[assignment]
        return self._keys  # type: ignore[return-value]

    def __repr__(self) -> str:
        return self.name


def mixed(keys: NDArray[np.uint64], salt: Any) -> NDArray[np.uint64]:
    """Return other well-mixed numbers of 64 bits. salt: a number, or numbers of the same shape."""
    with np.errstate(over="ignore"):
        found = (keys ^ (np.asarray(salt, np.uint64) * _MIX[0] + _MIX[1])) * _MIX[1]
        found ^= found >> np.uint64(29)
        found *= _MIX[0]
    return found ^ (found >> np.uint64(32))


class Divided(NamedTuple):
    """A dimension over the items of a domain. Item i has ``after`` successive places, all of them ``before`` times."""

    domain: Domain
    before: int = 1
    after: int = 1

    @property
    def size(self) -> int:
        return self.before * self.domain.local * self.after

    @property
    def everywhere(self) -> int:
        """Size on all ranks together. Collective at the first call for a domain."""
        return self.before * self.domain.total * self.after

    @property
    def plain(self) -> bool:
        return self.before == self.after == 1

    def __repr__(self) -> str:
        return self.domain.name if self.plain else f"{self.before}x{self.domain.name}x{self.after}"


@dataclass(frozen=True)
class Numbers:
    """Values are places in this rank's part of a domain. halo: or, for nodes, of the halo's rows after it. mixed: some
    were put in the place of others, so these are not the ends of the graph's edges.
    """

    domain: Domain
    halo: bool = False
    mixed: bool = False

    def joined(self, other: Numbers | None) -> Numbers | None:
        """Return the numbers of either; None for those of another domain."""
        if other is None or other.domain is not self.domain:
            return None
        return Numbers(self.domain, self.halo or other.halo, self.mixed or other.mixed)


Held = Numbers | tuple[Numbers, ...] | None


@dataclass(eq=False)
class Layout:
    """Of a tensor: dims, one entry for each dimension, None where it is not divided, or () for none that is.

    numbers: what its values count; a tuple has an entry for each index of the first dimension, as of an edge_index.
    data: the name of the graph's data of edges that these are. serial: another one for other values.
    """

    dims: tuple[Divided | None, ...] = ()
    numbers: Held = None
    data: str = ""
    serial: int = field(default_factory=lambda: next(_serials))

    def __repr__(self) -> str:
        halo = self.numbers if isinstance(self.numbers, tuple) else (self.numbers,)
        return f"{self.dims}{[each and each.halo for each in halo]}"


PLAIN = Layout()


def layout(tensor: Tensor) -> Layout:
    """Return the layout of a tensor; PLAIN for one that is the same on all ranks."""
    found: Layout = getattr(tensor, _NAME, PLAIN)
    return found


def known(tensor: Tensor) -> bool:
    """Return whether a layout has been set, or found to be PLAIN."""
    return hasattr(tensor, _NAME)


def put(tensor: Tensor, given: Layout) -> Tensor:
    """Set a tensor's layout."""
    setattr(tensor, _NAME, given if given.numbers is not None or any(given.dims) else PLAIN)
    if given.numbers is not None or given.data:
        setattr(tensor, _VERSION, _version(tensor))
    return tensor


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def unchanged(tensor: Tensor) -> bool:
    """Return whether what a layout says of the values of a tensor was said of those that it has now."""
    given = layout(tensor)
    of_values = given.numbers is not None or bool(given.data)
    return not of_values or (getattr(tensor, _VERSION, -1) == _version(tensor) != -1)


def data_of(value: Any) -> str:
    """Return the name of the graph's data of edges that a tensor is, or ""."""
    return layout(value).data if isinstance(value, Tensor) and unchanged(value) else ""


def over(tensor: Tensor, domain: Domain, dim: int = 0, numbers: Held = None, data: str = "") -> Tensor:
    """Set the layout of a tensor of which one dimension has an item of a domain each."""
    dims: list[Divided | None] = [None] * tensor.dim()
    dims[dim] = Divided(domain)
    return put(tensor, Layout(tuple(dims), numbers, data))


def dims(tensor: Tensor) -> tuple[Divided | None, ...]:
    """Return an entry for each dimension of a tensor."""
    return layout(tensor).dims or (None,) * tensor.dim()


def divided(tensor: Tensor) -> int | None:
    """Return the dimension of a tensor that is divided, or None."""
    return next((i for i, each in enumerate(layout(tensor).dims) if each), None)


class Count(int):
    """The size of a divided dimension. As a number it is that of all ranks; as a size of a tensor, this rank's.

    So what a model computes of it is what it computes in one process, and what it shapes by it fits this rank's part.
    """

    of: Divided
    used = False  # whether one was computed with since a call of a model began
    read = False  # whether the model's own code read one, with which floats compute unseen

    def __new__(cls, of: Divided) -> Count:
        made = super().__new__(cls, of.everywhere)
        made.of = of
        return made

    def __mul__(self, other: Any) -> Any:
        if type(other) is int:
            return Count(Divided(self.of.domain, self.of.before, self.of.after * other))
        return super().__mul__(other)

    def __rmul__(self, other: Any) -> Any:
        if type(other) is int:
            return Count(Divided(self.of.domain, self.of.before * other, self.of.after))
        return super().__rmul__(other)

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _noted(method: Any) -> Any:
    def call(self: Count, *args: Any) -> Any:
        Count.used = True
        return method(self, *args)

    return call


for _name in (
    *("truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "float"),
    *("add", "radd", "sub", "rsub", "neg", "lt", "le", "gt", "ge"),
):
    setattr(Count, f"__{_name}__", _noted(getattr(int, f"__{_name}__")))


def _by_model() -> bool:
    """Return whether the model's own code asks for a size, rather than PyG's, which takes it as a shape."""
    frame, package = sys._getframe(1), "mgg_hpc"
    while frame is not None and package in ("mgg_hpc", "torch"):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        frame = frame.f_back  # type: ignore[assignment]
    return package != "torch_geometric"


def size_of(tensor: Tensor) -> torch.Size:
    """Return a tensor's shape, with a `Count` for a divided dimension."""
    found = tensor.shape
    if not layout(tensor).dims:
        return found
    Count.read = Count.read or _by_model()
    if not all(each is None or each.domain.counted for each in dims(tensor)) and _by_model():
        raise Refused("reads the number of rows or edges that were chosen, of which a batch has some")
    return torch.Size(
        size if each is None else Count(each) for size, each in zip(found, dims(tensor), strict=True)
    )
