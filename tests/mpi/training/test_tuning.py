"""The search for ps, dist and wpb while a job trains: the same bits, the same steps on all ranks, and what is kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import blocks, write_job
from torture.launched import assert_same_runs

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.arguments import BY_WIDTH
from mgg_hpc.runtime.backends.host import kernels
from mgg_hpc.runtime.backends.host.components import SharedMemory
from mgg_hpc.training.tuning import tuner as tuning

pytestmark = pytest.mark.mpi

EPOCHS = tuning.LONGEST + 3
MODELS = {
    "halo": {"hidden": 24, "norm": "batch"},
    "direct": {"name": "gat", "hidden": 4, "heads": 2},
    "get": {"name": "sage", "hidden": 8},
}


@pytest.fixture
def write(folder, first, monkeypatch):
    """Write a job on a graph that stays. The ranks' cache is in the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def write(**sections: dict[str, object]) -> Path:
        sections["run"] = {"threads": 1} | sections.get("run", {})
        first(lambda: write_job(folder, None if (folder / "g.h5").exists() else blocks(300), **sections))
        return folder / "job.toml"

    return write


@pytest.fixture
def trained(folder, write, mgg, monkeypatch):
    """Train a job; returns its run folder, tuner and what rank 0 printed."""
    tuners, made = [], tuning.Tuner

    def noted(*given: object, **named: object) -> tuning.Tuner:
        tuners.append(made(*given, **named))
        return tuners[-1]

    monkeypatch.setattr(tuning, "Tuner", noted)

    def trained(
        transfer: str, tune: str, *, epochs: int = EPOCHS, **plan: int
    ) -> tuple[Path, tuning.Tuner, str]:
        job = write(
            model=MODELS[transfer],
            train={"epochs": epochs, "seed": 5},
            plan={"transfer": transfer, "tune": tune} | (plan or {"ps": 4, "wpb": 128}),
            run={"folder": str(folder / tune)},
        )
        done = mgg("train", job, "--verbose")
        assert done.codes == {0}, done.err
        return (folder / tune / "latest").resolve(), tuners[-1], done.out[0]

    return trained


def sources(tuner: tuning.Tuner) -> set[str]:
    return {target.source for target in tuner.targets}


@pytest.mark.slow
@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", MODELS)
def test_a_search_changes_no_bit_and_is_not_repeated(comm, folder, trained, transfer):
    plain, _, _ = trained(transfer, "never")
    searched, tuner, said = trained(transfer, "full")
    assert_same_runs(searched, plain, EPOCHS)
    kept = json.loads((searched / "tuning.json").read_text())
    assert (kept["format"], kept["version"]) == ("mgg-tuning", 1)
    assert len(kept["rows"]) == len(tuner.targets) > 0
    for row, target in zip(kept["rows"], tuner.targets, strict=True):
        measured = {tuple(step["setting"].values()) for step in row["steps"]}
        assert row["source"] == "measured" and 2 <= len(measured) <= 12
        assert tuple(row["chosen"].values()) in measured and row["gain"] >= 0
        numbers = range(1 + tuning.WARM_UP, 1 + tuning.WARM_UP + len(row["steps"]))
        assert [step["epoch"] for step in row["steps"]] == list(numbers)
        assert all(step["seconds"] > 0 for step in row["steps"])
        assert f"{target.label}: {tuning.shown(target.geometry)}; " in said
    again, found, said = trained(transfer, "full")
    assert_same_runs(again, plain, EPOCHS)
    assert not found.searching and sources(found) == {"table"}
    assert [target.geometry for target in found.targets] == [target.geometry for target in tuner.targets]
    assert "known from an earlier run" in said


def test_damaged_entries_are_ignored_with_a_word(comm, folder, first, trained, rng):
    trained("halo", "full")
    garbage = [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "mgg-tuning", "version": 2}']
    draws = comm.bcast(rng.permutation(len(garbage)).tolist())

    def damage():
        for number, path in enumerate(sorted((folder / "cache/mgg-hpc/tuned").iterdir())):
            if number:
                path.write_bytes(garbage[draws[number % len(garbage)]])
            else:
                entry = json.loads(path.read_text())
                entry["chosen"]["wpb"] = 10**9
                path.write_text(json.dumps(entry))

    first(damage)
    _, tuner, said = trained("halo", "full")
    assert sources(tuner) == {"measured"}
    assert said.count(": ignored, since it ") == len(tuner.targets)


