"""What a reader does first, as README and docs/start.md say it: files of their own, two ranks, predictions."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
from documents import ROOT, code
from jobs import run

pytestmark = pytest.mark.long
README = ROOT / "README.md"


def follow(page, folder) -> list[str]:
    """Run a page's `mgg` commands, one after another, and return them."""
    lines = [line.split(" #")[0] for line in code(page) if line.startswith("mgg ")]
    for line in lines:
        done = run(*shlex.split(line)[1:], folder=folder)
        assert done.returncode == 0, (line, done.stderr)
    return lines


def test_the_start_page_ends_with_a_class_for_each_node(tmp_path):
    assert len(follow(ROOT / "docs" / "start.md", tmp_path)) == 7
    table = (tmp_path / "classes.csv").read_text().splitlines()
    assert table[0] == "id,class" and len(table) == 2001


def test_readme_trains_on_files_of_text_and_in_python(tmp_path, rng):
    """Features are noise around a column for each of three classes, edges join nodes of a class."""
    nodes = 1000
    labels = rng.permutation(np.arange(nodes) % 3)
    ends = rng.integers(0, nodes, (6 * nodes, 2))
    edges = ends[labels[ends[:, 0]] == labels[ends[:, 1]]]
    np.savetxt(tmp_path / "edges.csv", edges, "%d", delimiter=",")
    np.savetxt(tmp_path / "x.csv", np.eye(3)[labels] + rng.normal(size=(nodes, 3)), delimiter=",")
    np.savetxt(tmp_path / "y.csv", labels, "%d")
    assert len(follow(README, tmp_path)) == 4
    predicted = np.loadtxt(tmp_path / "classes.csv", int, delimiter=",", skiprows=1)
    assert predicted[:, 0].tolist() == list(range(nodes)) and (predicted[:, 1] == labels).mean() > 0.8
    (program,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    printed = [run("launch", "-n", ranks, "train.py", folder=tmp_path).stdout for ranks in (1, 2)]
    losses = [float(loss) for text in printed for loss in re.findall(r"^loss ([\d.]+)$", text, re.M)]
    assert len(losses) == 2
    assert max(losses) == pytest.approx(min(losses), abs=1e-3) and max(losses) < 1
