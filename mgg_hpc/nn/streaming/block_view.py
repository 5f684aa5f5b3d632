"""Some of a graph's rows, as modules that take each row alone see them: linear maps, activations and dropout."""

from __future__ import annotations

from typing import Never

import numpy as np
from numpy.typing import NDArray

from ..graph.view import GraphView


class BlockView(GraphView):
    """Rows ``low`` .. ``high`` - 1 of this rank's. They have no edges, and the other ranks' rows are not there."""

    def __init__(self, graph: GraphView, low: int, high: int) -> None:
        self.backend, self.dtype, self.device = graph.backend, graph.dtype, graph.device
        self.workspace, self.comm = graph.workspace, graph.comm
        self.rank, self.ranks = graph.rank, graph.ranks
        self.ids = graph.ids[low:high]
        self._low, self._graph = low, graph

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def destinations(self) -> int:
        return len(self.ids)

    @property
    def numbers(self) -> NDArray[np.int64]:
        return self._graph.numbers[self._low : self._low + self.rows]

    def _refuse(self) -> Never:
        raise TypeError(
            "a layer of a graph that is streamed sees a block of its rows here, and not the graph"
        )

    @property
    def all_destinations(self) -> int:
        """Raise TypeError: what depends on all rows cannot be computed of some."""
        self._refuse()

    def adjacency(self, *args: object, **kwargs: object) -> Never:
        """Raise TypeError."""
        self._refuse()

    def edge_values(self, *args: object, **kwargs: object) -> Never:
        """Raise TypeError."""
        self._refuse()

    def exchange(self, *args: object, **kwargs: object) -> Never:
        """Raise TypeError."""
        self._refuse()

    def publish(self, *args: object, **kwargs: object) -> Never:
        """Raise TypeError."""
        self._refuse()
