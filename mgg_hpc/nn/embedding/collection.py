"""Several embedding tables, whose look-ups are one gather and one sum, as TorchRec's EmbeddingBagCollection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError, shown
from ...runtime.tiers.place import NEAR, agreed, bytes_of
from ...runtime.watchdog import collective
from ..tiered import ranks_of
from ..workspace import accumulator
from .bag import check_ids, integers
from .optimizers import RowOptimizer
from .pooling import WAYS, Bags, Pooling
from .rows import (
    Score,
    ShardedRows,
    check_memory,
    checked_type,
    dense_shape,
    drawn,
    refuse_state,
    same_on_all,
)

NAME = "ShardedEmbeddingBagCollection"


@dataclass(frozen=True)
class TableConfig:
    """A table of a collection, as TorchRec's EmbeddingBagConfig. pooling: "sum" or "mean"."""

    name: str
    num_embeddings: int
    embedding_dim: int
    feature_names: Sequence[str]
    pooling: str = "sum"


@dataclass(frozen=True, eq=False)
class Planned:
    """A batch of a collection with its plans. owner: the collection. bags: by width."""

    owner: ShardedEmbeddingBagCollection
    bags: dict[int, Bags]


class ShardedEmbeddingBagCollection(torch.nn.Module):
    """Pooled embeddings of several features, from tables whose rows are divided over ranks.

    All tables of one width lie one after another in one allocation, so that their features are one gather and one sum.
    Rows are initially uniform in +-1 / sqrt(num_embeddings). Other arguments and the exchange are those of
    `ShardedEmbeddingBag`.

    tables: `TableConfig` objects, or TorchRec's EmbeddingBagConfigs. near: divided over widths by the bytes of their
    tables. score: {table: score(first, last), which returns the scores of these rows}. Raises InputError, the same on
    all ranks, for tables that have no or the same features.
    """

    @collective(NAME)
    def __init__(
        self,
        tables: Sequence[TableConfig],
        *,
        optimizer: RowOptimizer | None = None,
        dtype: torch.dtype | None = None,
        device: Any = None,
        way: str = "auto",
        near: int | str | None = None,
        folder: str | Path | None = None,
        score: Mapping[str, Score] | None = None,
        comm: Any = None,
    ) -> None:
        super().__init__()
        self._comm = ranks_of(comm)
        with agreed(self._comm):
            if way not in WAYS:
                raise InputError(f"{NAME}: way is {way!r}; expected one of {', '.join(WAYS)}")
            if not isinstance(tables, Sequence):
                raise InputError(f"{NAME}: tables are {shown(tables)}; expected a list of TableConfigs")
            self.tables = [_checked(table) for table in tables]
            names = [name for table in self.tables for name in table.feature_names]
            for what, each in (("table", [table.name for table in self.tables]), ("feature", names)):
                if not each or len(set(each)) < len(each):
                    raise InputError(
                        f"{NAME}: each {what} needs a name of its own; they are {', '.join(each) or 'none'}"
                    )
            if score is not None and not (isinstance(score, Mapping) and all(map(callable, score.values()))):
                raise InputError(f"{NAME}: score is {shown(score)}; expected {{table: score(first, last)}}")
            if score is not None and score.keys() != {table.name for table in self.tables}:
                raise InputError(
                    f"{NAME}: scores are of {', '.join(score)}; expected "
                    f"{', '.join(table.name for table in self.tables)}"
                )
            near, dtype = near if near is None else bytes_of(NEAR, near), checked_type(dtype)
        kind = str(device or "cpu").partition(":")[0]
        same_on_all(self._comm, f"{NAME}: tables", [*map(str, self.tables), f"near={near}", kind])
        if near is None and str(device or "cpu") == "cpu":  # before the first width is allocated
            shapes = [(table.num_embeddings, table.embedding_dim) for table in self.tables]
            check_memory(self._comm, shapes, optimizer, dtype)
        self.features = names
        self._starts: dict[str, int] = {}  # number of each table's first row among those of its width
        self._groups: dict[
            int, tuple[Pooling, list[tuple[str, TableConfig]]]
        ] = {}  # features and their tables
        every = sum(table.num_embeddings * table.embedding_dim for table in self.tables)
        for dim in dict.fromkeys(table.embedding_dim for table in self.tables):
            held = [table for table in self.tables if table.embedding_dim == dim]
            *starts, count = np.cumsum([0, *(table.num_embeddings for table in held)]).tolist()
            placed = list(zip(held, starts, strict=True))
            self._starts |= {table.name: start for table, start in placed}
            rows = ShardedRows(
                count,
                dim,
                optimizer=optimizer,
                dtype=dtype,
                device=device,
                near=near if near is None else near * count * dim // every,
                folder=folder,
                score=None if score is None else partial(_scores, placed, score),
                comm=comm,
            )
            refuse_state(self, rows)
            self.register_parameter(f"rows_{dim}", rows.weight)
            self._groups[dim] = (
                Pooling(rows, way),
                [(f, table) for table in held for f in table.feature_names],
            )
            of = drawn(rows.comm, dim, uniform=True)
            for table, start in placed:
                count = table.num_embeddings
                rows.fill(partial(of, limit=count**-0.5), start, start + count, new=True)

    def plan(self, features: Any) -> Planned:
        """Return a batch for `forward`, with the plans of its backward. For any thread; not collective."""
        return Planned(self, {dim: bags.plan() for dim, bags in self._bags(features).items()})

    @collective(NAME)
    def forward(self, features: Any) -> dict[str, Tensor]:
        """Return the pooled embeddings [B, dim] of this rank's bags by feature. Collective.

        features: {feature: (values [E], lengths [B])} or {feature: (values, lengths, weights [E])}, a KeyedJaggedTensor
        of TorchRec, or the result of `plan`. Features of one width are views of one tensor (`stacked`).
        """
        return {
            name: out
            for dim, pooled in self._pooled(features).items()
            for (name, _), out in zip(self._groups[dim][1], pooled, strict=True)
        }

    @collective(NAME)
    def stacked(self, features: Any) -> Tensor:
        """Return the pooled embeddings as one tensor [features, B, dim], in the order of ``features``. Collective.

        Raises InputError for tables of several widths.
        """
        if len(self._groups) > 1:
            raise InputError(f"{NAME}: tables have widths {', '.join(map(str, self._groups))}; expected one")
        return next(iter(self._pooled(features).values()))

    def _pooled(self, features: Any) -> dict[int, Tensor]:
        with agreed(self._comm):
            if isinstance(features, Planned) and features.owner is not self:
                raise InputError(f"{NAME}: the batch was planned by another collection")
            bags = features.bags if isinstance(features, Planned) else self._bags(features)
        return {
            dim: pooling(bags[dim]).unflatten(0, (len(held), -1))
            for dim, (pooling, held) in self._groups.items()
        }

    def _bags(self, features: Any) -> dict[int, Bags]:
        """Return a batch's bags by embedding width. Raises InputError for missing or malformed features."""
        given = features if isinstance(features, Mapping) else _of_jagged(features)
        if given.keys() != set(self.features):
            missing, other = set(self.features) - given.keys(), given.keys() - set(self.features)
            said = [
                f"{word} {', '.join(sorted(map(str, each)))}"
                for word, each in (("lacks", missing), ("has", other))
                if each
            ]
            raise InputError(
                f"{NAME}: the batch {' and '.join(said)}; its features are {', '.join(self.features)}"
            )
        for name in self.features:
            if not _is_feature(each := given[name]):
                parts = each if isinstance(each, tuple | list) else [each]
                kinds = [list(p.shape) if isinstance(p, Tensor) else type(p).__name__ for p in parts]
                raise InputError(
                    f"{NAME}: feature {name} is {', '.join(map(str, kinds))}; expected tensors (values [E], lengths "
                    "[B]) or (values, lengths, weights [E])"
                )
        if len({given[name][1].shape for name in self.features}) > 1:
            sizes = ", ".join(f"{name} {len(given[name][1])}" for name in self.features)
            raise InputError(f"{NAME}: features have different numbers of bags: {sizes}")
        return {
            dim: self._bags_of(held, given, pooling.rows) for dim, (pooling, held) in self._groups.items()
        }

    def _bags_of(
        self, held: list[tuple[str, TableConfig]], given: Mapping[str, Any], rows: ShardedRows
    ) -> Bags:
        columns, tables = [given[name] for name, _ in held], [table for _, table in held]

        def where(number: int, what: str = "") -> str:
            return f"{NAME}: table {tables[number].name}, feature {held[number][0]}{what}"

        ids = _joined([each[0] for each in columns], partial(where, what=", values"))
        every = _joined([each[1] for each in columns], partial(where, what=", lengths")).reshape(
            len(held), -1
        )
        weights = [each[2] for each in columns if len(each) > 2]
        sizes = np.array([each[0].numel() for each in columns])
        ends, totals = np.cumsum(sizes), every.sum(1)
        for number in np.flatnonzero((totals != sizes) | (every.min(1, initial=0) < 0)).tolist():
            said = f"lengths add up to {totals[number]}, and values are [{sizes[number]}]"
            if totals[number] == sizes[number]:
                said = f"bag {every[number].argmin()} has length {every[number].min()}; expected at least 0"
            raise InputError(f"{where(number)}: {said}")
        there, limits = np.flatnonzero(sizes), np.array([table.num_embeddings for table in tables])
        if len(ids):
            most = np.maximum.reduceat(ids.view(np.uint64), (ends - sizes)[there])  # negative: large
            for number in there[most >= limits[there].view(np.uint64)].tolist():
                values = ids[ends[number] - sizes[number] : ends[number]]
                check_ids(values, every[number], int(limits[number]), where(number))
        ids += np.repeat([self._starts[table.name] for table in tables], sizes)
        mean = np.array([table.pooling == "mean" for table in tables])
        for number, each in enumerate(columns):
            if len(each) > 2 and (mean[number] or each[2].shape != (sizes[number],)):
                raise InputError(
                    f"{where(number)}: weights are for sums, one for each of {sizes[number]} values"
                )
        if weights and len(weights) < len(held):
            raise InputError(f"{NAME}: some features have weights and others have none; pass ones")
        divisor = np.where(mean[:, None], np.maximum(every, 1), 1).reshape(-1) if mean.any() else None
        return Bags(
            rows.backend.collectives.rank,
            ids,
            every.reshape(-1),
            torch.cat(weights).to(rows.weight.device, accumulator(rows.dtype)) if weights else None,
            None if divisor is None else torch.from_numpy(divisor),
        )

    @property
    def rows(self) -> dict[int, ShardedRows]:
        """The rows of all tables of each width, by width."""
        return {dim: pooling.rows for dim, (pooling, _) in self._groups.items()}

    @collective(NAME)
    def gathered(self) -> dict[str, Tensor]:
        """Return TorchRec's state, {"embedding_bags.TABLE.weight": [rows, dim]}, on every rank. Collective."""
        found = {}
        for table in self.tables:
            start = self._starts[table.name]
            whole = self._groups[table.embedding_dim][0].rows.whole(start, start + table.num_embeddings)
            found[f"embedding_bags.{table.name}.weight"] = whole
        return found

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *how: Any) -> None:
        """Load all rows of all tables, as `gathered` and TorchRec have them, or those of this rank. Collective."""
        names = {f"{prefix}embedding_bags.{table.name}.weight": table for table in self.tables}
        found = names.keys() & state.keys()
        same_on_all(self._comm, f"{NAME}: tables to load", sorted(found))
        if found:
            with agreed(self._comm):
                for name, table in names.items():
                    expected = [table.num_embeddings, table.embedding_dim]
                    if (shape := dense_shape(state.get(name))) != expected:
                        raise InputError(
                            f"{NAME}: {name} is {shape}; expected a dense tensor of all rows {expected}"
                        )
            for name, table in names.items():
                start, given = self._starts[table.name], state[name]
                of = partial(lambda rows, at, first, last: rows[first - at : last - at], given, start)
                self.rows[table.embedding_dim].fill(of, start, start + table.num_embeddings)
            state = {name: value for name, value in state.items() if name not in names}
            state |= {f"{prefix}rows_{dim}": rows.weight for dim, rows in self.rows.items()}
        super()._load_from_state_dict(state, prefix, *how)

    @collective(NAME)
    def close(self) -> None:
        """Free the rows. Collective."""
        for pooling, _ in self._groups.values():
            pooling.rows.close()


