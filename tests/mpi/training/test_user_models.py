"""Jobs of a user's own class (model.module), and optimisers of torch.optim: as a plain loop of PyG in one process."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import reference
import runs
import safetensors.torch
import torch
import torch.nn.functional as F
import user_net
from jobs import blocks, dense_features, directed_weighted, with_sparse_features, write_job
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime import mpi
from mgg_hpc.training.job import Job, build
from mgg_hpc.training.trainer import Trainer

pytestmark = pytest.mark.mpi

FILE = user_net.__file__
EPOCHS = 12
GRAPHS = {
    "weighted": directed_weighted,
    "sparse": lambda: with_sparse_features(blocks()),
    "edges": lambda: _with_data(directed_weighted()),
}
MODELS = {
    "weighted": {"module": f"{FILE}:Net", "arguments": {"inputs": 12}},
    "sparse": {"module": "user_net:Net", "arguments": {"inputs": 12, "hidden": 5}},
    "edges": {"module": f"{FILE}:WithEdges", "arguments": {"inputs": 12, "columns": 3}},
    "named": {"name": "gcn", "hidden": 8, "dropout": 0.0},
}
WEIGHTS = [1.0, 2.0, 0.5, 3.0]
LOOPS = {
    "SGD": (
        {"name": "SGD", "momentum": 0.9, "nesterov": True},
        {"name": "StepLR", "step_size": 4, "gamma": 0.3},
    ),
    "AdamW": ("AdamW", {"name": "OneCycleLR", "max_lr": 0.05, "total_steps": 40}),
    "RMSprop": ("RMSprop", {"name": "ReduceLROnPlateau", "patience": 0, "factor": 0.5}),
    "Adam": ("Adam", ""),
}


def _with_data(graph):
    rng = np.random.default_rng(5)
    return dataclasses.replace(
        graph, edge={"attr": rng.normal(size=(len(graph.indices), 3)).astype(np.float32)}
    )


@pytest.mark.parametrize(
    ("kind", "loop", "dtype"),
    [
        ("weighted", "SGD", "float64"),
        ("weighted", "Adam", "float32"),
        pytest.param("sparse", "RMSprop", "float64", marks=pytest.mark.long),
        ("edges", "AdamW", "float64"),
        ("named", "SGD", "float64"),
        pytest.param("named", "Adam", "float64", marks=pytest.mark.long),
    ],
)
def test_losses_are_those_of_a_plain_loop_in_one_process(comm, stored, kind, loop, dtype):
    graph = (blocks if kind == "named" else GRAPHS[kind])()
    optimizer, scheduler = LOOPS[loop]
    train = {"optimizer": optimizer, "scheduler": scheduler, "clip_norm": 0.4, "class_weights": WEIGHTS}
    train |= {"dtype": dtype, "weight_decay": 0.01, "learning_rate": 0.02, "epochs": EPOCHS}
    train |= {"weight_decay_layers": "all"} if kind == "named" else {}
    chosen = runs.settings(stored(kind, graph), model=MODELS[kind], train=train, plan={"transfer": "halo"})
    job = build(chosen, comm)
    start = copy.deepcopy(job.model.state_dict())
    found = _losses(job)
    job.close()
    wanted = _plain(graph, kind, start, loop, getattr(torch, dtype))
    with mpi.agree(comm):
        np.testing.assert_allclose(found, wanted, rtol=1e-10 if dtype == "float64" else 1e-5)
        assert wanted[-1] < 0.98 * wanted[0]


def _losses(job: Job) -> list[float]:
    """Return the losses of a job's epochs, as `_Training.run` goes through them."""
    trainer, found = Trainer(job, job.graph()), []
    for epoch in range(1, EPOCHS + 1):
        list(trainer.run(epoch))
        trainer.evaluate()
        found.append(trainer.loss())
        trainer.end_epoch(trainer.scores(), found[-1])
    return found


