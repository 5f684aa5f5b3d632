"""The search for ps, dist and wpb while a job trains: the same bits, the same steps on all ranks, and what is kept."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import pytest
import safetensors.numpy
from jobs import blocks, write_job

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.arguments import BY_WIDTH
from mgg_hpc.runtime.backends.host import kernels
from mgg_hpc.runtime.backends.host.shm import SharedMemory
from mgg_hpc.training import train
from mgg_hpc.training.tuning import tuner as tuning

pytestmark = pytest.mark.mpi

EPOCHS = tuning.LONGEST + 3
MODELS = {
    "halo": {"hidden": 24, "norm": "batch"},
    "direct": {"name": "gat", "hidden": 4, "heads": 2},
    "get": {"name": "sage", "hidden": 8},
}


@pytest.fixture
def trained(comm, folder, first, mgg, monkeypatch):
    """Train a job; returns its run folder, tuner and what rank 0 printed. The ranks' cache is in the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    tuners = []
    made = tuning.Tuner
    monkeypatch.setattr(
        tuning, "Tuner", lambda *given, **named: tuners.append(made(*given, **named)) or tuners[-1]
    )

    def trained(
        transfer: str, tune: str, *, epochs: int = EPOCHS, **plan: int
    ) -> tuple[Path, tuning.Tuner, str]:
        def write():
            write_job(
                folder,
                None if (folder / "g.h5").exists() else blocks(300),
                model=MODELS[transfer],
                train={"epochs": epochs, "seed": 5},
                plan={"transfer": transfer, "tune": tune} | (plan or {"ps": 4, "wpb": 128}),
                run={"folder": str(folder / tune), "threads": 1},
            )

        first(write)
        done = mgg("train", folder / "job.toml", "--no-progress")
        assert done.codes == {0}, done.err
        return (folder / tune / "latest").resolve(), tuners[-1], done.out[0]

    return trained


def results(run: Path) -> tuple[list[list[str]], dict[str, bytes]]:
    """What a run has computed: metrics without times, and its weights."""
    with (run / "metrics.csv").open() as file:
        rows = [
            [value for name, value in row.items() if not name.endswith("_ms")] for row in csv.DictReader(file)
        ]
    weights = safetensors.numpy.load_file(run / "checkpoints" / "model.safetensors")
    return rows, {name: value.tobytes() for name, value in weights.items()}


@pytest.mark.slow
@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", MODELS)
def test_a_search_changes_no_bit_and_is_not_repeated(comm, folder, trained, transfer):
    plain, _, _ = trained(transfer, "never")
    searched, tuner, said = trained(transfer, "full")
    assert results(searched) == results(plain)
    kept = json.loads((searched / "tuning.json").read_text())
    assert (kept["format"], kept["version"]) == ("mgg-tuning", 1)
    assert len(kept["rows"]) == len(tuner.targets) > 0
    for row, target in zip(kept["rows"], tuner.targets, strict=True):
        measured = {tuple(step["setting"].values()) for step in row["steps"]}
        assert row["source"] == "measured" and 2 <= len(measured) <= 12
        assert tuple(row["chosen"].values()) in measured and row["gain"] >= 0
        assert [step["epoch"] for step in row["steps"]] == list(
            range(1 + tuning.WARM_UP, 1 + tuning.WARM_UP + len(row["steps"]))
        )
        assert all(step["seconds"] > 0 for step in row["steps"])
        assert f"{target.label}: {tuning.shown(target.geometry)}; " in said
    again, found, said = trained(transfer, "full")
    assert results(again) == results(plain) and not found.searching
    assert [target.source for target in found.targets] == ["table"] * len(tuner.targets)
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
    assert {target.source for target in tuner.targets} == {"measured"}
    assert said.count(": ignored, since it ") == len(tuner.targets)


def test_ranks_with_other_clocks_take_the_same_steps(comm, trained, monkeypatch, rng):
    """Each rank's clock runs at a speed of its own, and jumps."""
    speed = rng.uniform(0.1, 10) * (1 + comm.rank)
    skewed = type(
        "Time", (), {"perf_counter": staticmethod(lambda: speed * time.perf_counter() + rng.uniform(0, 1e-3))}
    )
    monkeypatch.setattr(kernels, "time", skewed)
    _, tuner, _ = trained("direct", "full")
    steps = [[step.setting for step in target.search.steps] for target in tuner.targets]
    geometries = [target.geometry for target in tuner.targets]
    assert comm.allgather((steps, geometries)) == [(steps, geometries)] * comm.size
    assert train.tuning is tuning


