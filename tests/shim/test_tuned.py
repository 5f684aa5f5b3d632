"""The search for ps, dist, wpb and far_ps over the shim: its sums, what they leave in memory, and runs that search."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path

import cases
import jobs
import numpy as np
import pytest
import reference
from gpu.pes import table
from gpu.pes.engine import SMALL
from gpu.pes.played import Played

from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.training.tuning.tuner import LONGEST, WARM_UP

REACH = {"near": lambda rank, peer: True, "far": lambda rank, peer: rank == peer}


@pytest.mark.long
@pytest.mark.parametrize(("transfer", "reach"), [("direct", "near"), ("get", "far"), ("halo", "near")])
def test_settings_that_were_tried_leave_no_memory_behind(rng, engine, transfer, reach):
    """A setting leaves as much free as when fewer had been tried, but for the few blocks that an exchange keeps; and
    sums are right at each."""
    case = cases.hub(rng, 2)
    x = table.whole_rows(case, table.Entry("sum", "float32", 33, "hub"), rng)
    played = Played(engine, case, x, SMALL, transfer, REACH[reach], searches=True)
    small, large = (1, 2, 3), (4, 6, 8)
    settings = [*itertools.product(small, (1, 2), large), *itertools.product(large, (1, 2), small)]
    free = np.zeros((3, len(settings)), np.int64)
    wanted = reference.aggregate(*case.edge_list, case.nodes, x)
    for turn, (at, setting) in itertools.product(range(3), enumerate(settings)):
        for backend, plan in zip(played.backends, played.plans, strict=True):
            backend.retune(plan, played.format, Geometry(*setting))
        np.testing.assert_array_equal(played.aggregate(rng), wanted)
        free[turn, at] = played.backends[0].memory.free()
    one = (free[0, :-1] - free[0, 1:]).max()  # what a setting takes more than the one before
    kept = 8 if transfer == "halo" else 1  # DeviceExchange::most_kept
    assert (free[0] - free[1]).max() <= kept * one
    assert (free[0] - free[2]).max() <= kept * one


@pytest.fixture
def trained(on_gpus, tmp_path):
    """Runs `mgg` with these words on two ranks, which must end well; returns what is printed."""

    def run(*words, fault="none"):
        done = on_gpus(2, *words, fault=fault, XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return run


@pytest.mark.long
def test_a_search_over_nodes_moves_far_ps_too(trained, tmp_path):
    """It begins at the job file's far_ps."""
    jobs.write_job(
        tmp_path,
        jobs.blocks(60),
        train={"epochs": 40},
        plan={"transfer": "get", "far_ps": 3, "tune": "full"},
        run={"backend": "cuda"},
    )
    said = trained("train", "job.toml", "--share-gpu", "--verbose", fault="far")
    assert "; ps 6, dist 4, wpb 8, far_ps 3\n" in said
    summary = json.loads((tmp_path / "runs/latest/summary.json").read_text())
    assert summary["plan"] == {"ps": 6, "dist": 4, "wpb": 8, "far_ps": 3}
    kept = json.loads((tmp_path / "runs/latest/tuning.json").read_text())["rows"]
    assert kept and {row["source"] for row in kept} == {"measured"}
    for row, found in zip(kept, summary["tuned"], strict=True):
        assert row["chosen"] == {name: found[name] for name in ("ps", "dist", "wpb", "far_ps")}
        assert row["steps"][0]["setting"] == summary["plan"]
        assert {step["setting"]["ps"] for step in row["steps"]} > {6}
    entries = [json.loads(path.read_text()) for path in (tmp_path / "cache/mgg-hpc/tuned").iterdir()]
    assert len(entries) == len(kept)
    assert all(each["key"]["knobs"] == ["ps", "dist", "wpb", "far_ps"] for each in entries)


def resumed_after(epoch: int, run: Path, trained) -> tuple[int, list[dict], list[str], str]:
    """A run that is resumed from its last checkpoint until an epoch.

    Returns the checkpoint's epoch (one is left out while another is written), tuning.json, losses and what was printed.
    """
    (run / "summary.json").unlink()
    written = {int(path.name.removeprefix("epoch-")): path for path in (run / "checkpoints").glob("epoch-*")}
    for later in written.keys() - range(epoch + 1):
        shutil.rmtree(written.pop(later))
    said = trained("resume", str(run))
    return max(written), json.loads((run / "tuning.json").read_text())["rows"], losses(run), said


def losses(run: Path) -> list[str]:
    """The losses of metrics.csv, in all digits."""
    with (run / "metrics.csv").open() as file:
        return [row["loss"] for row in csv.DictReader(file)]


@pytest.mark.long
def test_a_run_goes_on_with_its_own_search_and_with_what_it_has_found(trained, tmp_path):
    """Whatever other runs have found meanwhile: sums on GPUs are cut by the knobs."""
    jobs.write_job(
        tmp_path,
        jobs.blocks(60),
        train={"epochs": LONGEST + 14},
        plan={"transfer": "get", "tune": "full"},
        run={"backend": "cuda"},
        checkpoint={"every_epochs": 1, "keep": 100},
    )
    trained("train", "job.toml", "--share-gpu")
    run = (tmp_path / "runs/latest").resolve()
    first, told = json.loads((run / "tuning.json").read_text())["rows"], losses(run)
    for path in (tmp_path / "cache/mgg-hpc/tuned").iterdir():
        entry = json.loads(path.read_text())
        path.write_text(json.dumps(entry | {"chosen": entry["chosen"] | {"ps": 1, "dist": 1, "wpb": 1}}))
    _, found, again, said = resumed_after(LONGEST + 10, run, trained)
    assert again == told and found == first
    assert "equal to rounding" not in said and f"knobs: ps 6, dist 4, wpb 8; {first[0]['rows']}: " in said
    # In the middle of the search: its steps until then stay, and it goes on after epochs that warm up.
    cut, found, again, said = resumed_after(WARM_UP + 11, run, trained)
    assert again[:cut] == told[:cut] and len(again) == len(told)
    for row, before in zip(found, first, strict=True):
        kept = [step for step in before["steps"] if step["epoch"] <= cut]
        assert row["steps"][: len(kept)] == kept and row["source"] == "measured"
        later = [step["epoch"] for step in row["steps"][len(kept) :]]
        assert later and later[0] == cut + WARM_UP + 1