def _plain(graph, kind, start, loop, dtype) -> list[float]:
    """Return the losses of PyG's model by torch's optimiser in one process."""
    source, target = reference.edge_list(graph.indptr, graph.indices)
    index = torch.from_numpy(np.stack([source, target]).astype(np.int64))
    x, y = torch.from_numpy(dense_features(graph)).to(dtype), torch.from_numpy(graph.y).long()
    weight = None if graph.weight is None else torch.from_numpy(graph.weight).to(dtype)
    if kind == "named":
        model = GCN(12, 8, num_layers=2, out_channels=4, dropout=0.0)
    else:
        model = getattr(user_net, MODELS[kind]["module"].rpartition(":")[2])(**MODELS[kind]["arguments"])
    model.to(dtype).load_state_dict(start)
    attr = torch.from_numpy(graph.edge["attr"]).to(dtype) if kind == "edges" else None
    given = (Data(x=x, edge_index=index, edge_attr=attr),) if kind == "edges" else (x, index, weight)
    settings = {"lr": 0.02, "weight_decay": 0.01}
    optimizer = {
        "SGD": lambda parameters: torch.optim.SGD(parameters, momentum=0.9, nesterov=True, **settings),
        "AdamW": lambda parameters: torch.optim.AdamW(parameters, **settings),
        "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, **settings),
        "Adam": lambda parameters: torch.optim.Adam(parameters, **settings),
    }[loop](model.parameters())
    rates = torch.optim.lr_scheduler
    scheduler = {
        "SGD": lambda: rates.StepLR(optimizer, 4, 0.3),
        "AdamW": lambda: rates.OneCycleLR(optimizer, 0.05, total_steps=40),
        "RMSprop": lambda: rates.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
        "Adam": lambda: None,
    }[loop]()
    weights, train, val = (
        torch.tensor(WEIGHTS, dtype=dtype),
        torch.from_numpy(graph.train),
        torch.from_numpy(graph.val),
    )
    losses = []
    for _ in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*given)[train], y[train], weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            validation = float(F.cross_entropy(model(*given)[val], y[val]))
        if scheduler is not None:
            scheduler.step(*([validation] if loop == "RMSprop" else []))
    return losses


def test_dropout_and_batches_do_not_depend_on_the_number_of_ranks(comm, stored):
    """Of the user's model, and of a named one on batches with class weights and a scheduler."""
    user = {"model": {"module": f"{FILE}:Net", "arguments": {"inputs": 12, "dropout": 0.4}}}
    train = {"class_weights": WEIGHTS, "clip_norm": 0.4, "optimizer": "AdamW", "dtype": "float64"}
    train |= {"scheduler": {"name": "ExponentialLR", "gamma": 0.9}}
    sampled = {"train": train | {"mode": "sampled", "fanouts": [3, 3], "batch_size": 7}}
    for sections in (user | {"train": train}, sampled):
        settings = runs.settings(stored("g", blocks()), **sections)
        alone = comm.Split(comm.rank)
        every = []
        for group in (comm, alone):
            job = build(settings, group)
            every.append(_losses(job))
            job.close()
        alone.Free()
        with mpi.agree(comm):
            np.testing.assert_allclose(*every, rtol=1e-10)
            assert len({round(each, 6) for each in every[0]}) == EPOCHS


def own(name, **arguments):
    """The model section of a class of user_net.py."""
    return {"module": f"{FILE}:{name}"} | ({"arguments": arguments} if arguments else {})