@pytest.mark.slow
def test_small_graphs_and_short_trainings_are_left_alone(comm, trained, monkeypatch):
    _, tuner, _ = trained("halo", "auto")
    assert tuner.targets == []
    monkeypatch.setattr(tuning, "WORTHWHILE", 1)
    run, tuner, _ = trained("halo", "auto", ps=256)
    assert tuner.targets and not tuner.searching
    assert {target.source for target in tuner.targets} == {"default"}
    assert json.loads((run / "tuning.json").read_text())["rows"][0]["steps"] == []
    run, tuner, _ = trained("halo", "auto", epochs=2 * tuning.LONGEST, ps=256)
    assert {target.source for target in tuner.targets} == {"measured"}
    kept = json.loads((run / "summary.json").read_text())
    assert [each["wpb"] for each in kept["tuned"]] == [target.geometry.wpb for target in tuner.targets]


@pytest.mark.slow
def test_what_the_job_file_sets_is_not_moved_unless_all_is(comm, trained, monkeypatch):
    monkeypatch.setattr(tuning, "WORTHWHILE", 1)
    moved = {}
    for tune in ("auto", "full"):
        for name, plan in {"ps": {"ps": 4}, "wpb": {"wpb": 8}, "dist": {"dist": 3}}.items():
            _, tuner, _ = trained("halo", tune, epochs=2, **plan)
            moved[tune, name] = {knob.name for target in tuner.targets for knob in target.knobs}
    assert {name: moved["auto", name] for name in ("ps", "wpb", "dist")} == {
        "ps": {"dist"},
        "wpb": {"dist"},
        "dist": {"wpb"},
    }
    assert all(moved["full", name] == {"wpb", "dist"} for name in ("ps", "wpb", "dist"))


def test_a_setting_that_some_rank_cannot_hold_is_passed_over(comm, trained, monkeypatch):
    """The last rank's backend refuses to prefetch at any other distance than the default's."""
    retune = kernels.HostBackend.retune

    def refused(backend, plan, format, geometry):
        if backend.collectives.rank == comm.size - 1 and geometry.dist != BY_WIDTH:
            raise InputError("too large")
        retune(backend, plan, format, geometry)

    monkeypatch.setattr(kernels.HostBackend, "retune", refused)
    run, tuner, _ = trained("halo", "full")
    assert not tuner.searching and {target.geometry.dist for target in tuner.targets} == {BY_WIDTH}
    assert {target.source for target in tuner.targets} == {"measured"}
    steps = [step for row in json.loads((run / "tuning.json").read_text())["rows"] for step in row["steps"]]
    assert all((step["seconds"] is None) == (step["setting"]["dist"] != BY_WIDTH) for step in steps)
    assert any(step["seconds"] is None for step in steps)


@pytest.fixture
def tuned(folder, first, mgg, monkeypatch):
    """Search by each transfer for a small job; returns what rank 0 printed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def tuned() -> str:
        first(lambda: write_job(folder, blocks(300), model={"hidden": 4}, run={"threads": 1}))
        done = mgg("tune", folder / "job.toml")
        assert done.codes == {0}, done.err
        return done.out[0]

    return tuned


def test_no_transfer_is_recommended_where_nothing_was_measured(tuned, monkeypatch):
    """As on GPUs, where edge kernels have no knobs."""
    monkeypatch.setattr(tuning, "_moved", lambda *given, **named: [])
    said = tuned()
    assert "nothing was measured" in said and "[plan]" not in said and "default" not in said


def test_a_transfer_that_cannot_run_leaves_what_others_found(comm, tuned, monkeypatch):
    """Memory that has the size of what the first one needed may be too small for the third, a halo."""
    seen = []

    def reserve(memory, nbytes, largest=0):
        if memory not in seen:
            seen.append(memory)
        if len(seen) > 2:
            raise InputError("the heap cannot grow")

    monkeypatch.setattr(SharedMemory, "reserve", reserve)
    said = tuned()
    if comm.size > 1:
        assert "without halo: the heap cannot grow" in said and "transfer = " in said
