"""What models know of a layer, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from .graph import Adjacency, GraphHandle
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
    def only_multiplies(self) -> bool:
        """Whether the backward only multiplies an input whose gradient nobody wants, if it needs it at all."""
        return False

    @property
    def state(self) -> int:
        """Values of the accumulator that EdgeKernels of a host keep for each row from wave to wave of a halo."""
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
