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
    def bind(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.integer],
        *,
        near_bytes: int,
        hottest: NDArray[np.int64] | None = None,
        weight: NDArray[np.floating] | None = None,
        ids: NDArray[np.int64] | None = None,
    ) -> Sampler:
        """Return a sampler of a graph, whose arrays are as `Sampler` takes them, and may not change.

        near_bytes: of edges, with their weights, that are copied to the GPU. hottest: int64, distinct rows, in the
        order in which theirs are chosen. [default: all, by their numbers] The other edges are read where they lie in
        the host's memory, whose pages are locked until the sampler is freed. Raises ValueError as `Sampler` does, and
        InputError where the GPU cannot hold so much, or pages cannot be locked.
        """
