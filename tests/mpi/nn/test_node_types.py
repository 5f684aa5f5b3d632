"""Graphs of several types of nodes, and models of PyG that take these, beside PyG in one process."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from mpi4py import MPI
from tiers import long_except
from torch import nn
from torch_geometric.data import HeteroData

import mgg_hpc as mgg
from mgg_hpc.data.libraries import from_pyg as to_graph
from mgg_hpc.nn.convert import check, compare, convert, running
from mgg_hpc.runtime import mpi
from mgg_hpc.tools.partition import process_partition

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3)]

# Nodes and columns of x. Places are on two ranks at most; boxes have no features, and sell's edges are none.
COUNTS = {"paper": (31, 6), "author": (17, 3), "place": (2, 2), "box": (5, 0)}
EDGES = {
    ("paper", "cites", "paper"): 90,
    ("author", "writes", "paper"): 60,
    ("paper", "by", "author"): 50,
    ("paper", "at", "place"): 30,
    ("place", "has", "author"): 9,
    ("author", "sells", "paper"): 0,
    ("author", "knows", "author"): 20,
}


@pytest.fixture
def data(rng):
    made = HeteroData()
    for name, (count, columns) in COUNTS.items():
        made[name].num_nodes = count
        if columns:
            made[name].x = torch.from_numpy(rng.standard_normal((count, columns))).float()
    made["paper"].y = torch.from_numpy(rng.integers(0, 4, COUNTS["paper"][0]))
    made["paper"].train_mask = torch.from_numpy(rng.random(COUNTS["paper"][0]) < 0.7)
    for (source, name, target), count in EDGES.items():
        ends = [rng.integers(0, COUNTS[end][0], count) for end in (source, target)]
        made[source, name, target].edge_index = torch.from_numpy(np.stack(ends))
        made[source, name, target].edge_attr = torch.from_numpy(rng.random((count, 2))).float()
    return made


def relational(make, *, norm=False):
    """A model of two layers for the types that have features."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = make(8), make(4)
            self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()

        def forward(self, x, edge_index):
            return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)

    return pyg.to_hetero(Net(), ([name for name, (_, columns) in COUNTS.items() if columns], list(EDGES)))


class Sums(nn.Module):
    """Sums at sources, degrees, softmax and pooled rows."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x_dict, edge_index_dict):
        paper, author = self.lin(x_dict["paper"]), x_dict["author"]
        index = edge_index_dict["author", "writes", "paper"]
        back = author.new_zeros(author.size(0), paper.size(1)).index_add(0, index[0], paper[index[1]])
        degree = author.new_zeros(author.size(0)).index_add(0, index[0], author.new_ones(index.size(1)))
        out = back.softmax(0) + degree[:, None] / author.size(0) + paper.mean(0)
        return {"author": out, "paper": paper * author.amax() - paper.std(0)}


class Dropped(nn.Module):
    """Dropout of the rows of each type, before a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x_dict, edge_index_dict):
        return self.model({name: F.dropout(x, 0.4) for name, x in x_dict.items()}, edge_index_dict)


class Paper(nn.Module):
    """Rows of one type."""

    def forward(self, x_dict, edge_index_dict):
        source, target = edge_index_dict["paper", "cites", "paper"]
        return x_dict["paper"].index_add(0, target, x_dict["paper"][source])


ATTENTION = {"add_self_loops": False, "heads": 2, "concat": False}
METADATA = (list(COUNTS)[:3], list(EDGES))
MODELS = {
    "sage": lambda: relational(lambda out: pyg.SAGEConv((-1, -1), out)),
    "gat": lambda: relational(lambda out: pyg.GATConv((-1, -1), out, **ATTENTION), norm=True),
    "maxima": lambda: relational(
        lambda out: pyg.SAGEConv((-1, -1), out, aggr="max", normalize=True), norm=True
    ),
    "gatv2": lambda: relational(lambda out: pyg.GATv2Conv((-1, -1), out, **ATTENTION)),
    "transformer": lambda: relational(lambda out: pyg.TransformerConv((-1, -1), out)),
    "graph": lambda: relational(lambda out: pyg.GraphConv((-1, -1), out)),
    "hetero": lambda: pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), 4) for key in EDGES}, aggr="mean"),
    "han": lambda: pyg.HANConv(-1, 4, METADATA, heads=2),
    "sums": Sums,
}


@pytest.mark.parametrize("name", long_except(MODELS, "gat", "maxima", "sums"))
def test_models_are_pygs(comm, data, rng, name):
    torch.manual_seed(int(rng.integers(99)))
    model = MODELS[name]()
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)  # makes its weights
    model.double().train()
    assert check._compared(model, data, 1e-10, comm).startswith("equal")


@pytest.fixture
def opened(comm, data, folder):
    """The graph from memory, from a file, and from one in another order of rows."""
    with mpi.agree(comm):
        if comm.rank == 0:
            mgg.save(data, folder / "graph.h5")
            mgg.save(data, folder / "moved.h5")
            process_partition(folder / "moved.h5", parts=None, method="edges", renumbering="degree")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graphs = [
            mgg.from_pyg(data, comm=comm),
            *(mgg.open(folder / f"{each}.h5", comm=comm) for each in ("graph", "moved")),
        ]
    yield graphs
    for graph in graphs:
        graph.close()


