"""Batches that CPU and device prepare together: the same bits with any plan, operators, measured times, failures."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import time
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import blocks, call, directed_weighted, with_sparse_features, write_job
from mpi4py import MPI
from torture import faulty
from torture.launched import Launched

from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.errors import InputError
from mgg_hpc.plan import hybrid
from mgg_hpc.plan.hybrid import Overlap, Phases, Plan
from mgg_hpc.runtime.sampler import Sampler
from mgg_hpc.training.checkpoints import folders
from mgg_hpc.training.job import build
from mgg_hpc.training.minibatch import measured
from mgg_hpc.training.minibatch.executor import Run
from mgg_hpc.training.minibatch.operators import OPERATORS, Work
from mgg_hpc.training.trainer import Trainer

ROWS = 5
GRAPHS = {"dense": blocks, "sparse": lambda: with_sparse_features(blocks()), "directed": directed_weighted}
MODELS = {
    "sage": {"name": "sage"},
    "gcn": {"dropout": 0.3},
    "gat": {"name": "gat", "heads": 2, "attention_dropout": 0.3},
}


@pytest.fixture
def operators(monkeypatch):
    """The registry, as it is now again after the test."""
    for phase, known in OPERATORS.items():
        monkeypatch.setitem(OPERATORS, phase, dict(known))
    return OPERATORS


@pytest.fixture
def threads():
    """Checks that the test leaves no thread behind."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def job_of(tmp_path):
    """Return job_of(graph, **model): a job of this process alone, on batches of ROWS rows with few edges."""
    jobs = []

    def job_of(graph=None, *, batch_size: int = ROWS, **model):
        writer.write(tmp_path / f"{len(jobs)}.h5", graph or blocks())
        train = {"mode": "sampled", "fanouts": [3, 2], "batch_size": batch_size, "seed": 7}
        tree = {
            "graph": {"file": str(tmp_path / f"{len(jobs)}.h5")},
            "model": {"hidden": 8} | model,
            "train": train,
        }
        settings = config.from_tree(tree | {"run": {"threads": 1, "backend": "serial"}}, "test")
        jobs.append(build(settings, MPI.COMM_SELF))
        return jobs[-1]

    yield job_of
    for job in jobs:
        job.close()


def drawn(rng, batches: int) -> Plan:
    """A plan of random overlaps over small buffers."""
    buffers, overlaps, left = tuple(map(int, rng.integers(1, 5, 2))), [], batches
    while left:
        sizes = [int(rng.integers(0, most + 1)) for most in buffers]
        overlap = Overlap(*sizes, int(rng.integers(0, 3)) if sizes[1] else 0)
        if sum(overlap) > left:
            overlap = Overlap(min(left, buffers[0]), 0)
        if sum(overlap):
            overlaps.append((1, overlap))
            left -= sum(overlap)
    return Plan("drawn", Phases(1, 1, 1, 1, int(rng.integers(1, 4))), tuple(overlaps), buffers, 0.0)


def run_of(job, plan: Plan, epoch: int = 1, first: int = 0) -> Run:
    return Run(job.sampled.source, job.sampled.batches, plan, epoch, first)


