"""Bad input of benchmarks is one line that names it, with exit code 2, before anything is measured."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("accuracy", "--cases=cora,moons", "--cases cora,moons: 'moons' is not one of cora, citeseer"),
        ("aggregate", "rmat:4 --peers=jax", "--peers jax: 'jax' is not one of dgl, torch, pyg, mkl, scipy"),
        ("aggregate", "rmat:4 --peers-env=absent", "--peers-env absent: no Python environment"),
        ("dlrm", "lookup --dims=0", "--dims 0"),
        ("dlrm", "lookup --ranks=1 --gloo --device=cuda", "--gloo has no meaning with --device cuda"),
        ("partition", "none.h5 -n 3 --methods=edges,kmeans", "'kmeans' is not one of community, degree"),
        ("sampling", "rmat:4 --fanouts=5,x", "--fanouts 5,x: 'x'; expected numbers of 1 .. 65536"),
        ("start", "nothing", "no such graph"),
        ("start", "rmat:28:7 --backend=fast", "run.backend is 'fast'"),  # before it is drawn
        ("streaming", "--folder=/absent", "'--folder': Directory '/absent' does not exist."),
        ("streaming", "rmat:4 --ranks=2", "--ranks, or a launcher: for --parts ring alone"),
        ("tiers", "hits rmat:4 nothing", "nothing.npz: no such graph; name the folder of graphs in MGG_DATA"),
        ("tiers", "traffic rmat:4 --fanouts=5,0", "'5,0'; expected such as 15,10,5, each at least 1"),
        ("tiers", "requests --sizes=1024,1030", "--sizes 1030: expected multiples of 4"),
        ("traversal", "rmat:4 ring.h5 --peers=none", "ring.h5: no such file"),
        ("traversal", "--device=cuda", "'--device': 'cuda' is not 'cpu'."),
        ("two_hosts", "", "Missing argument 'PROGRAM.py [ARGUMENT]...'"),
        ("versus", "nothing", "nothing: exit code 128: fatal: Needed a single revision"),
        ("versus", "HEAD --parts=plans", "--parts plans: 'plans' is not one of layers, gathers, epochs"),
        ("studies/exchanges", "transfers karate", "karate: no such graph"),
        ("studies/exchanges", "transfers rmat:5 --widths=0", "--widths 0"),
        ("studies/exchanges", "primitives rmat:5 --device=cuda --ranks=2", "--ranks has no meaning"),
        ("studies/exchanges", "transfers rmat:5 --share=0.2", "--share has no meaning with --device cpu"),
        ("studies/exchanges", "transfers rmat:5 -o missing/e.csv", "missing is not a folder"),
        ("studies/design_space", "rmat:5 --backend=none --ranks=1", "none"),
        ("studies/design_space", "rmat:5 --device=cuda --threads=1", "--threads has no meaning"),
        ("studies/design_space", "rmat:5 --transfer=halo", "--transfer halo: on CPUs"),
        ("studies/traversal", "nothing", "no such graph; name the folder of graphs in MGG_DATA"),
        ("studies/sampling", "missing.toml", "missing.toml: no such job file"),
        ("studies/sampling", "job.toml --fanouts=5", "train.fanouts has 1 numbers, and the model has 2"),
        ("studies/sampling", "job.toml --set=graph.file=no.h5", "mgg train job.toml: exit code 2: mgg: err"),
    ],
)
def test_bad_input_is_one_line(ran, tmp_path, script, words, said):
    (tmp_path / "graph.h5").touch()
    (tmp_path / "job.toml").write_text('[graph]\nfile = "graph.h5"\n[model]\nname = "sage"\nlayers = 2\n')
    done = ran(script, *words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{script.rpartition('/')[2]}.py: error: ") and said in done.stderr