WRONG = [  # of the sections model and train
    ({"module": "no.py:Net"}, {}, ["there is no file", "no.py; it is found relative to the job file"]),
    ({"module": "no_such_package:Net"}, {}, ["cannot be imported: ModuleNotFoundError: No module named"]),
    (own("Nett"), {}, ["has no Nett; did you mean 'Net'?"]),
    (own("net"), {}, ["has net, which is no class of a torch.nn.Module"]),
    (own("Net", inputs=12, hiden=3), {}, ["'hiden'; Net takes (inputs: "]),
    (own("Net", inputs="a"), {}, ["Net cannot be made of them: TypeError"]),
    (own("Net", inputs=-1), {}, ["conv1.lin.weight of Net has no shape yet"]),
    (own("Wide", inputs=12), {}, ["returns a tensor [", "; expected logits [rows, 4]"]),
    (own("Net", inputs=13), {}, ["forward of user_net.py:Net fails for 12 features"]),
    ({"module": "torch.nn:Identity"}, {}, ["Identity has no parameters that are trained"]),
    (own("Shuffling", inputs=12), {}, ["Shuffling"]),
    (own("Lacking", inputs=12), {}, ["takes edge_kind, which", "has x, edge_index"]),
    (own("Net") | {"hidden": 8}, {}, ["model.hidden is 8, which does not go with model.module"]),
    ({"arguments": {"a": 1}}, {}, ["model.arguments are for a class of your own"]),
    (own("Net", inputs=12), {"dtype": "bfloat16"}, ['it is "float32" or "float64"']),
    (own("Net", inputs=12), {"mode": "sampled"}, ["train.mode is 'sampled'"]),
    ({}, {"class_weights": [1, 2]}, ["train.class_weights has 2 numbers", "has 4 classes"]),
    ({"module": "leaving.py:Net"}, {}, ["cannot be imported: SystemExit: 0 (leaving.py, line 1)"]),
    ({}, {"scheduler": {"name": "StepLR", "step_size": 0}}, ["train.scheduler: its arguments", "ZeroDiv"]),
    ({}, {"scheduler": {"name": "ExponentialLR", "gamma": "x"}}, ["train.scheduler: its arguments"]),
    ({}, {"optimizer": {"name": "Adam", "capturable": True}}, ["train.optimizer: its arguments"]),
    ({}, {"optimizer": {"name": "AdamW", "differentiable": True}}, ["train.optimizer: its arguments"]),
    ({}, {"optimizer": "adamw"}, ["'adamw' is none of torch.optim", "did you mean 'AdamW'?"]),
]


@pytest.mark.parametrize(("model", "train", "said"), WRONG)
def test_what_is_wrong_is_said_in_one_line(mgg, folder, first, model, train, said):
    if (folder / "job.toml").exists():
        first((folder / "job.toml").unlink)
    first(lambda: write_job(folder, blocks(), model=model, train=train))
    first(lambda: (folder / "leaving.py").write_text("import sys; sys.exit(0)"))
    outcome = mgg("train", folder / "job.toml")
    line = outcome.refused()
    assert all(each in line for each in said), line


UNWEIGHTED = """
from user_net import Net as _Net

class Net(_Net):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index)
"""


def test_a_changed_file_is_told_when_a_run_goes_on(mgg, folder, first):
    source = folder / "net.py"
    first(lambda: source.write_text(UNWEIGHTED))
    model = {"module": "net.py:Net", "arguments": {"inputs": 12}}
    first(lambda: write_job(folder, directed_weighted(), model=model, checkpoint={"every_epochs": 1}))
    begun = mgg("train", folder / "job.toml")
    assert begun.codes == {0}
    assert begun.out[0].count(f"{source} is imported, and its code runs") == 1
    assert begun.out[0].count("takes no edge_weight, so the graph's weights are not used") == 1
    more = ["resume", folder / "runs", "--set"]
    assert "has changed" not in mgg(*more, "train.epochs=4").out[0]
    first(lambda: source.write_text(source.read_text() + "\n# other\n"))
    changed = mgg(*more, "train.epochs=5")
    assert changed.codes == {0} and "its file has changed since epoch 4 was saved" in changed.out[0]