def _scores(
    held: list[tuple[TableConfig, int]], score: Mapping[str, Score], first: int, last: int
) -> NDArray[Any]:
    """Return scores of rows first .. last - 1 of a width. held: its tables and their first rows' numbers."""
    found = [np.zeros(0, np.int8)]
    for table, start in held:
        low, high = max(first - start, 0), min(last - start, table.num_embeddings)
        if low < high:
            found.append(np.asarray(score[table.name](low, high)))
    return np.concatenate(found)


def _checked(table: Any) -> TableConfig:
    """Return a table as a TableConfig with its pooling as a word. Raises InputError for an invalid table."""
    missing = [each.name for each in fields(TableConfig) if not hasattr(table, each.name)]
    if missing:
        raise InputError(f"{NAME}: a table is a {type(table).__name__} without {', '.join(missing)}")
    if not isinstance(table.feature_names, Sequence) or isinstance(table.feature_names, str):
        raise InputError(
            f"{NAME}: feature_names of table {table.name} are {shown(table.feature_names)}; expected a list of names"
        )
    pooling = str(getattr(table.pooling, "value", table.pooling)).lower()  # TorchRec's is an enumeration
    made = TableConfig(
        table.name, table.num_embeddings, table.embedding_dim, tuple(table.feature_names), pooling
    )
    whole = all(isinstance(each, Integral) and each > 0 for each in (made.num_embeddings, made.embedding_dim))
    if not whole or pooling not in ("sum", "mean"):
        raise InputError(f"{NAME}: {made} has no rows, or its pooling is neither sum nor mean")
    return made


