"""What is known of the batches that a process has trained on."""

from __future__ import annotations

from dataclasses import dataclass

from ...nn.sampling.batch import Batch


@dataclass
class Counts:
    """Of the batches of this process, on this rank: their number, edges and input rows, and seconds of waiting."""

    batches: int = 0
    edges: int = 0
    rows: int = 0
    waited: float = 0.0

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.batches += 1
        self.edges += batch.edges
        self.rows += batch.blocks[0].rows
