"""Predictions for a DGX A100 beside MGG's published times of a 1-layer GCN with 16 columns on its 8 GPUs.

MGG (Wang et al., OSDI '23), table 4; sizes of the graphs from its table of data sets. The graphs themselves are not
here: two stand-ins have their nodes and edges, one with sources drawn evenly, and one with skewed ones, where a tenth
of the nodes are the sources of almost half of the edges. Neither has a real graph's communities, so both move more
rows across GPUs than the graph would. What a time of the table includes is not known exactly: here it is the forward
pass, the product of the features with the weights and one aggregation.

    python benchmarks/model_published.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import command, run

from mgg_hpc.plan import cost_model, counts, system
from mgg_hpc.plan.cost_model import Layer
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench.results import Results, output_files

RANKS, WIDTH = 8, 16
# Nodes, edges, features, and the published milliseconds.
GRAPHS = {
    "reddit": (232_965, 114_615_892, 602, 6.95),
    "enwiki-2013": (4_203_323, 202_623_226, 300, 12.79),
    "ogbn-products": (2_449_029, 61_859_140, 100, 3.35),
    "ogbn-proteins": (132_534, 39_561_252, 8, 2.66),
    "com-orkut": (3_072_441, 117_185_083, 128, 17.20),
}
SKEW = {"even": 1.0, "skewed": 3.0}  # a source is nodes * u ** skew, where u is even in 0 .. 1


def counted(nodes: int, edges: int, skew: float) -> counts.Traffic:
    """Count a stand-in of so many nodes and edges, one rank's edges at a time."""
    bounds = np.arange(RANKS + 1, dtype=np.int64) * nodes // RANKS
    spread = np.random.default_rng(1).permutation(nodes).astype(np.int32)

    def read(rank: int) -> counts.Slice:
        rng, rows = np.random.default_rng(rank), int(bounds[rank + 1] - bounds[rank])
        indptr = np.arange(rows + 1, dtype=np.int64) * (edges // RANKS) // rows
        drawn = rng.random(int(indptr[-1]), dtype=np.float32) ** np.float32(skew) * np.float32(nodes)
        return indptr, spread[np.minimum(drawn.astype(np.int32), nodes - 1)]

    return counts.of_all_ranks(bounds, read, 1)


@command(__doc__)
@output_files(pictures=False)
def main(files: tuple[Path, ...]) -> None:
    results = Results("forward of a 1-layer GCN, 8 x A100: predicted, and published by MGG")
    where = system.of_cluster(system.named("dgx-a100"), RANKS)
    row_bytes = RowFormat(np.dtype(np.float32), WIDTH).row_bytes
    for name, (nodes, edges, features, published) in GRAPHS.items():
        for kind, skew in SKEW.items():
            traffic = counted(nodes, edges, skew)
            product = Layer(row_bytes, 0, 2.0 * features * WIDTH, 4.0 * (features + WIDTH))
            before = cost_model.dense(where, max(each.rows for each in traffic.ranks), product)
            times = cost_model.aggregation(where, traffic, row_bytes)
            row = {"graph": name, "nodes": nodes, "edges": edges, "variant": kind}
            row |= {f"{way}_ms": round(1e3 * (before + times[way]), 2) for way in ("get", "halo")}
            share = traffic.rows("halo").sum() / max(1, traffic.rows("get").sum())
            results.rows.append(
                row | {"halo_rows_an_edge": round(float(share), 3), "published_ms": published}
            )
            results.write(files)
    results.show()


if __name__ == "__main__":
    run(main)
