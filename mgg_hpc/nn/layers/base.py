"""What models know of a layer, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from ..graph.handle import Adjacency, GraphHandle
from .random import Fill, fill_uniform


@dataclass(frozen=True)
class Widths:
    """Values in the rows that a layer exchanges forward and backward; 0: it does not exchange."""

    forward: int
    backward: int


class Convolution(torch.nn.Module, ABC):
    """What models know of a layer. kind: of the adjacency that it sums with. by_edge: whether it takes EdgeKernels."""

    kind: str
    by_edge = False

    @abstractmethod
    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> Widths:
        """The widths of rows of ``dtype`` that are exchanged in training.

        products_only: for an input that can be multiplied only. wants_gradient: whether the input's is wanted.
        """

    @property
    def saves_by_blocks(self) -> bool:
        """Whether a step takes less memory if features, dropped in blocks, are the input (HostFeatures.over)."""
        return False

    @property
    def state(self) -> int:
        """Values of the accumulator that EdgeKernels of a host keep for each row from round to round of a halo."""
        return 0

    @abstractmethod
    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Start again, by these draws."""

    def summed_with(self, graph: GraphHandle, given: Adjacency | None) -> Adjacency:
        """The one to sum with. Raises ValueError for one of another kind."""
        if given is None:
            return graph.adjacency(self.kind)
        if given.kind != self.kind:
            name = type(self).__name__
            raise ValueError(
                f"{name} sums with an adjacency of kind {self.kind!r}, and this one is {given.kind!r}"
            )
        return given


def check_channels(layer: torch.nn.Module, in_channels: object, out_channels: object) -> None:
    """PyG finds channels of -1 in the first rows, and takes a pair for two kinds of nodes."""
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value}: {type(layer).__name__} is told its channels, at least 1")


def refuse(layer: torch.nn.Module, **options: tuple[object, object]) -> None:
    """Options of PyG's that are not here: what was given, and the one value that is."""
    for name, (given, known) in options.items():
        if given != known:
            raise ValueError(
                f"{type(layer).__name__} has no {name}={given!r}; {name}={known!r} alone is there"
            )