def test_ranks_with_other_clocks_take_the_same_steps_and_pass_over_what_one_cannot_hold(
    comm, trained, monkeypatch, rng
):
    """Each rank's clock runs at a speed of its own, and jumps; the last rank's backend refuses to prefetch at any other
    distance than the default's.
    """
    speed, retune = rng.uniform(0.1, 10) * (1 + comm.rank), kernels.HostBackend.retune

    def refused(backend, plan, format, geometry):
        if backend.collectives.rank == comm.size - 1 and geometry.dist != BY_WIDTH:
            raise InputError("too large")
        retune(backend, plan, format, geometry)

    skewed = SimpleNamespace(perf_counter=lambda: speed * time.perf_counter() + rng.uniform(0, 1e-3))
    monkeypatch.setattr(kernels, "time", skewed)
    monkeypatch.setattr(kernels.HostBackend, "retune", refused)
    run, tuner, _ = trained("direct", "full")
    steps = [[step.setting for step in target.search.steps] for target in tuner.targets]
    geometries = [target.geometry for target in tuner.targets]
    assert comm.allgather((steps, geometries)) == [(steps, geometries)] * comm.size
    assert not tuner.searching and {geometry.dist for geometry in geometries} == {BY_WIDTH}
    assert sources(tuner) == {"measured"}
    kept = [step for row in json.loads((run / "tuning.json").read_text())["rows"] for step in row["steps"]]
    assert all((step["seconds"] is None) == (step["setting"]["dist"] != BY_WIDTH) for step in kept)
    assert any(step["seconds"] is None for step in kept)


@pytest.mark.slow
def test_small_graphs_and_short_trainings_are_left_alone(comm, trained, monkeypatch):
    _, tuner, _ = trained("halo", "auto")
    assert tuner.targets == []
    monkeypatch.setattr(tuning, "WORTHWHILE", 1)
    run, tuner, _ = trained("halo", "auto", ps=256)
    assert not tuner.searching and sources(tuner) == {"default"}
    assert json.loads((run / "tuning.json").read_text())["rows"][0]["steps"] == []
    run, tuner, _ = trained("halo", "auto", epochs=2 * tuning.LONGEST, ps=256)
    assert sources(tuner) == {"measured"}
    kept = json.loads((run / "summary.json").read_text())
    assert [each["wpb"] for each in kept["tuned"]] == [target.geometry.wpb for target in tuner.targets]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "moved"), [({"ps": 4}, {"dist"}), ({"wpb": 8}, {"dist"}), ({"dist": 3}, {"wpb"})], ids=str
)
def test_what_the_job_file_sets_is_not_moved_unless_all_is(trained, monkeypatch, plan, moved):
    monkeypatch.setattr(tuning, "WORTHWHILE", 1)
    for tune, wanted in (("auto", moved), ("full", {"wpb", "dist"})):
        _, tuner, _ = trained("halo", tune, epochs=2, **plan)
        assert {knob.name for target in tuner.targets for knob in target.knobs} == wanted


@pytest.mark.parametrize("fails", ["everything", "the third"])
def test_a_transfer_that_cannot_be_measured_leaves_what_others_found(comm, write, mgg, monkeypatch, fails):
    """Nothing is measured as on GPUs, where edge kernels have no knobs. Memory that has the size of what the first one
    needed may be too small for the third, a halo.
    """
    seen = []

    def reserve(memory, nbytes, largest=0):
        if memory not in seen:
            seen.append(memory)
        if len(seen) > 2:
            raise InputError("the heap cannot grow")

    if fails == "everything":
        monkeypatch.setattr(tuning, "_moved", lambda *given, **named: [])
    else:
        monkeypatch.setattr(SharedMemory, "reserve", reserve)
    done = mgg("tune", write(model={"hidden": 4}))
    assert done.codes == {0}, done.err
    said = done.out[0]
    if fails == "everything":
        assert "nothing was measured" in said and "[plan]" not in said and "default" not in said
    elif comm.size > 1:
        assert "without halo: the heap cannot grow" in said and "transfer = " in said