def test_predictions_of_a_model_trained_elsewhere_are_its_own(mgg, folder, first, comm):
    graph = directed_weighted()
    torch.manual_seed(4)
    model = user_net.Net(12, classes=6).eval()
    first(lambda: write_job(folder, graph))
    first(lambda: safetensors.torch.save_file(model.state_dict(), folder / "state.safetensors"))
    first(lambda: torch.save(model.state_dict(), folder / "state.pt"))
    first(lambda: torch.save(model, folder / "pickled.pt"))
    rest = ["--module", f"{FILE}:Net", "--arguments", "{inputs = 12, classes = 6}"]
    rest += ["--graph", folder / "g.h5"]
    source, target = reference.edge_list(graph.indptr, graph.indices)
    index = torch.from_numpy(np.stack([source, target]).astype(np.int64))
    with torch.no_grad():
        wanted = model(torch.from_numpy(graph.x), index, torch.from_numpy(graph.weight)).softmax(1)
    for name in ("state.safetensors", "state.pt"):
        out = folder / f"{name}.npy"
        assert mgg("predict", "--model", folder / name, *rest, "-o", out, "--what", "probability").codes == {
            0
        }
        with mpi.agree(comm):
            np.testing.assert_allclose(np.load(out), wanted, atol=1e-6)
    line = mgg("predict", "--model", folder / "pickled.pt", *rest, "-o", folder / "no.npy").refused()
    assert "pickled.pt: neither safetensors" in line and "save model.state_dict()" in line
    first(lambda: torch.save([model.conv2.att.data], folder / "list.pt"))
    line = mgg("predict", "--model", folder / "list.pt", *rest, "-o", folder / "no.npy").refused()
    assert "list.pt: is no dictionary of tensors by name" in line
    rest[3] = "{inputs = 12, classes = 5}"
    line = mgg("predict", "--model", folder / "state.pt", *rest, "-o", folder / "no.npy").refused()
    assert "state.pt: conv2.att is float32 [1, 1, 6], but model.module and model.arguments make" in line
    assert not (folder / "no.npy").exists()


OTHERS = {
    "a rank without rows": ("tiny", {"arguments": {"in_channels": 2, "out_channels": 2}}, {}),
    "degrees": ("plain", {"arguments": {"in_channels": 32, "out_channels": 4}, "input": "degree"}, {}),
    "learned rows": (
        "plain",
        {"arguments": {"in_channels": 6, "out_channels": 4}, "input": "learned", "embedding": 6},
        {"optimizer": "AdamW", "clip_norm": 0.1},
    ),
    "several labels": (
        "several",
        {"arguments": {"in_channels": 12, "out_channels": 4}},
        {"normalize_features": "row"},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", OTHERS)
def test_losses_of_other_inputs_do_not_depend_on_the_number_of_ranks(comm, stored, case):
    kind, model, train = OTHERS[case]
    graph = blocks()
    if kind == "tiny":
        edges, none = np.array([1, 0], np.int32), np.zeros(2, bool)
        rows = {
            "x": np.eye(2, dtype=np.float32),
            "y": np.array([0, 1]),
            "train": ~none,
            "val": none,
            "test": none,
        }
        graph = Graph("tiny", np.arange(3), edges, directed=False, classes=2, **rows)
    elif kind == "several":
        graph = dataclasses.replace(graph, y=np.maximum(np.eye(4)[graph.y], np.eye(4)[0]).astype(np.float32))
    arguments = {"hidden_channels": 5, "num_layers": 2} | model["arguments"]
    chosen = model | {"module": "torch_geometric.nn:GCN", "arguments": arguments}
    settings = runs.settings(stored(kind, graph), model=chosen, train=train | {"dtype": "float64"})
    alone = comm.Split(comm.rank)
    found = [runs.losses(settings, group, epochs=6) for group in (comm, alone)]
    alone.Free()
    with mpi.agree(comm):
        np.testing.assert_allclose(*found, rtol=1e-10)
        assert found[0][5] < found[0][0]
