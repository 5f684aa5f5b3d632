"""The interface that models use of any layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from ..graph.handle import Adjacency, GraphHandle
from .random import Fill, fill_uniform


@dataclass(frozen=True)
class Widths:
    """Widths of the rows that a layer exchanges forward and backward; 0 where it exchanges none."""

    forward: int
    backward: int


class Convolution(torch.nn.Module, ABC):
    """Interface of a layer. kind: of the adjacency that it sums with. by_edge: whether it uses EdgeKernels."""

    kind: str
    by_edge = False

    @abstractmethod
    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> Widths:
        """The widths of rows of ``dtype`` that are exchanged in training.

        products_only: for an input that can be multiplied only. wants_gradient: whether the input's is wanted.
        """

    @property
    def saves_by_blocks(self) -> bool:
        """Return whether a step takes less memory with features that are dropped in blocks (HostFeatures.over)."""
        return False

    @property
    def state(self) -> int:
        """Values of the accumulator that EdgeKernels of a host keep for each row from round to round of a halo."""
        return 0

    @abstractmethod
    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise the parameters by these draws."""

    def summed_with(self, graph: GraphHandle, given: Adjacency | None) -> Adjacency:
        """Return the adjacency to sum with. Raises ValueError for an adjacency of another kind."""
        if given is None:
            return graph.adjacency(self.kind)
        if given.kind != self.kind:
            name = type(self).__name__
            raise ValueError(
                f"{name} sums with an adjacency of kind {self.kind!r}, and this one is {given.kind!r}"
            )
        return given


def check_channels(layer: torch.nn.Module, in_channels: object, out_channels: object) -> None:
    """Refuse channels that only PyG takes: -1, inferred from the first rows, and a pair for two kinds of nodes."""
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value}: {type(layer).__name__} is told its channels, at least 1")


def refuse(layer: torch.nn.Module, **options: tuple[object, object]) -> None:
    """Refuse options of PyG that are missing here. Each option is (the value given, the only value that there is)."""
    for name, (given, known) in options.items():
        if given != known:
            raise ValueError(
                f"{type(layer).__name__} has no {name}={given!r}; {name}={known!r} alone is there"
            )