def both(job) -> Plan:
    """A batch of the CPU for each of the device."""
    return Plan("both", Phases(1, 1, 1, 1, 2), ((job.sampled.steps // 2, Overlap(1, 1)),), (1, 1), 0.0)


def test_times_of_calls_take_40_bytes(job_of):
    """Of three calls a batch, so 12 MB for 1e5 batches."""
    run = run_of(job := job_of(batch_size=1), both(job))
    for batch in run.batches():
        with batch.during():
            pass
    calls = list(run.activities())
    assert len(run._calls) * run._calls.itemsize == 40 * len(calls) == 40 * 3 * both(job).batches
    seconds = {name: each.sum() for name, each in run.spent().items()}
    assert sum(seconds.values()) == pytest.approx(sum(each.end - each.begin for each in calls))
    assert seconds["cpu"] == pytest.approx(
        sum(each.end - each.begin for each in calls if each.operator == ("batch", "cpu"))
    )


def losses(job, *plans: Plan | None) -> list[float]:
    """The loss of each batch of as many epochs, from the job's weights on; None: prepared by the CPU alone."""
    trainer, found = Trainer(replace(job, model=deepcopy(job.model)), job.graph()), []
    for epoch, plan in enumerate(plans, 1):
        batches = run_of(job, plan, epoch).batches() if plan else job.sampled.batches.epoch(epoch)
        with contextlib.closing(batches):
            for number, batch in enumerate(batches):
                last = number == job.sampled.steps - 1
                assert (batch.number, batch.epoch, batch.last) == (number, epoch, last)
                trainer.take(batch)
                found.append(float(trainer._flat[-1]))
    return found


@pytest.mark.usefixtures("threads")
@pytest.mark.sampled
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("anywhere", [True, False])
def test_losses_have_the_same_bits_with_any_plan(rng, job_of, monkeypatch, graph, model, anywhere):
    """Where threads may gather input rows, and where the thread that trains does."""
    job = job_of(GRAPHS[graph](), **MODELS[model])
    wanted = losses(job, None, None)
    assert len(set(wanted)) > job.sampled.steps
    if not anywhere:
        monkeypatch.setattr(Work, "gathers_anywhere", False)
    for _ in range(4):
        assert losses(job, *(drawn(rng, job.sampled.steps) for _ in range(2))) == wanted


def test_an_epoch_goes_on_at_any_batch(rng, job_of):
    job = job_of()
    steps = job.sampled.steps
    for first in range(1, steps):
        run = run_of(job, drawn(rng, steps - first), 2, first)
        assert [batch.number for batch in run.batches()] == list(range(first, steps))


def test_operators_of_another_device_take_its_batches(rng, job_of, operators):
    """As a plan says, and no other batches; all of them in their order."""
    job, called = job_of(), []

    def dummy(phase, hardware):
        real = operators[phase][hardware]

        def run(work, given):
            called.append((phase, hardware, given if phase == "batch" else given.number))
            return real(work, given)

        operators[phase][hardware] = run

    for phase, known in operators.items():
        for hardware in list(known):
            dummy(phase, hardware)
    plan = drawn(rng, job.sampled.steps)
    wanted, called[:] = losses(job, plan), []
    assert losses(job, plan) == wanted
    numbers = {key: [n for *each, n in called if each == list(key)] for key in {each[:2] for each in called}}
    ours, program = list(plan.of_cpu()), list(plan.program())
    theirs = [number for prepares, number in program if prepares]
    assert sorted(numbers.get(("batch", "cpu"), [])) == numbers.get(("transfer", "copy"), []) == ours
    assert numbers.get(("batch", "device"), []) == numbers.get(("transfer", "direct"), []) == theirs
    assert numbers["train", "device"] == list(range(job.sampled.steps))


def test_threads_of_the_cpu_draw_on_the_host(rng, job_of):
    """And the device's sampler, if there is one, draws the device's batches alone."""
    job, called = job_of(), []

    class Bound(Sampler):
        def __init__(self, host):
            vars(self).update(vars(host))

        def _sampled(self, *given):
            called.append(threading.current_thread())
            return super()._sampled(*given)

    plan = drawn(rng, job.sampled.steps)
    wanted, job.sampled.batches.sampler = losses(job, plan), Bound(job.sampled.batches.sampler)
    assert losses(job, plan) == wanted
    assert called == [threading.current_thread()] * plan.on_device


def test_no_more_batches_wait_than_buffers_hold(rng, job_of, operators):
    """Of the CPU as many as its buffer and its threads hold, on the device its buffer and the one in training."""
    job, lock = job_of(batch_size=1), threading.Lock()
    held, most = {"cpu": 0, "device": 0}, {"cpu": 0, "device": 0}

    def count(**changes):
        with lock:
            for side, change in changes.items():
                held[side] += change
                most[side] = max(most[side], held[side])

    def counted(operator, before, after):
        def run(*given):
            count(**before)
            found = operator(*given)
            count(**after)
            return found

        return run

    real = {phase: dict(known) for phase, known in operators.items()}
    operators["batch"]["cpu"] = counted(real["batch"]["cpu"], {"cpu": 1}, {})
    operators["transfer"]["copy"] = counted(real["transfer"]["copy"], {"device": 1}, {"cpu": -1})
    operators["batch"]["device"] = counted(real["batch"]["device"], {"device": 1}, {})
    trained = counted(lambda trainer, batch: time.sleep(0.002), {}, {"device": -1})
    for buffers in ((1, 1), (3, 1), (2, 4)):
        overlap = Overlap(buffers[0], buffers[1])
        times = job.sampled.steps // sum(overlap)
        plan = Plan("full", Phases(1, 1, 1, 1, 2), ((times, overlap),), buffers, 0.0)
        most.update(cpu=0, device=0)
        for batch in run_of(job, plan).batches():
            trained(None, batch)
        assert most == {"cpu": buffers[0] + 2, "device": buffers[1] + 1} and held == {"cpu": 0, "device": 0}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("operator", "error", "said"),
    [
        ("batch cpu", OSError("no disk"), r"^batch \d of epoch 1: batch by cpu failed: OSError: no disk$"),
        ("transfer copy", MemoryError(), "^batch 5 of epoch 1: transfer by copy failed: MemoryError: $"),
        ("batch device", ValueError("x"), "^batch 4 of epoch 1: batch by device failed: ValueError: x$"),
        ("train device", KeyError(7), "^batch 2 of epoch 1: train by device failed: KeyError: 7$"),
        ("batch cpu", InputError("row 3 cannot be read"), "^row 3 cannot be read$"),
        ("train device", InputError("no label"), "^no label$"),
    ],
)
def test_a_failure_ends_the_epoch_by_its_name_and_leaves_no_thread(job_of, operators, operator, error, said):
    phase, hardware = operator.split()
    job, real, calls = job_of(), operators[phase][hardware], []
    plan = both(job)

    def failing(*given):
        calls.append(given)
        if len(calls) == 3:
            raise error
        return real(*given)

    operators[phase][hardware] = failing
    with pytest.raises(InputError if isinstance(error, InputError) else RuntimeError, match=said):
        losses(job, plan)
    operators[phase][hardware] = real
    with contextlib.closing(run_of(job, plan).batches()) as batches:  # and one that is left early
        assert next(batches).number == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "by"),
    [pytest.param("cpu", "", marks=pytest.mark.long), ("hybrid", r"batch \d of epoch 7: batch by ")],
)
def test_wrong_input_of_one_rank_ends_all_ranks_by_its_name(tmp_path, monkeypatch, prepare, by):
    """Where the others are in the middle of an epoch. The last checkpoint is whole, and nothing is left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    train = {"mode": "sampled", "fanouts": [3, 2], "batch_size": ROWS, "epochs": 9, "prepare": prepare}
    more = {"run": {"threads": 1, "folder": "runs"}, "checkpoint": {"every_epochs": 1}}
    write_job(tmp_path, blocks(), train=train, **more)
    fault, segments = ("read", 1, 7, tmp_path / "stamp"), set()  # after the epochs that are measured
    job = Launched(tmp_path, "launch", "-n", 3, faulty.__file__, *fault, "train", "job.toml")
    while job.process.poll() is None and not (tmp_path / "stamp").exists():
        segments |= job.mapped()
        time.sleep(0.02)
    code = job.wait(60)
    assert time.time() - float((tmp_path / "stamp").read_text()) < 20, job.said()
    assert code == 1 and job.said().count("mgg: error: ") == 1, job.said()
    assert re.search(f"mgg: error: rank 1 of 3: RuntimeError: {by}.*row 3 cannot be read", job.said())
    assert job.processes() == {} and segments and not any(path.exists() for path in segments), segments
    folders.verify(tmp_path / "runs" / "001" / "checkpoints" / folders.name_of(6), 6)


def stretched(operators, seconds):
    """Have each operator take so many seconds."""
    for (phase, hardware), each in seconds.items():
        real = operators[phase][hardware]

        def run(work, given, real=real, each=each):
            began = time.perf_counter()
            found = real(work, given)
            time.sleep(max(0.0, began + each - time.perf_counter()))
            return found

        operators[phase][hardware] = run


@pytest.mark.parametrize("batch_size", [ROWS, 1000])
def test_phases_are_measured_by_steps_that_change_nothing(job_of, operators, batch_size, monkeypatch):
    """Times of operators are as long as these take; means and spreads leave out the first steps of each phase."""
    monkeypatch.setattr(measured, "STEPS", 6)
    job, seen, spent = job_of(batch_size=batch_size), {}, Run.spent
    wanted = losses(job, None)
    times = {("batch", "cpu"): 0.03, ("transfer", "copy"): 0.02, ("batch", "device"): 0.03}
    stretched(operators, times | {("transfer", "direct"): 0.02, ("train", "device"): 0.04})

    def kept(run):
        found = spent(run)
        for name, seconds in found.items():
            seen.setdefault(name, []).extend(seconds)
        return found

    monkeypatch.setattr(Run, "spent", kept)
    found = measured.measure(job)
    for name, seconds in {"cpu": 0.03, "copy": 0.02, "device": 0.05, "train": 0.04}.items():
        assert min(seen[name]) >= seconds  # other work only adds time
        counted = seen[name][measured.WARM_UP :]
        assert len(counted) >= min(6, 2 * job.sampled.steps)
        assert getattr(found.phases, name) == pytest.approx(np.mean(counted))
        assert found.spread[name] == pytest.approx(np.std(counted) / np.mean(counted))
    assert found.phases.workers == 1
    monkeypatch.undo()
    assert losses(job, None) == wanted


def test_what_happens_between_steps_is_not_of_training(rng, job_of):
    """As a checkpoint."""
    job, began = job_of(), time.perf_counter()
    trainer, run = Trainer(job, job.graph()), run_of(job, drawn(rng, job.sampled.steps))
    for batch in run.batches():
        trainer.take(batch)
        time.sleep(0.05)
    trained = run.spent()["train"]
    assert len(trained) == job.sampled.steps
    assert 0 < sum(trained) <= time.perf_counter() - began - 0.05 * len(trained)


def test_times_are_kept_until_the_machine_is_another(job_of, operators, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job, count, measure = job_of(), [], measured.measure
    monkeypatch.setattr(measured, "measure", lambda *given: count.append(1) or measure(*given))

    def prepared(**train):
        given = config.from_tree(
            {"graph": {"file": "g"}, "train": {"mode": "sampled", "fanouts": [3, 2]} | train}, "test"
        )
        once = replace(job, settings=given)
        measured.prepare(once)
        return once.sampled.hybrid

    assert prepared() is None and not count
    first = prepared(prepare="hybrid")
    assert (first.name, first.most, first.note, len(count)) == ("hybrid", 10, "measured now", 1)
    again = prepared(prepare="auto", buffer=3)
    assert (again.phases, again.note, len(count)) == (first.phases, "kept from an earlier run", 1)
    assert again.name in ("cpu", "device", "hybrid") and again.most == 3
    assert len(prepared(prepare="hybrid", batch_size=7).note) == len("measured now") and len(count) == 2
    monkeypatch.setattr(measured.cores, "processor", lambda: "Another CPU")
    assert prepared(prepare="device").note.startswith("measured now (the kept ones are of cpu ")
    assert prepared(prepare="device").note == "kept from an earlier run" and len(count) == 3
    for path in (tmp_path / "cache" / "mgg-hpc").glob("phases-*.json"):
        kept = json.loads(path.read_text())
        path.write_text(json.dumps(kept | {"phases": kept["phases"] | {"train": -1}}))
    assert "is damaged" in prepared(prepare="device").note and len(count) == 4
    for path in (tmp_path / "cache" / "mgg-hpc").glob("phases-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"spread": {"x": 0.1}}))
    assert "is damaged: spread of x" in prepared(prepare="device").note and len(count) == 5
    stretched(operators, {("train", "device"): 0.001})
    assert "(the kept ones are of train.device mgg_hpc." in prepared(prepare="device").note
    assert len(count) == 6


def test_times_are_kept_apart_for_jobs_whose_batches_differ(job_of):
    job, comm = job_of(), SimpleNamespace(size=2)

    def name_of(job=job, **sections):
        tree = {"graph": {"file": "g"}, "train": {"mode": "sampled", "fanouts": [3, 2]}}
        for section, keys in sections.items():
            tree[section] = tree.get(section, {}) | keys
        return measured._name(replace(job, settings=config.from_tree(tree, "test")))

    differ = [
        {"model": {"hidden": 9}},
        {"train": {"fanouts": [3, 3]}},
        {"train": {"batch_size": 9}},
        {"train": {"dtype": "float64"}},
        {"train": {"recompute": [1]}},
        {"train": {"optimizer": "sgd"}},
        {"train": {"clip_norm": 1.0}},
        {"features": {"near": "1M"}},
        {"run": {"features": "host"}},
    ]
    names = [name_of(), name_of(replace(job, comm=comm)), *(name_of(**each) for each in differ)]
    assert len(set(names)) == len(names)
    for same in (
        {"train": {"epochs": 9, "seed": 3, "prepare": "hybrid", "buffer": 2}},
        {"run": {"folder": "x"}},
    ):
        assert name_of(**same) == names[0]


def test_a_job_says_how_its_batches_are_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measured, "STEPS", 4)
    train = {"mode": "sampled", "fanouts": [3, 2], "batch_size": ROWS, "epochs": 2}
    run = {"threads": 1, "watchdog": 0}
    job, found = write_job(tmp_path, blocks(), train=train, run=run), {}
    shown = call("train", job, "--no-progress", "--dry-run", "--set=train.prepare=hybrid", folder=tmp_path)
    assert shown.returncode == 0 and not (tmp_path / "runs").exists()
    assert (
        "; measured now" in shown.stdout
        and re.search(r"batches by the CPU, \d+ by\s+the device; buffers of \d+ and \d+", shown.stdout)
        and "no plan takes less than " in shown.stdout
    )
    for prepare in ("cpu", "device", "hybrid", "auto"):
        words = (f"--set=train.prepare={prepare}", f"--set=run.folder={tmp_path / prepare}")
        done = call("train", job, "--no-progress", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("; kept from an earlier run" in done.stdout) == (prepare != "cpu")
        found[prepare] = json.loads((tmp_path / prepare / "latest" / "summary.json").read_text())
    assert len({each["final_loss"] for each in found.values()}) == 1
    assert "prepare" not in found["cpu"]["sampled"]
    assert found["auto"]["sampled"]["prepare"]["busy"]["device"] > 0  # whatever it took
    told, steps = found["device"]["sampled"]["prepare"], found["cpu"]["batches"]
    assert (told["by"], told["batches"]) == ("device", {"cpu": 0, "device": steps})
    assert 0 < told["busy"]["device"] <= 1.01 and told["busy"]["cpu"] == 0
    assert told["bound_ms"] <= told["expected_ms"] * 1.001
    told = found["hybrid"]["sampled"]["prepare"]
    assert sum(told["batches"].values()) == steps and set(told["phases_ms"]) == set(told["variation"])
    words = ("--profile", "--set=train.prepare=hybrid", f"--set=run.folder={tmp_path / 'hybrid'}")
    assert call("train", job, "--no-progress", *words, folder=tmp_path).returncode == 0
    told = json.loads((tmp_path / "hybrid" / "latest" / "summary.json").read_text())["sampled"]["prepare"]
    trace = json.loads(gzip.decompress((tmp_path / "hybrid/latest/profile/rank-0.json.gz").read_bytes()))
    events = [each for each in trace["traceEvents"] if each.get("cat") == "batches"]
    (epoch,) = (each for each in trace["traceEvents"] if each["name"] == "epoch 2" and each["ph"] == "X")
    numbers = defaultdict(set)
    for each in events:
        assert epoch["ts"] <= each["ts"] and each["ts"] + each["dur"] <= epoch["ts"] + epoch["dur"]
        numbers[each["name"]].add(each["args"]["number"])
    assert len(numbers["batch by cpu"]) == told["batches"]["cpu"] and numbers["train by device"] == {
        *range(steps)
    }
    assert (
        numbers["transfer by copy"] == numbers["batch by cpu"] == {*range(steps)} - numbers["batch by device"]
    )
    assert call("report", tmp_path / "hybrid", folder=tmp_path).returncode == 0
    page = (tmp_path / "hybrid" / "latest" / "report.html").read_text()
    assert "Batches of epoch 2 of hybrid" in page and "rank 0: CPU buffer (up to " in page
    assert f"{told['batches']['cpu']} batches of an epoch prepared by the CPU" in page
    assert f"<td>device</td><td>{told['busy']['device']:.0%}</td>" in page


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"prepare": "gpu"}, 'train.prepare is \'gpu\'; it must be "cpu" or "device" or "hybrid" or "auto"'),
        ({"prepare": "hybrid", "buffer": 0}, "train.buffer is 0; it must be a whole number, at least 1"),
        (
            {"buffer": 4},
            'train.buffer is 4, which is for train.prepare = "device", "hybrid" or "auto"; it is "cpu"',
        ),
        (
            {"prepare": "auto", "prefetch": 4},
            'train.prefetch is 4, which is for train.prepare = "cpu"; it is "auto"',
        ),
        (
            {"prepare": "hybrid", "mode": "full"},
            "train.prepare is 'hybrid', which is for train.mode = \"sampled\"",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_key(tmp_path, train, said):
    chosen = {"mode": "sampled", "fanouts": [3, 2]} | train
    if chosen["mode"] == "full":
        del chosen["fanouts"]
    done = call("train", write_job(tmp_path, blocks(), train=chosen), folder=tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_buffers_that_do_not_fit_are_refused_with_their_batches(tmp_path, monkeypatch):
    """Of batches of 1 MiB."""

    def measured_batches(job):
        number, hybrid = job.sampled.held(job.settings.train, 1)
        return number << 20, ((number, 1 << 20) if hybrid else (0, 0)), 0

    monkeypatch.setattr("mgg_hpc.training.footprint.measure_batches", measured_batches)
    monkeypatch.setattr("mgg_hpc.runtime.cores.memory_available", lambda: 20 << 20)
    train = {"mode": "sampled", "fanouts": [3, 2], "batch_size": 1, "epochs": 1}
    job = write_job(tmp_path, blocks(), train=train, run={"threads": 1, "watchdog": 0})
    assert call("train", job, "--no-progress", folder=tmp_path).returncode == 0
    done = call("train", job, "--set=train.prepare=hybrid", "--set=train.buffer=15", folder=tmp_path)
    assert done.returncode == 2, done.stdout
    assert re.search(
        r"needs .* GiB more .*; lower train.buffer \(33 batches of 1\.0 MiB may be held", done.stderr
    )


def test_a_plan_takes_as_long_as_in_the_simulator(job_of, operators):
    """With operators that wait: the device prepares faster than the CPU in one of two settings."""
    job, real = job_of(batch_size=4), {phase: dict(known) for phase, known in operators.items()}
    for device, cpu in ((0.008, 0.04), (0.04, 0.016)):
        for phase, known in real.items():
            operators[phase] = dict(known)
        stretched(operators, {("batch", "cpu"): cpu, ("transfer", "copy"): 4e-3, ("batch", "device"): device})
        for plan in hybrid.plans(Phases(cpu, 4e-3, device, 0.012), job.sampled.steps).values():
            for _ in range(10):  # other work on the machine only adds time
                run = run_of(job, plan)
                for _ in run.batches():
                    time.sleep(0.012)
                assert run.seconds >= plan.seconds * 0.98
                if run.seconds <= plan.seconds * 1.2:
                    break
            else:
                raise AssertionError(f"{run.seconds} s, and {plan.seconds} s in the simulator: {plan}")
