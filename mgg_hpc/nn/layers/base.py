"""The interface that models use of any layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError
from ...runtime.backends.arguments import RngKey
from ..autograd.functional import transform_first
from ..graph.matrix import Adjacency
from ..graph.view import GraphView
from ..inputs.host import Input
from .random import Fill, fill_uniform


@dataclass(frozen=True)
class Widths:
    """Widths of the rows that a layer exchanges forward and backward; 0 where it exchanges none."""

    forward: int
    backward: int


@dataclass(frozen=True)
class Streamed:
    """Columns of the rows that stream past, at most, and of what each row of an interval keeps (`StreamedGraph`)."""

    sources: int
    targets: int


class Convolution(torch.nn.Module, ABC):
    """Interface of a layer. kind: of the adjacency that it sums with. by_edge: whether it uses EdgeKernels."""

    kind: str
    by_edge = False
    in_channels: int
    out_channels: int

    def set_channels(self, in_channels: object, out_channels: object) -> None:
        """Store the channels. Raises ValueError for those that only PyG takes: -1 (inferred later), and pairs."""
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value}: {type(self).__name__} is told its channels, at least 1")
            setattr(self, name, value)

    def refuse(self, **options: tuple[object, object]) -> None:
        """Raise ValueError for options of PyG that are missing here. Each is (value given, only value supported)."""
        for name, (given, known) in options.items():
            if given != known:
                raise ValueError(
                    f"{type(self).__name__} has no {name}={given!r}; {name}={known!r} alone is there"
                )

    @property
    def linear_widths(self) -> tuple[int, int] | None:
        """Widths (in, out) of the linear map that is applied before or after the sum, whichever moves less."""
        return self.in_channels, self.out_channels

    def exchanged(self, products_only: bool, wants_gradient: bool, dtype: torch.dtype) -> Widths:
        """Return the widths of rows of ``dtype`` that are exchanged in training.

        products_only: whether the input can be multiplied only. wants_gradient: whether the input's gradient is needed.
        """
        if self.linear_widths is None:
            raise ValueError("nn does not begin with a Linear, so the width of its input is not known")
        in_channels, out_channels = self.linear_widths
        if products_only or transform_first(in_channels, out_channels, wants_gradient):
            return Widths(out_channels, out_channels)
        return Widths(in_channels, in_channels if wants_gradient else 0)

    @property
    def saves_by_blocks(self) -> bool:
        """Whether a step takes less memory with features that are dropped in blocks (HostFeatures.over)."""
        return self.linear_widths is not None and transform_first(
            *self.linear_widths, needs_input_gradient=False
        )

    @property
    def state(self) -> int:
        """Number of accumulator values a row that CPU EdgeKernels keep from round to round of a halo."""
        return 0

    @property
    def accumulator(self) -> str:
        """How in-neighbours' rows are reduced where the graph is streamed: "sum", "mean" or "max"."""
        return "sum"

    @property
    def reads_own(self) -> bool:
        """Whether `update` reads rows x beside what was reduced."""
        return False

    def product_first(self, wants_gradient: bool) -> bool:
        """Return whether rows are multiplied before they are reduced, where the graph is streamed."""
        return False

    def streamed(self, wants_gradient: bool) -> Streamed:
        """Return the columns that matter where the graph is streamed. wants_gradient: whether the input's is needed."""
        assert self.linear_widths is not None
        in_channels, out_channels = self.linear_widths
        width = out_channels if self.product_first(wants_gradient) else in_channels
        return Streamed(width, width)

    def message(self, x: Tensor, graph: GraphView, *, first: bool) -> Tensor:
        """Return what is reduced of rows x [n, F], where the graph is streamed. first: what `product_first` returns."""
        return x

    def update(
        self, x: Tensor, reduced: Tensor, graph: GraphView, *, first: bool, relu: bool, key: RngKey | None
    ) -> Tensor:
        """Return the output for rows x [n, F] and the reduced rows of `message`, where the graph is streamed.

        first: as for `message`. relu, key: as for `forward`. Raises InputError for one that is more than a reduction.
        """
        raise InputError(
            f"{type(self).__name__} does not run on a graph that is streamed; GCNConv, GINConv and SAGEConv do"
        )

    @abstractmethod
    def reset_parameters(self, fill: Fill = fill_uniform) -> None:
        """Initialise the parameters by these draws."""

    def forward(
        self,
        x: Input,
        graph: GraphView,
        adjacency: Adjacency | None = None,
        *,
        relu: bool = False,
        key: RngKey | None = None,
    ) -> Tensor:
        """Return the layer's output [n, out] for this rank's rows x [n, in]. Collective.

        adjacency: one of the graph's. [default: graph.adjacency(self.kind)] relu: apply ReLU, in the kernel where that
        is possible. key: of the dropout behind the ReLU. Raises ValueError for an adjacency of another kind.
        """
        return self._convolve(x, graph, self.chosen(graph, adjacency), relu, key)

    def chosen(self, graph: GraphView, adjacency: Adjacency | None, *, ordered: bool = False) -> Adjacency:
        """Return the adjacency that was given, or the graph's (`GraphView.adjacency`). Raises what `forward` does."""
        chosen = graph.adjacency(self.kind, ordered=ordered) if adjacency is None else adjacency
        if chosen.kind != self.kind:
            name = type(self).__name__
            raise ValueError(
                f"{name} sums with an adjacency of kind {self.kind!r}, and this one is {chosen.kind!r}"
            )
        return chosen

    @abstractmethod
    def _convolve(
        self, x: Input, graph: GraphView, adjacency: Adjacency, relu: bool, key: RngKey | None
    ) -> Tensor:
        """Compute `forward` with an adjacency of the right kind."""

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"