def _is_feature(given: Any) -> bool:
    """Return whether this is (values [E], lengths [B]) or (values, lengths, weights), of tensors."""
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        return False
    return all(isinstance(each, Tensor) for each in given) and given[0].dim() == given[1].dim() == 1


def _joined(tensors: list[Tensor], what: Callable[[int], str]) -> NDArray[np.int64]:
    """Return the integers of tensors, one after another, in an array of their own. Raises InputError for other types.

    One conversion of all costs a third of one for each.
    """
    kinds = {(each.dtype, each.device) for each in tensors}
    if len(kinds) == 1:
        return integers(torch.cat(tensors), lambda: what(0))
    return np.concatenate([integers(each, partial(what, number)) for number, each in enumerate(tensors)])


def _of_jagged(features: Any) -> dict[str, tuple[Tensor, ...]]:
    """Return a KeyedJaggedTensor as {feature: (values, lengths[, weights])}. Raises InputError for others."""
    names = ("keys", "values", "lengths", "weights_or_none")
    if not all(callable(getattr(features, name, None)) for name in names):
        kind = type(features).__name__
        raise InputError(
            f"{NAME}: the batch is a {kind}; expected {{feature: (values, lengths)}} or a KeyedJaggedTensor"
        )
    keys, lengths = list(features.keys()), features.lengths()
    if not keys or lengths.numel() % len(keys):
        raise InputError(f"{NAME}: the batch has {lengths.numel()} lengths of {len(keys)} features")
    lengths = lengths.reshape(len(keys), -1)
    ends = np.cumsum(integers(lengths, lambda: f"{NAME}: lengths").sum(1))[:-1]
    weights = features.weights_or_none()
    columns = [features.values().tensor_split(ends.tolist()), lengths.unbind()]
    if weights is not None:
        columns.append(weights.tensor_split(ends.tolist()))
    return dict(zip(keys, zip(*columns, strict=True), strict=True))
