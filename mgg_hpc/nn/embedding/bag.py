"""`torch.nn.EmbeddingBag` over rows that are divided over ranks."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ...errors import InputError, shown
from ...runtime.tiers.place import agreed
from ...runtime.watchdog import collective
from ..tiered import ranks_of
from ..workspace import accumulator
from .optimizers import RowOptimizer
from .pooling import WAYS, Bags, Pooling
from .rows import ShardedRows, dense_shape, drawn, refuse_state, same_on_all

MODES = ("sum", "mean", "max")
NAME = "ShardedEmbeddingBag"


class ShardedEmbeddingBag(torch.nn.Module):
    """Sums, means or maxima of bags of embedding rows; each rank owns a range of the rows and passes its own bags.

    Arguments and results are those of `torch.nn.EmbeddingBag`. The gradient of a row is the sum over all ranks' bags::

        bags = mgg.nn.ShardedEmbeddingBag(10_000_000, 64, mode="sum", optimizer=mgg.nn.RowWiseAdagrad(0.01))
        out = bags(indices, offsets)  # [bags of this rank, 64]
        loss(out).backward()  # changes the rows on their owners

    The module, its calls and their backward are collective; a rank without bags passes empty ones, and takes part in
    the backward. optimizer: changes rows during the backward, each time that it comes to a call. [default: None, which
    puts the gradient of this rank's rows into ``weight.grad``, sparse, for an optimiser of torch] way:
    how rows are read (`Pooling`). near: bytes of each rank's memory, or a size as "4G", for rows of the highest score
    [num_embeddings]; others lie in a scratch file in ``folder``. [default: all rows are in memory] comm: an mpi4py
    communicator. [default: all ranks] Raises InputError, the same on all ranks, for indices, offsets and options that
    do not fit.

    Attribute weight: parameter [own rows, embedding_dim], rows ``bounds[rank]`` to ``bounds[rank + 1] - 1`` of all;
    [0, embedding_dim] with ``near``.
    Rows are initially normal with variance 1.
    """

    @collective(NAME)
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = True,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        optimizer: RowOptimizer | None = None,
        way: str = "auto",
        near: int | str | None = None,
        folder: str | Path | None = None,
        score: ArrayLike | None = None,
        comm: Any = None,
        _weight: Tensor | None = None,
        _frozen: bool = False,
    ) -> None:
        super().__init__()
        with agreed(ranks_of(comm)):
            for name, given, none in (
                ("max_norm", max_norm, None),
                ("norm_type", norm_type, 2.0),
                ("scale_grad_by_freq", scale_grad_by_freq, False),
                ("sparse", sparse, True),
            ):
                if given != none:
                    raise InputError(f"{NAME}: {name}={given} is not supported; leave it at {none}")
            for name, word, words in (("mode", mode, MODES), ("way", way, WAYS)):
                if word not in words:
                    raise InputError(f"{NAME}: {name} is {word!r}; expected one of {', '.join(words)}")
            if not all(isinstance(each, Integral) for each in (num_embeddings, padding_idx or 0)):
                raise InputError(
                    f"{NAME}: num_embeddings is {shown(num_embeddings)}, and padding_idx {shown(padding_idx)}; "
                    "expected whole numbers"
                )
            if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
                raise InputError(f"{NAME}: padding_idx is {padding_idx}, of {num_embeddings} rows")
            if score is not None and np.shape(score) != (num_embeddings,):
                raise InputError(f"{NAME}: score is {list(np.shape(score))}; expected [{num_embeddings}]")
        options = {"mode": mode, "padding_idx": padding_idx, "freeze": _frozen}
        same_on_all(ranks_of(comm), f"{NAME}: options", options)
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.rows = ShardedRows(
            num_embeddings,
            embedding_dim,
            optimizer=optimizer,
            dtype=dtype,
            device=device,
            near=near,
            folder=folder,
            score=None if score is None else lambda first, last: np.asarray(score)[first:last],
            frozen=_frozen,
            comm=comm,
        )
        refuse_state(self, self.rows)
        self.weight, self.bounds = self.rows.weight, self.rows.bounds
        self._pooling = Pooling(self.rows, way)
        if _weight is None:
            self.rows.fill(drawn(self.rows.comm, embedding_dim, uniform=False), new=True)
            if (at := self.padding_idx) is not None:
                self.rows.fill(lambda *_: torch.zeros(1, embedding_dim), at, at + 1)
        else:
            self.rows.fill(lambda first, last: _weight[first:last], new=True)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **how: Any) -> ShardedEmbeddingBag:
        """Return bags over rows [N, dim] that every rank passes. freeze: rows have no gradients. how: as above."""
        if not isinstance(shape := dense_shape(embeddings), list) or len(shape) != 2:
            raise InputError(f"{NAME}: embeddings are {shape}; expected a dense tensor [rows, dim]")
        made = cls(
            *embeddings.shape, **{"dtype": embeddings.dtype, **how}, _weight=embeddings, _frozen=freeze
        )
        made.weight.requires_grad_(not freeze)
        return made

    @collective(NAME)
    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return the pooled bags, [B, embedding_dim]. Collective.

        input: integers [E], with offsets [B] of the bags' first entries ([B + 1] with ``include_last_offset``), or
        [B, L]. per_sample_weights: like ``input``, for mode "sum". An empty bag gives 0.
        """
        with agreed(self.rows.comm):
            bags = self._bags(input, offsets, per_sample_weights)
        return self._pooling(bags, self.mode == "max")

    def _bags(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Bags:
        """Return the bags of a call. Raises InputError."""
        ids, lengths = _entries(input, offsets, self.include_last_offset)
        ids = ids.copy()  # the backward reads them, and the caller may change its tensor before
        if weights is not None:
            if self.mode != "sum":
                raise InputError(f'{NAME}: per_sample_weights are for mode "sum", and it is "{self.mode}"')
            if not isinstance(weights, Tensor) or weights.shape != input.shape:
                found = list(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
                raise InputError(
                    f"{NAME}: per_sample_weights are {found}, and the input is {list(input.shape)}"
                )
            weights = weights.reshape(-1).to(self.weight.device, accumulator(self.weight.dtype))
        check_ids(ids, lengths, self.num_embeddings, NAME)
        if self.padding_idx is not None:
            kept = ids != self.padding_idx
            bag = np.repeat(np.arange(len(lengths)), lengths)
            ids, lengths = ids[kept], np.bincount(bag[kept], minlength=len(lengths))
            weights = None if weights is None else weights[torch.from_numpy(kept).to(weights.device)]
        divisor = torch.from_numpy(np.maximum(lengths, 1)) if self.mode == "mean" else None
        return Bags(self.rows.backend.collectives.rank, ids, lengths, weights, divisor)

    @collective(NAME)
    def gathered(self) -> dict[str, Tensor]:
        """Return torch's state, {"weight": all rows [num_embeddings, embedding_dim]}, on every rank. Collective."""
        return {"weight": self.rows.whole()}

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *how: Any) -> None:
        """Load all rows, as `gathered` and torch have them, or those of this rank. Collective."""
        given = state.get(f"{prefix}weight")
        shape, every = dense_shape(given), [self.num_embeddings, self.embedding_dim]
        with agreed(self.rows.comm):
            if given is not None and shape not in (every, own := list(self.weight.shape)):
                raise InputError(
                    f"{NAME}: {prefix}weight is {shape}; expected a dense tensor of all rows {every}, or this rank's "
                    f"{own}"
                )
        same_on_all(self.rows.comm, f"{NAME}: all rows to load", shape == every)
        if given is not None and shape == every:
            self.rows.fill(lambda first, last: given[first:last])
            own = given[self.rows.first : self.rows.last]
            state = state | {f"{prefix}weight": own if self.rows.tiers is None else self.weight}
        super()._load_from_state_dict(state, prefix, *how)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"

    @collective(NAME)
    def close(self) -> None:
        """Free the rows. Collective."""
        self.rows.close()


def _entries(
    input: Tensor, offsets: Tensor | None, include_last: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the entries of all bags, and how many each bag has. Raises InputError."""
    ids = integers(input, lambda: f"{NAME}: input")
    if ids.ndim == 2:
        if offsets is not None:
            raise InputError(f"{NAME}: offsets are for an input [E], and it is {list(ids.shape)}")
        return ids.reshape(-1), np.full(len(ids), ids.shape[1])
    if ids.ndim != 1 or offsets is None:
        raise InputError(f"{NAME}: input is {list(ids.shape)}; expected [B, L], or [E] with offsets")
    starts = integers(offsets, lambda: f"{NAME}: offsets")
    if starts.ndim != 1 or len(starts) < include_last:
        raise InputError(f"{NAME}: offsets are {list(starts.shape)}; expected [B{' + 1' * include_last}]")
    if not include_last:
        starts = np.append(starts, len(ids))
    lengths = np.diff(starts)
    if starts[0] != 0 and (len(starts) > 1 or len(ids)):
        raise InputError(f"{NAME}: offsets begin at {starts[0]}; expected 0")
    if (lengths < 0).any():
        bag = int(np.argmax(lengths < 0))
        raise InputError(
            f"{NAME}: bag {bag} begins at {starts[bag]} and ends at {starts[bag + 1]}, before it"
        )
    if starts[-1] != len(ids):
        raise InputError(
            f"{NAME}: the last offset is {starts[-1]}; expected {len(ids)}, the number of entries"
        )
    return ids, lengths


def integers(tensor: Any, what: Callable[[], str]) -> NDArray[np.int64]:
    """Return integers as int64 on the host. Raises InputError, which begins with ``what``, for other types."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.int32, torch.int64):
        kind = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"{what()}: expected a tensor of int32 or int64, not {kind}")
    found: NDArray[np.int64] = tensor.numpy(force=True)
    return found if found.dtype == np.int64 else found.astype(np.int64)


def check_ids(ids: NDArray[np.int64], lengths: NDArray[np.int64], rows: int, where: str) -> None:
    """Raise InputError, which begins with ``where``, for the first index outside of 0 .. ``rows`` - 1."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < rows:
        entry = int(np.argmax((ids < 0) | (ids >= rows)))
        bag = int(np.searchsorted(np.cumsum(lengths), entry, side="right"))
        raise InputError(f"{where}: bag {bag} has index {ids[entry]}; expected 0 to {rows - 1}")
