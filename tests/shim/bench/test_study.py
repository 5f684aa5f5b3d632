"""`mgg study --device cuda` with the shim in place of a GPU."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from command import mgg

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench.harness import gpu as harness
from mgg_hpc.tools.bench.harness import graphs, sums
from mgg_hpc.tools.bench.overlap import gpu_transfers
from mgg_hpc.tools.study import gpu, names, settings, space, table

pytestmark = pytest.mark.long


@pytest.fixture
def study(device, tmp_path, capsys):
    """Run `mgg study ... --device cuda`, and return the rows of its CSV. The picture is found.png."""

    def run(*words: object) -> list[table.Row]:
        files = [f"--csv={tmp_path / 'found.csv'}", f"--plot={tmp_path / 'found.png'}"]
        assert mgg("study", *words, "--device=cuda", *files) == 0, capsys.readouterr().err
        assert (tmp_path / "found.png").stat().st_size > 20_000
        return table.read(tmp_path / "found.csv")

    return run


@pytest.mark.parametrize("name", gpu.WAYS)
def test_a_study_has_a_row_for_each_variant(study, name):
    rows = study(name, "uniform:6:4", "--widths=5", "--turns=2", "--share=0.3")
    graph = graphs.read("uniform:6:4")
    own = graph.nodes - round(0.3 * graph.nodes)
    read = graph.indices[: graph.indptr[own]]
    remote = read[read >= own]
    wanted = [names.ON_GPU[way] for way in gpu.WAYS[name]]
    assert [row["variant"] for row in rows][: len(wanted)] == wanted
    crossing = {
        "halo": len(np.unique(remote)),
        "bulk": len(np.unique(remote)),
        "ring": graph.nodes - own,
        "sums": 0,
    }
    for row in rows:
        assert (row["local_edges"], row["remote_edges"]) == (len(read) - len(remote), len(remote))
        assert (row["halo_rows"], row["turns"]) == (crossing["halo"], 2)
        rows_moved = next((n for key, n in crossing.items() if row["variant"].startswith(key)), len(remote))
        assert row["crossing_bytes"] == 32 * rows_moved, row["variant"]
        assert row["times_first"] == pytest.approx(
            row["median_ms"] / rows[0]["median_ms"], rel=0.02, abs=1e-3
        )


def test_separate_warps_move_each_edges_row_and_sum_the_same(device, engine):
    graph = graphs.read("rmat:6:4")
    subject = gpu_transfers.Subject(device, graph, 0.4, RowFormat(np.dtype(np.float32), 8))
    own = subject.plans[0].destinations
    way = subject.way("get-separate")
    engine.module.shim_counts()
    way.call()
    assert engine.module.shim_counts()["crossed"] == 32 * int(
        (graph.indices[: graph.indptr[own]] >= own).sum()
    )
    assert subject.wrong(way) == 0
    way.rows[0].local[:] = 0  # which the first PE's local sums do not read
    assert subject.wrong(way) == 0
    way.rows[1].local[:] += 1
    assert subject.wrong(way) > 0


@pytest.mark.parametrize("share", [0, 0.3])
def test_the_design_space_has_both_maps_and_the_searchs_path(study, monkeypatch, share):
    monkeypatch.setattr(harness, "MOST_SETS", 2)
    knobs = {"ps": (4, 16), "dist": (2, 4), "wpb": (4, 8)}
    monkeypatch.setattr(gpu, "KNOBS", knobs)
    words = ("rmat:5:4", "--width=5", "--turns=1", f"--share={share}", "--transfer=halo")
    rows = study("design-space", *words)
    mapped = {
        (row["ps_edges"], row["dist_edges"], row["wpb_partitions"])
        for row in rows
        if row["variant"] == space.MAP
    }
    steps = [row for row in rows if "step" in row]
    assert [row["step"] for row in steps] == list(range(len(steps)))
    assert steps[0]["variant"] == "search: start"
    assert mapped >= set(itertools.product(knobs["ps"], knobs["dist"], [8]))
    best = {ps for ps, _, wpb in mapped if wpb == 4}
    assert len(best) == 1
    assert mapped >= set(itertools.product(best, knobs["dist"], knobs["wpb"]))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda out, row: out[row] + 1, "4 sums differ from SciPy's"),
        (lambda out, row: np.nan, "1 rows were not summed"),
    ],
    ids=["wrong", "unwritten"],
)
def test_settings_that_sum_something_else_are_an_error(device, monkeypatch, change, wrong):
    """Of rows that are compared, and of one that is not."""
    monkeypatch.setattr(sums, "SAMPLE", 4)
    graph = graphs.read("uniform:5:4")
    picked = sums.sample(graph.indptr)
    row = picked[0] if "differ" in wrong else np.setdiff1d(np.arange(graph.nodes), picked)[0]

    def changed(self, setting, *, made=settings.Runs.run):
        run = made(self, setting)

        def call():
            run.calls[-1]()
            run.out[row] = change(run.out, row)

        return dataclasses.replace(run, calls=[call])

    monkeypatch.setattr(settings.Runs, "run", changed)
    with pytest.raises(AssertionError, match=f"get with ps .*, dist .*, wpb .*: {wrong}"):
        gpu.design_space(table.Table("design-space", {}), device, graph, 4, 0.0, "get", 1)


def test_a_share_from_which_nothing_comes(device):
    with pytest.raises(InputError, match=r"--share 0\.001: no edge of uniform5 comes from there"):
        gpu.design_space(
            table.Table("design-space", {}), device, graphs.read("uniform:5:4"), 4, 0.001, "get", 1
        )