def test_rows_and_edges_by_type(comm, data, opened):
    starts = np.cumsum([0, *(count for count, _ in COUNTS.values())])
    for graph in opened:
        types, x, ids = graph.types, graph.x_dict, torch.as_tensor(graph.ids)
        own = {name: ids[types.nodes[name]] - start for name, start in zip(COUNTS, starts, strict=False)}
        every = np.concatenate(comm.allgather(np.asarray(ids)))  # ids by the graph's numbers
        with mpi.agree(comm):
            assert sum(map(len, own.values())) == graph.rows
            assert list(x) == ["paper", "author", "place"]
            for name, rows in x.items():
                torch.testing.assert_close(rows, data[name].x[own[name]])
            paper = types.nodes["paper"]
            torch.testing.assert_close(graph.y[paper].long(), data["paper"].y[own["paper"]])
            assert not graph.train.sum() > graph.train[paper].sum()
        found = {}
        for key, index in graph.edge_index_dict().items():
            source = every[types.numbers[key[0]][index[0].numpy()]] - starts[list(COUNTS).index(key[0])]
            ends = np.stack([source, own[key[2]][index[1]]])
            found[key] = np.concatenate([ends, graph.edge_data("attr")[types.edges[key]].T])
        for key, store in data.edge_items():
            mine = np.concatenate(comm.allgather(found[key]), 1)
            with mpi.agree(comm):
                wanted = np.concatenate([store.edge_index.numpy(), store.edge_attr.numpy().T])
                assert sorted(mine.T.tolist()) == sorted(wanted.T.tolist()), key


