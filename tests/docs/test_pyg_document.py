"""docs/pyg.md: its table has each convolution once; PyG's example, and checks of models, as a user runs them."""

from __future__ import annotations

import pages
import pyg_convs
import pytest
from jobs import python, run

CHECKED = """
import sys

import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data

import mgg_hpc as mgg


class Net(torch.nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.conv, self.norm, self.wrong = pyg.GATConv(8, 3, dropout=0.5), torch.nn.BatchNorm1d(8), wrong

    def forward(self, x, edge_index):
        x = torch.nn.functional.dropout(self.norm(x), training=self.training)
        return self.conv(x.sort(0).values if self.wrong else x, edge_index)


if __name__ == "__main__":
    torch.manual_seed(1)
    data = Data(x=torch.randn(50, 8), edge_index=torch.randint(0, 50, (2, 300)))
    try:
        print(mgg.check(Net(len(sys.argv) > 1), data))
    except mgg.InputError as error:
        sys.exit(str(error))
"""


def test_the_table_has_each_convolution_once():
    found = [name for names in pyg_convs.documented().values() for name in names]
    assert sorted(found) == sorted(pyg_convs.CONVS)


@pytest.mark.long
@pytest.mark.parametrize(("example", "given"), [("gcn2", ["blocks.h5"]), ("rgcn", ["--nodes", "800"])])
def test_examples_of_pyg_print_the_same_on_one_rank_and_on_two(tmp_path, example, given):
    graph = "--nodes 400 --classes 4 --degree 5 --homophily 0.5 --seed 1 -o blocks.h5"
    assert run("generate", "sbm", *graph.split(), folder=tmp_path).returncode == 0
    script = pages.ROOT / "examples" / f"pyg_{example}.py"
    one, two = (run("launch", "-n", n, script, *given, "--epochs", "20", folder=tmp_path) for n in ("1", "2"))
    assert one.returncode == two.returncode == 0, two.stderr
    assert one.stdout == two.stdout and float(one.stdout.split()[-1]) > 0.6


@pytest.mark.long
def test_models_are_checked_on_two_ranks(tmp_path):
    (tmp_path / "mine.py").write_text(CHECKED)
    right, wrong = (python("mine.py", *given, folder=tmp_path) for given in ((), ("wrong",)))
    assert right.returncode == 0 and right.stdout.startswith("equal on 2 ranks: outputs and gradients"), (
        right.stderr
    )
    assert wrong.returncode == 1 and wrong.stderr.startswith("Net: sort: works along dimension 0"), (
        wrong.stderr
    )
