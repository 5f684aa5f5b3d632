"""What the stages of an epoch are called, to torch's profiler and to NVTX; and that only who profiles pays for it."""

from __future__ import annotations

import threading

import jobs
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mgg_hpc import config
from mgg_hpc.nn import spans
from mgg_hpc.nn.spans import span
from mgg_hpc.runtime import mpi
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

# Of 12 features and 4 classes: the first layer aggregates its input, and the second its output.
FORWARD = [f"layer 1 forward: {stage}" for stage in ("scale", "aggregate", "transform")]
FORWARD += [f"layer 2 forward: {stage}" for stage in ("transform", "aggregate")]
BACKWARD = [f"layer 2 backward: {stage}" for stage in ("bias and ReLU", "scale", "aggregate", "transform")]
BACKWARD += [f"layer 1 backward: {stage}" for stage in ("bias and ReLU", "transform")]
# Dropout of features, and dropout behind layer 1, of what layer 2 is given.
STAGES = ["layer 1 dropout", *FORWARD[:3], "layer 1 dropout behind", *FORWARD[3:], "loss", "backward"]
EPOCH = [("step",)]
EPOCH += [("step", name) for name in STAGES]
EPOCH += [("step", "backward", name) for name in BACKWARD]
EPOCH += [("step", "sum gradients"), ("step", "optimiser"), ("evaluate",)]
EPOCH += [("evaluate", name) for name in FORWARD]
EPOCH += [("read the loss",), ("read the scores",)]
COSTLY = {"aten::mm", "aten::threshold_backward", "aten::_log_softmax", "aten::_log_softmax_backward_data"}


@pytest.fixture
def trainer(tmp_path):
    """Makes the trainer of a job on one rank."""

    def made(graph, **model):
        path = jobs.write_job(tmp_path, graph, model=model, run={"backend": "serial", "threads": 1})
        job = build(config.load(path), mpi.world())
        return Trainer(job, job.graph())

    return made


def epoch(trainer):
    trainer.step(1)
    trainer.evaluate()
    trainer.loss()
    trainer.scores()


def profiled(action):
    """The events of a call."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        action()
    return sorted(found.events(), key=lambda event: event.time_range.start)


def within(event):
    """The spans that an event is, or runs in, the outermost first; torch's own have a # in their names."""
    path = ()
    while event is not None:
        if event.is_user_annotation and "#" not in event.name:
            path = (event.name, *path)
        event = event.cpu_parent
    return path


def ours(events):
    """The paths of all spans, in the order in which they began."""
    return [within(event) for event in events if event.is_user_annotation and "#" not in event.name]


def test_an_epoch_s_spans_in_their_order_and_nesting(trainer):
    """And whatever takes long in a step has a name of its own."""
    made = trainer(jobs.blocks(), hidden=16)
    events = profiled(lambda: epoch(made))
    assert ours(events) == EPOCH
    paths = [within(event) for event in events if event.name in COSTLY]
    steps = [path for path in paths if path[:1] == ("step",)]
    assert len(steps) >= 8 and all(len(path) > 1 for path in steps), paths


def test_the_first_layer_of_sparse_features_transforms_first_and_exchanges_back(trainer):
    made = trainer(jobs.with_sparse_features(jobs.blocks(features=40)), hidden=8)
    names = [path[-1] for path in ours(profiled(lambda: epoch(made)))]
    at = names.index("layer 1 dropout")
    assert names[at + 1 : at + 3] == ["layer 1 forward: transform", "layer 1 forward: aggregate"]
    assert "layer 1 backward: aggregate" in names and "layer 1 backward: dropout" not in names


@pytest.fixture
def nvtx(monkeypatch):
    """What is pushed and popped, as if this process drove a GPU; a stack for each thread, as NVTX has it."""
    told, stacks = [], threading.local()

    def push(name):
        stacks.names = [*getattr(stacks, "names", []), name]
        told.append(tuple(stacks.names))

    def pop():
        stacks.names.pop()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", push)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", pop)
    return told, stacks


def test_the_same_ranges_go_to_nvtx(trainer, nvtx):
    told, stacks = nvtx
    epoch(trainer(jobs.blocks(), hidden=16))
    assert told == EPOCH and stacks.names == []


def test_a_range_ends_where_its_stage_fails(nvtx):
    told, stacks = nvtx
    with pytest.raises(ZeroDivisionError), spans.layer("layer 3"), span("loss"):
        raise ZeroDivisionError
    assert (told, stacks.names, spans.current()) == ([("layer 3 loss",)], [], "")


def test_backward_functions_know_their_layer_on_any_thread(trainer, nvtx):
    """Autograd runs those of a GPU's tensors on a thread that knows nothing of where the forward was."""
    told, _ = nvtx
    made = trainer(jobs.blocks(), hidden=16)
    logits = made.job.model(made.job.x, made.graph)
    told.clear()
    other = threading.Thread(target=logits.sum().backward)
    other.start()
    other.join()
    assert told == [(name,) for name in BACKWARD]
