"""`mgg bench sweep --device cuda` with the shim in place of a GPU."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.__main__ import main
from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench.harness import gpu, graphs, sums
from mgg_hpc.tools.bench.sweep import gpu as sweep_gpu
from mgg_hpc.tools.bench.sweep import settings
from mgg_hpc.tools.bench.sweep.settings import Run, Setting

pytestmark = pytest.mark.long

FLOAT = np.dtype(np.float32)
KNOBS = {"ps": [1, 2, 16], "dist": [1, 4], "wpb": [2, 8, 32]}


@pytest.fixture(autouse=True)
def few_sets(monkeypatch):
    """Few sets of rows are enough here."""
    monkeypatch.setattr(gpu, "MOST_SETS", 2)


def cells_of(found):
    return {Setting(c["transfer"], c["ps"], c["dist"], c["wpb"]): c for c in found["cells"]}


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_whole_run(bench, tmp_path, share):
    knobs = [f"--{name}={','.join(map(str, values))}" for name, values in KNOBS.items()]
    found = bench("sweep", "rmat:6:8", "--width=33", f"--share={share}", "--seconds=600", "--turns=2", *knobs)
    cells = cells_of(found)
    grid = set(itertools.product(sweep_gpu.TRANSFERS, *KNOBS.values()))
    defaults = {"direct": (16, 4, 8), "halo": (16, 4, 8), "get": (7, 4, 8)}
    assert set(cells) == {Setting(*each) for each in grid} | {Setting("get", 7, 4, 8)}
    graph = graphs.read("rmat:6:8")
    own = graph.nodes - round(share * graph.nodes)
    degree = np.diff(graph.indptr)[:own]
    far = np.bincount(
        np.repeat(np.arange(own), degree), graph.indices[: degree.sum()] >= own, minlength=own
    ).astype(int)
    for setting, cell in cells.items():
        ps, dist, wpb = setting.ps, setting.dist, setting.wpb
        workers = 2 * wpb  # 33 values are 9 packs of 16 bytes: a worker has 16 lanes
        shared = {"halo": 0, "get": workers * dist * (ps * 256 + 8) + 16}
        shared["direct"] = (
            wpb * (4 * 32 * 16 + 4 * 8 * 8) if share else 0
        )  # four rows, and barriers for eight workers
        if shared[setting.transfer] > 232_448:
            assert cell["refused"].startswith(f"plan.ps = {ps}: a block takes {shared['get']:,} bytes")
        elif wpb == 32:
            assert cell["refused"].startswith("plan.wpb = 32: a block of 1024 threads, but shim's registers")
        else:
            model, ratio = cell["model"], cell["over_default"]
            partitions = max((-(-part // ps)).sum() for part in (degree - far, far))
            partitions = max(partitions, (-(-(degree - far) // ps)).sum() + (degree == 0).sum())
            assert model["warps"] == math.ceil(math.ceil(partitions / dist) / 2)
            assert model["work_per_warp"] == 2 * ps * 33 * dist
            assert model["shared_bytes"] == shared[setting.transfer]
            assert model["resident"] >= cell["launched"]["resident"] >= 1
            assert ratio["min"] <= ratio["median"] <= ratio["max"]
            assert (ratio["max"] == 1) == ((ps, dist, wpb) == defaults[setting.transfer])
    for transfer, of in found["transfers"].items():
        assert tuple(of["default"].values()) == (transfer, *defaults[transfer])
        times = {s: c["over_default"]["median"] for s, c in cells.items() if "ms" in c}
        every = {s: each for s, each in times.items() if s.transfer == transfer}
        assert Setting(**of["best"]) == min(every, key=every.get)  # the default may be, beside the grid
        inside = [setting for setting in every if setting.ps != 7]
        assert (of["measured"], of["refused"]) == (len(inside), len(grid) // 3 - len(inside))
    for word in ("rmat6, float32 x 33", "over the default", "what the GPU cannot hold"):
        assert word in found["printed"]
    assert "| get (default) | 7, 4, 8 |" in found["markdown"]
    assert main(["bench", "draw", str(tmp_path / "found.json"), str(tmp_path / "again.png")]) == 0
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "found.png").read_bytes()
    assert (tmp_path / "found.png").stat().st_size > 20_000


def test_half_rows_and_a_run_without_time(bench, tmp_path):
    """Every other value is there all the same, once each; and the picture has gaps."""
    rows = ("--dtype=bfloat16", "--width=5", "--transfer=halo,direct")
    knobs = ("--ps=1,2,4", "--dist=2", "--wpb=1,4,8,12")
    found = bench("sweep", "uniform:5:8", *rows, *knobs, "--seconds=0", "--turns=2")
    coarse = {Setting(t, ps, 2, wpb) for t in ("direct", "halo") for ps in (1, 4) for wpb in (1, 8)}
    assert set(cells_of(found)) == coarse | {Setting(t, 16, 4, 8) for t in ("direct", "halo")}
    for transfer in ("halo", "direct"):
        assert f"{transfer}: the time was up after 4 of 12 settings" in found["notes"]
    assert (tmp_path / "found.png").stat().st_size > 10_000


class Drawn:
    """Runs that take what they are told to, on a machine that changes its pace from group to group."""

    def __init__(self, rng, cost):
        self.rng, self.cost, self.pace, self.taken = rng, cost, 1.0, []
        self.device = SimpleNamespace(clock=SimpleNamespace(ms=lambda calls: calls[0]()))

    def default(self, transfer):
        return Setting(transfer, 16, 4, 8)

    def run(self, setting):
        self.taken.append(setting)
        launched = SimpleNamespace(blocks=1, resident=1)
        return Run(setting, [lambda: self.pace * self.cost(setting)], np.zeros((1, 1), np.float32), launched)

    def model(self, setting):
        return {}

    def drop(self, kept):
        self.pace = self.rng.uniform(0.2, 5)


def test_the_best_is_found_before_all_is_measured(rng, monkeypatch):
    """Times are a valley whose lowest setting is drawn; each setting is measured once."""
    knobs = {"ps": (1, 2, 4, 8, 16, 32), "dist": (1, 2, 4, 8, 16), "wpb": (1, 2, 4, 6, 8, 12, 16)}
    for _ in range(20):
        best = {name: float(np.log2(rng.choice(values))) for name, values in knobs.items()}

        def cost(setting, best=best):
            return 1 + sum(abs(np.log2(getattr(setting, name)) - best[name]) for name in knobs)

        runs = Drawn(rng, cost)
        nothing = np.zeros(0)
        sweep = sweep_gpu.Sweep(runs, ["get"], knobs, 3, math.inf, nothing, nothing, nothing)
        monkeypatch.setattr(sweep, "checked", runs.run)
        sweep.begin()
        sweep.measure("coarse", sweep.coarse(), whole=True)
        while beside := sweep.beside_best():
            sweep.measure("around the best", beside)
        found = sweep.best("get")
        assert {name: math.log2(getattr(found, name)) for name in knobs} == best
        assert len(runs.taken) == len(set(runs.taken))
        assert len(runs.taken) < math.prod(map(len, knobs.values()))


def test_a_grid_that_the_gpu_cannot_hold(bench):
    """The default is there all the same."""
    knobs = ("--ps=4,8", "--dist=2", "--wpb=32")
    found = bench("sweep", "uniform:5:4", "--width=4", "--transfer=halo", *knobs, "--seconds=60", "--turns=2")
    of = found["transfers"]["halo"]
    assert of["best"] == of["default"] and (of["measured"], of["refused"]) == (0, 2)
    assert ["ms" in cell for cell in found["cells"]] == [False, False, True]


def test_settings_that_sum_something_else_are_an_error(device, monkeypatch):
    def wrong(self, setting, *, made=settings.Runs.run):
        run = made(self, setting)

        def call():
            run.calls[-1]()
            run.out[3] += 1

        return dataclasses.replace(run, calls=[call])

    monkeypatch.setattr(settings.Runs, "run", wrong)
    graph, knobs = graphs.read("uniform:5:4"), {"ps": [4], "dist": [2], "wpb": [2]}
    with pytest.raises(AssertionError, match="get with ps 6, dist 4, wpb 8: 4 sums differ from SciPy's"):
        sweep_gpu.swept(device, graph, RowFormat(FLOAT, 4), ["get"], knobs, 0.0, 60, 1)


def test_rows_that_are_not_compared_must_have_been_summed(device, monkeypatch):
    monkeypatch.setattr(sums, "SAMPLE", 4)
    graph, knobs = graphs.read("uniform:5:4"), {"ps": [4], "dist": [2], "wpb": [2]}
    picked = sums.sample(graph.indptr)
    assert len(picked) < graph.nodes
    left_out = int(np.setdiff1d(np.arange(graph.nodes), picked)[0])

    def unwritten(self, setting, *, made=settings.Runs.run):
        run = made(self, setting)

        def call():
            run.calls[-1]()
            run.out[left_out] = float("nan")

        return dataclasses.replace(run, calls=[call])

    monkeypatch.setattr(settings.Runs, "run", unwritten)
    with pytest.raises(AssertionError, match="get with ps 6, dist 4, wpb 8: 1 rows were not summed"):
        sweep_gpu.swept(device, graph, RowFormat(FLOAT, 4), ["get"], knobs, 0.0, 60, 1)


def test_a_share_from_which_nothing_comes(device):
    graph = graphs.read("uniform:5:4")
    with pytest.raises(InputError, match=r"--share 0\.001: no edge of uniform5 comes from there"):
        sweep_gpu.swept(device, graph, RowFormat(FLOAT, 4), ["get"], KNOBS, 0.001, 60, 1)
