"""The interface of neighbour sampling on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..sampler import Sampler


class SamplingKernels(ABC):
    """Makes samplers that draw on a GPU what `runtime.sampler.Sampler` draws on a core, bit for bit."""

    @abstractmethod
    def bind(self, host: Sampler, near_bytes: int, hottest: NDArray[np.int64] | None = None) -> Sampler:
        """Return a sampler of the graph of ``host``, whose arrays may not change.

        near_bytes: of edges, with their weights, that are copied to the GPU. hottest: int64, distinct rows, in the
        order in which theirs are chosen. [default: all, by their numbers] The other edges are read where they lie in
        the host's memory, whose pages are locked until the sampler is closed or freed. Raises InputError where the GPU
        cannot hold so much, a row has 2^31 edges or more, or pages cannot be locked.
        """