AT = ("paper", "at", "place")
WRONG = {  # of a type, an attribute and its value, and what is said
    "x of 1 dimension": ("author", "x", torch.ones(17), r"author: x is torch.float32 \[17\]"),
    "x of 3": ("author", "x", torch.ones(17, 2, 2), r"\[17, 2, 2\]; expected a tensor \[nodes, features\]"),
    "text": ("paper", "y", "classes", "paper: y is str"),
    "a scalar": ("paper", "y", torch.tensor(1), r"paper: y is torch.int64 \[\]"),
    "too few": ("paper", "y", torch.ones(30).long(), r"\[30\]; expected 31 rows"),
    "a number": ("paper", "train_mask", 3, "paper: train_mask is int"),
    "no number of nodes": ("room", "name", "kitchen", "room has neither x nor num_nodes"),
    "an unknown type": (
        ("paper", "at", "town"),
        "edge_index",
        torch.zeros(2, 1).long(),
        "town is no type of nodes",
    ),
    "a list of numbers": (AT, "edge_index", torch.zeros(2).long(), r"expected a tensor \[2, edges\]"),
    "none": (AT, "edge_index", None, "paper at place: edge_index is NoneType"),
    "another type's numbers": (
        AT,
        "edge_index",
        torch.full((2, 30), 2),
        "numbers 2 to 2 of place; expected 0 to 1",
    ),
    "types of its own": (AT, "edge_type", torch.zeros(30).long(), "paper at place has edge_type"),
    "half a node": (
        "place",
        "num_nodes",
        3.5,
        r"place has num_nodes 3\.5; set its num_nodes to an integer",
    ),
    "less than none": ("place", "num_nodes", -3, "place has num_nodes -3; set"),
    "other edges'": (AT, "edge_attr", torch.ones(29, 2), r"\[29, 2\]; expected 30 rows"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_hetero_data_is_refused(data, name):
    key, attribute, value, said = WRONG[name]
    setattr(data[key], attribute, value)
    with pytest.raises(mgg.InputError, match=f"from_pyg: .*{said}") as error:
        to_graph(data)
    assert "\n" not in str(error.value)


def test_attributes_of_other_columns_are_left_out(data):
    data[AT].edge_attr = torch.ones(30, 5)
    with pytest.warns(
        UserWarning, match="left out 1 attribute that types lack or have in other columns: 'edge_attr'"
    ):
        assert not {*to_graph(data).edge} - {"type"}


def trained(comm, data, epochs=4):
    graph = mgg.from_pyg(data, comm=comm, dtype="float64")
    torch.manual_seed(3)
    model = MODELS["gat"]()
    x = {name: each.double() for name, each in data.x_dict.items()}
    with torch.no_grad():
        model.double()(x, data.edge_index_dict)
    model = mgg.convert(Dropped(model), graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        index = {key: each.clone() for key, each in graph.edge_index_dict().items()}
        out = graph.joined(model(graph.x_dict, index))
        loss = graph.loss(out, F.cross_entropy)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    graph.close()
    return losses


@pytest.mark.filterwarnings("ignore:mgg.convert. no rows were compared.*draws random numbers")
def test_training_is_that_of_one_process(comm, data):
    mgg.manual_seed(5)
    losses = trained(comm, data)
    mgg.manual_seed(5)
    wanted = trained(MPI.COMM_SELF, data)
    with mpi.agree(comm):
        np.testing.assert_allclose(losses, wanted, rtol=1e-9)
        assert len(set(losses)) == 4


def test_the_example_of_the_page(comm, data):
    page = (Path(__file__).parents[3] / "docs" / "pyg.md").read_text().partition("## Several types")[2]
    torch.manual_seed(1)
    del data["box"]
    known = {"torch": torch, "mgg": mgg, "F": F, "data": data, "GraphSAGE": pyg.GraphSAGE}
    known["to_hetero"] = pyg.to_hetero
    exec(page.partition("```python")[2].partition("```")[0], known)
    alone = convert.original(known["model"])(data.x_dict, data.edge_index_dict)["paper"]
    paper = data["paper"]
    with mpi.agree(comm):
        wanted = F.cross_entropy(alone[paper.train_mask], paper.y[paper.train_mask])
        torch.testing.assert_close(known["loss"], wanted, rtol=1e-5, atol=1e-6)
    known["graph"].close()


def test_the_first_call_finds_rows_that_do_not_come(comm, data, monkeypatch):
    extended = running.extended
    with mgg.from_pyg(data, comm=comm) as graph:
        model = MODELS["sage"]()
        with torch.no_grad():
            torch.manual_seed(1)
            model(data.x_dict, data.edge_index_dict)
        given = graph.x_dict, graph.edge_index_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mgg.convert(model, graph)(*given)
            mgg.convert(Paper(), graph)(*given)
        monkeypatch.setattr(running, "extended", lambda *given: extended(*given) * 0.5)
        with pytest.raises(mgg.InputError, match=r"this is an error of mgg\.convert"):
            mgg.convert(model, graph)(*given)
        monkeypatch.undo()
        monkeypatch.setattr(compare, "MOST_EDGES", 10)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mgg.convert(model, graph)(*given)
            mgg.convert(Paper(), graph)(*given)
        with mpi.agree(comm):
            said = [str(each.message) for each in caught]
            assert len(said) == 2 * (comm.rank == 0)
            assert all(
                "several types of nodes, and the graph has more than 10 edges" in each for each in said
            )


def test_what_cannot_be_right_is_refused(comm, data):
    def model(forward):
        return type("Net", (nn.Module,), {"forward": lambda self, x, e: forward(x, e)})()

    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    forwards = {
        "rows of paper by numbers of author": (
            lambda x, e: x["paper"][e[writes][0]],
            "takes rows of nodes of paper",
        ),
        "types with types": (
            lambda x, e: x["paper"][:, :2] + x["author"][:, :2],
            "combines a row|part, with others",
        ),
        "edges of two types": (
            lambda x, e: x["paper"][e[cites][1]] + x["paper"][e[writes][1]],
            "combines a row|part, with others",
        ),
        "all nodes in one list": (
            lambda x, e: {"paper": torch.cat([x["paper"], x["paper"]])},
            "rows of the nodes",
        ),
        "sorted": (lambda x, e: x["author"].sort(0).values, "sort"),
        "hgt": (
            pyg.HGTConv({n: c for n, (_, c) in COUNTS.items() if c}, 4, METADATA),
            r"\(HGTConv\) joins nodes of all types",
        ),
    }
    with mgg.from_pyg(data, comm=comm) as graph:
        given = graph.x_dict, graph.edge_index_dict()
        for name, (forward, said) in forwards.items():
            torch.manual_seed(1)
            made = forward if isinstance(forward, nn.Module) else model(forward)
            made.load_state_dict(comm.bcast(made.state_dict()))
            if comm.size > 1:
                with pytest.raises(mgg.InputError, match=said):
                    mgg.convert(made, graph, check=False)(*given)
                    pytest.fail(name)
        with pytest.raises(mgg.InputError, match="HeteroData; let it take x_dict"):
            mgg.convert(model(lambda x, e: x), graph)(data, given[1])
        rows = {"paper": graph.x_dict["paper"][:, :2], "author": graph.x_dict["author"]}
        for wrong in (
            {},
            rows,
            {"paper": rows["paper"][:0][None]},
            {"papers": rows["paper"]},
            rows["paper"],
            None,
        ):
            with pytest.raises(mgg.InputError, match=r"graph\.joined"):
                graph.joined(wrong)
        held = json.loads(graph.part.types)
        nodes, edges = held["nodes"], held["edges"]
        for types in (
            "[",
            "{}",
            json.dumps({"nodes": nodes[1:], "edges": edges}),
            json.dumps({"nodes": nodes[::-1], "edges": edges}),
            json.dumps({"nodes": nodes, "edges": edges[::-1]}),
            json.dumps({"nodes": nodes, "edges": edges[:2]}),
            json.dumps({"nodes": [[name, count, 99] for name, count, _ in nodes], "edges": edges}),
            json.dumps({"nodes": nodes, "edges": [["a", "b", "c"], *edges[1:]]}),
        ):
            graph.part.types = types
            graph.__dict__.pop("types", None)
            with pytest.raises(mgg.InputError, match="types"):
                graph.types  # noqa: B018
