"""Test accuracy over seeds: the graphs and models that papers published, and handwritten digits.

Public splits where there are some; elsewhere 20 training and 30 validation nodes a class, drawn anew for each seed
(Shchur et al., 2018). The weights of the best validation epoch are tested. Everything on one rank. Settings:

    - GCN on Cora, Citeseer and Pubmed: Kipf and Welling (ICLR 2017): 2 layers, 16 hidden units, dropout 0.5, weight
      decay 5e-4 on the first layer, learning rate 0.01, 200 epochs, features normalised by row.
    - GAT there: Velickovic et al. (ICLR 2018): 2 layers, 8 heads of 8, dropout 0.6 of features and attention, weight
      decay 5e-4 on all layers, learning rate 0.005; Pubmed 8 output heads, weight decay 1e-3, learning rate 0.01.
    - The others: 64 hidden units, as Shchur et al. have them. What was chosen otherwise was chosen by validation
      accuracy.

    python benchmarks/accuracy.py
    python benchmarks/accuracy.py --cases cora,cora-gat,digits --seeds 3 -o accuracy.json

Exit code 1 if a mean, or the worst seed where one is bounded, misses its target.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import real_graphs
from harness import command, options, run, workers

from mgg_hpc import config
from mgg_hpc.errors import FAILED
from mgg_hpc.runtime import mpi
from mgg_hpc.tools.bench.results import Results, Row, output_files
from mgg_hpc.training.job import build
from mgg_hpc.training.train import fit


@dataclass(frozen=True)
class Case:
    """A graph, what it is trained with, and what must come out: accuracies in percent.

    model, train: keys of the job file's sections that are not as in a job file that leaves them out. published: as in
    the papers above, or for GraphSAGE on Cora as in DGL's examples.
    """

    graph: str
    published: float
    target: float
    seeds: int = 10
    worst: float = 0.0
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)


ROW = {"normalize_features": "row"}
GAT = {"name": "gat", "hidden": 8, "heads": 8, "dropout": 0.6, "attention_dropout": 0.6}
GAT_TRAIN = {"epochs": 1000, "patience": 100, "weight_decay_layers": "all"}
WIDE = {"hidden": 64}
SAGE = {"name": "sage", "hidden": 64}

CASES = {
    "cora": Case("cora", 81.5, 80.5, train=ROW),
    "citeseer": Case("citeseer", 70.3, 69.5, train=ROW),
    "pubmed": Case("pubmed", 79.0, 78.2, train=ROW),
    "digits": Case("digits", 97.2, 96.7, seeds=8, worst=95.0, model=WIDE),
    "cora-sage": Case("cora", 83.3, 80.5, model=SAGE | {"hidden": 16}, train=ROW),
    "cora-gat": Case("cora", 83.0, 82.0, model=GAT, train=ROW | GAT_TRAIN | {"learning_rate": 0.005}),
    "pubmed-gat": Case(
        "pubmed", 79.0, 77.5, model=GAT | {"output_heads": 8}, train=ROW | GAT_TRAIN | {"weight_decay": 1e-3}
    ),
    "amazon_computers-gcn": Case("amazon_computers", 82.6, 80.5, model=WIDE),
    "amazon_computers-sage": Case(
        "amazon_computers", 82.4, 80.5, model=SAGE | {"norm": "batch", "dropout": 0.8}, train={"epochs": 150}
    ),
    "amazon_computers-gat": Case(
        "amazon_computers",
        78.0,
        78.0,
        model=GAT | {"dropout": 0.5, "attention_dropout": 0.0},
        train={"epochs": 100, "weight_decay_layers": "all"},
    ),
    "coauthor_physics-gcn": Case("coauthor_physics", 92.8, 91.5, model=WIDE, train={"epochs": 60}),
    "coauthor_physics-sage": Case("coauthor_physics", 93.0, 91.5, model=SAGE, train=ROW | {"epochs": 60}),
    "coauthor_physics-gat": Case(
        "coauthor_physics", 92.5, 91.0, model=GAT, train={"epochs": 60, "weight_decay_layers": "all"}
    ),
}


@command(__doc__)
@options.words("cases", CASES, "Graphs, with a model each.")
@click.option("--seeds", type=click.IntRange(1), help="Runs of each. [default: 10, of digits 8]")
@output_files(pictures=False)
def main(cases: list[str], seeds: int | None, files: tuple[Path, ...]) -> int:
    results = Results("test accuracy in percent")
    with workers.workspace() as folder:
        for name in cases:
            results.rows.append(measured(name, seeds or CASES[name].seeds, folder))
            results.write(files)
    results.show()
    return FAILED if any(row["verdict"] == "missed" for row in results.rows) else 0


def measured(name: str, seeds: int, folder: Path) -> Row:
    """Train with each seed; return the row of a case."""
    case, began = CASES[name], time.perf_counter()
    files = [real_graphs.write_split(case.graph, folder, seed) for seed in range(seeds)]
    found = [percent_right(file, case, seed) for seed, file in enumerate(files)]
    mean, worst = statistics.mean(found), min(found)
    return {
        "case": name,
        "seeds": seeds,
        "mean": round(mean, 3),
        "std": round(statistics.stdev(found), 3) if seeds > 1 else 0.0,
        "worst": round(worst, 3),
        "published": case.published,
        "target": case.target,
        "seconds": round(time.perf_counter() - began, 1),
        "verdict": "reached" if mean >= case.target and worst >= case.worst else "missed",
    }


def percent_right(file: Path, case: Case, seed: int) -> float:
    """Return the percentage of the test rows that the chosen weights of one run classify rightly."""
    tree = {
        "graph": {"file": str(file)},
        "run": {"threads": 1},  # these graphs are small: a second thread gains little
        "model": case.model,
        "train": case.train | {"seed": seed},
    }
    job = build(config.from_tree(tree, "accuracy"), mpi.world())
    history = fit(job, job.graph(), None)
    job.backend.memory.close()
    return 100 * history.scores.test


if __name__ == "__main__":
    run(main)
