"""The interface of neighbour sampling on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..sampler import Sampler


class SamplingKernels(ABC):
    """Creates samplers on a GPU, with the same results as `runtime.sampler.Sampler` on a CPU, bit for bit."""

    @abstractmethod
    def bind(self, host: Sampler, near_bytes: int, hottest: NDArray[np.int64] | None = None) -> Sampler:
        """Return a GPU sampler of the graph of ``host``, whose arrays may not change afterwards.

        near_bytes: most bytes of edges and their weights to copy to the GPU. hottest: int64, distinct rows
        whose edges are copied, the first ones first. [default: all rows, ascending] The GPU reads all other
        edges from the host's memory, whose pages are locked until the sampler is closed or freed. Raises
        InputError if the GPU cannot hold so much, a row has 2^31 edges or more, or pages cannot be locked.
        """
