"""The matrices that layers aggregate with: their edges in both directions, scales and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...plan.workload import Plan, SplitEdges
from .edge_data import EdgeOrder, EdgeValues

_Edges = TypeVar("_Edges", Plan, SplitEdges)


@dataclass(frozen=True)
class Matrix(Generic[_Edges]):
    """A matrix to aggregate with: out = scale * (A' (scale * x)), A' with these edges and weights.

    forward sums over in-edges, backward over out-edges: for a symmetric graph they are the same object.
    scale: [n] or None. weights: in the order of each's edges, or None for ones. On the backend's device.
    kind: "gcn", normalised and with weights; "edges", the graph's own, for GIN and SAGE; or "attention", with exactly
    one self loop at each node. inverse_degree: [n], what makes a mean of a sum over "edges"; else None. order: that of
    its edges, where data of edges will be brought into it. values: data of edges that are in its order already, by
    name; of self loops the mean of the node's other edges. places: int64 [E], of each of backward's edges its place
    among forward's, where one rank has both and this is known; else None.
    """

    forward: _Edges
    backward: _Edges
    scale: Tensor | None
    forward_weight: Tensor | None = None
    backward_weight: Tensor | None = None
    kind: str = "gcn"
    inverse_degree: Tensor | None = None
    order: EdgeOrder | None = None
    values: Mapping[str, EdgeValues] = field(default_factory=dict)
    places: NDArray[np.int64] | None = None

    def on(self, device: str) -> Matrix[_Edges]:
        """Return the same with scales and weights on a device."""

        def there(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        return replace(
            self,
            scale=there(self.scale),
            forward_weight=there(self.forward_weight),
            backward_weight=there(self.backward_weight),
            inverse_degree=there(self.inverse_degree),
        )

    @property
    def directions(self) -> list[_Edges]:
        """The edges of both directions, or of one where they are the same."""
        return [self.forward] if self.backward is self.forward else [self.forward, self.backward]


Adjacency = Matrix[Plan]
Unplanned = Matrix[SplitEdges]  # before the transfer of remote rows is known
