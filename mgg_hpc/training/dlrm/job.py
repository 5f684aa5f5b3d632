"""A DLRM job on one rank: the model, its optimisers, and batches of a file of clicks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...config import DlrmSettings, Settings
from ...data.clicks.criteo import WORDS, Clicks
from ...data.clicks.store import ClickFile
from ...nn.embedding.optimizers import SGD, Adagrad, RowOptimizer, RowWiseAdagrad
from ...nn.embedding.rows import PLACING, check_memory, rank_bytes
from ...nn.tiered import ranks_of
from ...runtime import backends, mpi
from ...runtime.sampler import shuffled
from ...runtime.tiers.place import NEAR, bytes_of
from .model import DLRM, feature, table

SAMPLED = 1 << 18  # rows by whose categories rows of tables are placed, at least
SCORED = 45  # bytes that a row for tests takes at most: its logit and label, and where all of them are sorted

OPTIMIZERS: dict[str, type[RowOptimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
}


@dataclass(frozen=True, eq=False)
class ClickBatch:
    """This rank's part of a batch. dense: [b, 13]. bags: planned. y: [b]. total: number of rows on all ranks."""

    dense: Tensor
    bags: Any
    y: Tensor
    total: int


class DlrmJob:
    """A job's model and its data. Collective to make.

    file: open file of clicks, whose last share or log (dlrm.test) is for tests. Raises InputError, the same on all
    ranks, for settings that do not fit it.

    Attributes: rows: of all tables. optimizer: of the MLPs. steps: batches of an epoch.
    """

    def __init__(self, settings: Settings, comm: Any, file: ClickFile) -> None:
        self.settings, self.comm, self.file = settings, comm, file
        self.dlrm: DlrmSettings = settings.dlrm
        self.columns = [each - 1 for each in self.dlrm.columns] or list(range(WORDS))
        with mpi.agree(comm):
            self.train_rows = file.split(self.dlrm.test)
        self.steps = -(-self.train_rows // self.dlrm.batch_size)
        chosen = backends.choose(settings.run.backend, comm)
        self.device = "cuda" if backends.needs_gpus(chosen.name) else "cpu"
        with mpi.agree(comm):
            torch.set_num_threads(mpi.threads(comm, settings.run.threads))
        torch.manual_seed(settings.train.seed)
        shape, optimizer = tables_of(self.dlrm)
        if self.device == "cpu" and not self.dlrm.memory:
            check_memory(ranks_of(comm), [shape], optimizer, torch.float32, copied=True)
        widths = self.dlrm.rows, self.dlrm.dim, self.dlrm.bottom, self.dlrm.top
        how = {"device": self.device, "comm": comm, **self._tiers()}
        self.model = DLRM(len(self.columns), *widths, optimizer, **how)
        (self.rows,) = self.model.tables.rows.values()
        self.model.to(self.device)
        kind = torch.optim.SGD if self.dlrm.optimizer == "sgd" else torch.optim.Adagrad
        self.optimizer = kind(self.model.shared, lr=self.dlrm.learning_rate)

    def _tiers(self) -> dict[str, Any]:
        """Return where rows of the tables lie: of those in memory, a sample of the batches reads most. Collective."""
        memory = bytes_of(NEAR, self.dlrm.memory)
        if not memory:
            return {}
        size, chosen = self.dlrm.batch_size, self._order(1)
        with mpi.agree(self.comm):
            sample = [
                hashed(self.file.read(at, min(at + size, self.train_rows)), self.dlrm.rows)
                for at in chosen[: -(-SAMPLED // size)]
            ]
            read = np.concatenate(sample, 1)

        def counted(ids: Any) -> Callable[[int, int], Any]:
            return lambda first, last: np.bincount(
                ids[(ids >= first) & (ids < last)] - first, minlength=last - first
            )

        score = {table(each): counted(read[column]) for each, column in enumerate(self.columns)}
        return {"near": memory, "folder": self.dlrm.scratch or None, "score": score}

    def batches(self, epoch: int, first: int = 0) -> Iterator[ClickBatch]:
        """Yield the batches of an epoch, counted from 1, from batch ``first`` on; a thread makes the next one.

        A batch is consecutive rows, the same on any number of ranks, and batches come in an order that is drawn by
        seed and epoch.
        """
        return self._ahead(self._order(epoch)[first:], self.train_rows)

    def test_batches(self) -> Iterator[ClickBatch]:
        """Yield the rows for tests in order, or all rows if there are none."""
        first, last = self.train_rows % self.file.rows, self.file.rows
        return self._ahead(range(first, last, self.dlrm.batch_size), last)

    def _order(self, epoch: int) -> list[int]:
        """Return the first rows of an epoch's batches in their order."""
        order = shuffled(np.arange(self.steps), self.settings.train.seed, epoch)
        return (order * self.dlrm.batch_size).tolist()

    def _ahead(self, starts: Sequence[int], end: int) -> Iterator[ClickBatch]:
        """Yield the batches that begin at these rows and have none from row ``end`` on."""
        with ThreadPoolExecutor(1, "clicks") as thread:
            waiting = [thread.submit(self._batch, at, end) for at in starts[:1]]
            for number in range(len(starts)):
                with mpi.agree(self.comm):
                    found = waiting.pop().result()
                waiting += [thread.submit(self._batch, at, end) for at in starts[number + 1 : number + 2]]
                yield found

    def _batch(self, first: int, end: int) -> ClickBatch:
        """Return this rank's part of the batch that begins at row ``first``."""
        rank, ranks, total = self.comm.rank, self.comm.size, min(self.dlrm.batch_size, end - first)
        clicks = self.file.read(first + total * rank // ranks, first + total * (rank + 1) // ranks)
        one = torch.ones(len(clicks.label), dtype=torch.int64)
        rows = hashed(clicks, self.dlrm.rows)
        features = {
            feature(each): (torch.from_numpy(rows[column]), one) for each, column in enumerate(self.columns)
        }
        dense = torch.from_numpy(np.log1p(np.maximum(clicks.dense, 0), dtype=np.float32)).to(self.device)
        y = torch.from_numpy(clicks.label.astype(np.float32)).to(self.device)
        return ClickBatch(dense, self.model.tables.plan(features), y, total)

    def close(self) -> None:
        """Free the tables. Collective."""
        self.model.tables.close()


def tables_of(dlrm: DlrmSettings) -> tuple[tuple[int, int], RowOptimizer]:
    """Return the rows of all tables together, their columns, and their optimiser."""
    shape = (len(dlrm.columns) or WORDS) * dlrm.rows, dlrm.dim
    return shape, OPTIMIZERS[dlrm.optimizer](dlrm.learning_rate)


def node_memory(dlrm: DlrmSettings, scored: int, ranks: int, here: int, *, gpus: bool) -> int:
    """Return the bytes that tables, their copy for checkpoints and scores take on a node with ``here`` of the ranks.

    scored: number of rows for tests. gpus: the tables themselves lie on GPUs.
    """
    shape, optimizer = tables_of(dlrm)
    scores = SCORED * -(-scored // ranks)
    if dlrm.memory:  # the copy is a file
        return here * (scores + bytes_of(NEAR, dlrm.memory) + PLACING * -(-shape[0] // ranks))
    copies = 1 if gpus else 2
    return here * (scores + copies * rank_bytes([shape], optimizer, torch.float32, ranks))


def hashed(clicks: Clicks, rows: int) -> Any:
    """Return a table's row of each category, int64 [26, n]: 0 where it is missing, else 1 + word mod (rows - 1)."""
    words = clicks.category.T.astype(np.int64)
    return np.where(words == 0, 0, 1 + words % (rows - 1))
