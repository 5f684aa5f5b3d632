"""`mgg model`, `mgg doctor --calibrate` and `mgg train --as-ranks`: what they count, refuse and remember."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from pathlib import Path

import jobs
import numpy as np
import pytest
import reference
from command import refused

from mgg_hpc import config
from mgg_hpc.__main__ import main
from mgg_hpc.data import store, user_cache, writer
from mgg_hpc.errors import InputError
from mgg_hpc.plan.cost_model import System
from mgg_hpc.plan.row_ranges import edge_balanced
from mgg_hpc.runtime import calibration
from mgg_hpc.tools import calibrate, estimate

DESCRIBED = "ranks_a_node = 2\nmemory_gb_s = 1000\nlink_gb_s = 100\nnetwork_gb_s = 10\ntflops = 10\n"
HOSTS = 'kernels = "this"\nranks_a_node = 2\nnetwork_gb_s = 0.125\nget_us = 8\n'


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A user's cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mgg-hpc"


def measured(ranks: int = 2) -> System:
    return calibrate.system(np.linspace(1e-9, 2e-9, len(calibrate.COSTS)).tolist(), ranks)


def test_counts_and_times_of_a_described_cluster(rng, tmp_path, capsys):
    graph = jobs.blocks(300, seed=int(rng.integers(1000)))
    path, described = tmp_path / "graph.h5", tmp_path / "mine.toml"
    writer.write(path, graph)
    described.write_text(DESCRIBED)
    out = tmp_path / "model.json"
    assert main(["model", str(path), "--ranks", "1,4", "--system", str(described), "--json", str(out)]) == 0
    assert "mine.toml" in capsys.readouterr().out
    alone, four = json.loads(out.read_text())["jobs"]
    assert alone["transfers"]["halo"]["rows"] == 0
    assert set(four["transfers"]) == {"get", "halo"}  # pointers end at the node
    bounds = edge_balanced(graph.indptr, 4)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    rank = np.repeat(np.arange(4), np.diff(bounds))
    across = rank[source] != rank[destination]
    distinct = len(set(zip(rank[destination][across].tolist(), source[across].tolist(), strict=True)))
    # The first layer sums its 12 features, without a gradient; the second one its classes, both ways.
    widths = (12, graph.classes, graph.classes)
    assert four["transfers"]["get"]["rows"] == len(widths) * across.sum()
    assert four["transfers"]["halo"]["rows"] == len(widths) * distinct
    assert four["transfers"]["halo"]["bytes"] == distinct * 4 * sum(widths)
    assert all(each["epoch_ms"] > 0 for each in four["transfers"].values())
    assert main(["model", str(path), "--ranks", "8", "--system", "dgx-a100"]) == 0  # by data sheets


REFUSED = {
    "model g.h5 --system dgx-a10": "did you mean 'dgx-a100'",
    "model g.h5 --system key.toml": "unknown key memory_gbs; did you mean 'memory_gb_s'",
    "model g.h5 --system minus.toml": "tflops",
    "model g.h5 --system that.toml": "kernels",
    "model g.h5 --system hosts.toml": "did you mean 'network_gb_s'",
    "model g.h5 --system this": "mgg doctor --calibrate",
    "model g.h5 --system dgx-a100 --ranks 2;3": "'2;3'; expected numbers of 1 .. 65536",
    "model g.h5 --system dgx-a100 --json key.toml": "key.toml exists",
    "model g.h5 --ranks 70000": "'70000'; expected numbers",
    "model g.h5 --ranks " + "1" * 5000: "11...'; expected numbers",
    "train job.toml --as-ranks 4": "it needs --dry-run",
}


def test_what_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as cache:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        writer.write("g.h5", jobs.blocks())
        for name, text in {
            "key.toml": DESCRIBED + "memory_gbs = 3\n",
            "minus.toml": DESCRIBED.replace("tflops = 10", "tflops = -1"),
            "that.toml": HOSTS.replace("this", "that"),
            "hosts.toml": HOSTS.replace("gb_s", "gbs"),
            "job.toml": '[graph]\nfile = "g.h5"\n',
        }.items():
            Path(name).write_text(text)
        for words, message in REFUSED.items():
            assert message in refused(capsys, *words.split()), words
        calibration.save([measured(1)])
        assert "calibrated with one rank alone" in refused(capsys, "model", "g.h5", "--system", "this")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "g.h5"))  # before anything is measured
    assert "set XDG_CACHE_HOME" in refused(capsys, "doctor", "--calibrate")
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        calibration.save([measured(1)])


def test_a_rehearsal_without_a_calibration_counts_all_transfers(cache, tmp_path, capsys):
    job = tmp_path / "job.toml"
    writer.write(tmp_path / "graph.h5", jobs.blocks(300, seed=1))
    job.write_text('[graph]\nfile = "graph.h5"\n')
    assert main(["train", str(job), "--dry-run", "--as-ranks", "16"]) == 0
    out = capsys.readouterr().out
    assert all(f"│ {name} " in out for name in ("direct", "get", "halo")) and "no times" in out


def test_a_calibration_is_kept_and_scaled(cache):
    path = calibration.save([measured(1), measured(2)])
    assert path.parent == cache
    found = calibration.load()
    assert found.measured == [measured(1), measured(2)]
    assert (found.system(1), found.system(2)) == (measured(1), measured(2))
    eight = found.system(8)
    assert eight.ranks_a_node == 8 and eight.within == measured(2).within
    for name in ("byte", "operation"):
        assert getattr(eight, name) == pytest.approx(4 * getattr(measured(2), name))
    assert (eight.edge.row, eight.miss.byte) == pytest.approx((4e-9, 4 * measured(2).miss.byte))


@pytest.mark.parametrize("ranks", [1, 2])
def test_costs_are_those_that_epochs_were_made_of(rng, monkeypatch, tmp_path, ranks):
    """Epochs take what made-up costs say; what is found says the same of another graph. Ranks are not quite alike."""
    names = calibrate.COSTS
    placed = calibrate.system(range(len(names)), ranks)
    assert names.index("ns, halo, a byte") == placed.within["halo"].byte
    assert names.index("ns, miss, a row") == placed.miss.row and names[-1].startswith("ns, byte")
    wanted = calibrate.system(rng.uniform(1e-9, 1e-8, len(names)).tolist(), ranks)
    shapes = [(512, 8, 8), (64, 4, 16), (512, 8, 64), (2048, 2, 16), (2048, 8, 64), (1024, 32, 128)]
    shapes += [(128, 16, 32), (1024, 6, 24), (700, 20, 96), (300, 3, 48)]  # more than one rank has costs
    monkeypatch.setattr(calibrate.cores, "cache_bytes", lambda: 4 << 16)
    wanted = dataclasses.replace(wanted, cache_bytes=1 << 16)

    def output(number, *arguments):
        """Write the summaries of trainings that took what the wanted costs say."""
        for job in arguments[2:]:
            settings = config.load(Path(job))
            with store.open_graph(Path(settings.graph.file)) as file:
                shape = estimate.shape_of(file, settings.model, None, None)
                traffic = estimate.count(file, estimate.bounds_of(file, number), shape, None)
            seconds = estimate.predicted(wanted, shape, *traffic).epoch(settings.plan.transfer)
            folder = Path(settings.run.folder)
            folder.mkdir()
            (folder / "summary.json").write_text(json.dumps({"epoch_ms": {"min": 1e3 * seconds}}))

    monkeypatch.setattr(calibrate, "output", output)
    costs, error = calibrate.fit(calibrate.observe(ranks, tmp_path, shapes))
    assert error < 1e-3 and min(costs) >= 0
    another = calibrate.observe(ranks, tmp_path, [(1500, 12, 32)])
    assert len(another) == (3 if ranks > 1 else 1)
    for factors, seconds in another:
        assert np.dot(factors, costs) == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize("damage", ["text", "another version", "another processor", "a field less"])
def test_a_calibration_that_does_not_hold_is_ignored_with_a_word(cache, monkeypatch, damage):
    path = calibration.save([measured()])
    document = json.loads(path.read_text())
    if damage == "another processor":
        monkeypatch.setattr(calibration.cores, "processor", lambda: "another")
    elif damage == "another version":
        document["mgg"] = "0.0.1"
    else:
        del document["measured"][0]["segment"]["row"]
    user_cache.write(path.name, document)
    if damage == "text":
        path.write_text("{")
    with pytest.raises(InputError, match=r"ignored.*mgg doctor --calibrate"):
        calibration.load()


def cells(text: str, column: str) -> list[str]:
    """The cells of the last column of this name in printed tables."""
    lines = text.splitlines()
    heading = max(i for i, line in enumerate(lines) if re.search(rf"┃ +{column} ┃", line))
    at = [each.strip() for each in lines[heading].split("┃")].index(column)
    end = next(i for i in range(heading, len(lines)) if lines[i].startswith("└"))
    rows = [line.split("│") for line in lines[heading:end] if line.startswith("│")]
    return [row[at].strip() for row in rows]


def mebibytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 1024.0}[unit]


@pytest.mark.long
@pytest.mark.parametrize("transfer", ["direct", "halo"])
def test_ranks_are_rehearsed_as_they_are(cache, tmp_path, transfer):
    """What two ranks say of their plan and memory, one process says of them."""
    writer.write(tmp_path / "graph.h5", jobs.blocks(20_000, features=50))
    job = tmp_path / "job.toml"
    job.write_text('[graph]\nfile = "graph.h5"\n[model]\nhidden = 64\n')
    options = ("train", str(job), "--dry-run", "--set", f"plan.transfer={transfer}")
    real = jobs.run("launch", "-n", "2", *options).stdout
    played = jobs.run(*options, "--as-ranks", "2").stdout
    assert "no times: this host was not calibrated yet" in played
    assert cells(played, "halo nodes") == cells(real, "halo nodes")
    assert cells(played, "heap") == cells(real, "heap")
    for mine, theirs in zip(cells(played, "memory"), cells(real, "peak"), strict=True):
        assert mebibytes(mine) == pytest.approx(mebibytes(theirs), rel=0.1)


def test_hosts_like_this_one_are_joined_by_the_network_of_a_file(cache, tmp_path, capsys):
    calibration.save([measured(1), measured(2)])
    described = tmp_path / "hosts.toml"
    described.write_text(HOSTS)
    found = estimate.system_of(str(described), 6)
    assert (found.ranks_a_node, found.edge, found.within) == (2, measured(2).edge, measured(2).within)
    assert found.between["halo"].seconds(10, 64) == pytest.approx(640 / 0.125e9)
    assert found.between["get"].seconds(10, 64) == pytest.approx(80e-6)
    assert found.between["get"].seconds(10, 6400) == pytest.approx(64000 / 0.125e9)
    assert found.fixed["halo"] == pytest.approx(measured(2).fixed["halo"] + 30e-6)
    assert "direct" not in found.between and found.hides and found.halo_rounds is None
    assert estimate.system_of(str(described), 2) == calibration.load().system(2)  # which share a host
    graph, out = tmp_path / "graph.h5", tmp_path / "model.json"
    writer.write(graph, jobs.blocks(300, seed=1))
    assert main(["model", str(graph), "--ranks", "2,4", "--system", str(described), "--json", str(out)]) == 0
    near, far = json.loads(out.read_text())["jobs"]
    assert list(near["transfers"]) == ["direct", "get", "halo"] and list(far["transfers"]) == ["get", "halo"]
    assert "as described" in capsys.readouterr().out
