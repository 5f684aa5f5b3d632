"""Numbers of batches, edges and rows that a process has trained on."""

from __future__ import annotations

from dataclasses import dataclass

from ...nn.sampling.batches import Batch


@dataclass
class Counts:
    """Sums over the batches that this rank has trained on in this process.

    batches: their number. edges: of all blocks. rows: of the input. waited: seconds until batches were sampled.
    """

    batches: int = 0
    edges: int = 0
    rows: int = 0
    waited: float = 0.0

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.batches += 1
        self.edges += batch.edges
        self.rows += batch.blocks[0].rows
