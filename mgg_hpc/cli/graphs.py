"""The commands of graph files: import, export, info, verify, partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click import IntRange, argument, option

from ..data.readers import FORMATS
from ..errors import InputError
from .options import Choice, Existing, Fanouts, Memory, example, to_file

*FIRST, LAST = [each.source for each in FORMATS.values()]


@click.command(
    "import",
    help=f"""Turn a graph in another format into a graph file.

    SOURCE is {", ".join(FIRST)}, or {LAST}; or clicks, with FILES, logs of Criteo's that become a file for
    training DLRM. A graph is undirected if the reverse of each edge is listed too, with the
    same weight. An import that was stopped goes on where it was when the same command is given again.
    """,
    epilog=example(
        "mgg import digits -o digits.h5",
        "mgg import planetoid --name cora --download -o cora.h5",
        "mgg import edges.txt.gz --symmetric --features x.npy --labels y.npy -o graph.h5",
        "mgg import soc-LiveJournal1.txt.gz --memory 4G -o livejournal.h5",
        "mgg import out.wikipedia.tsv.zst --first 1 -o wikipedia.h5",
        "mgg import links.csv --map-ids --header --delimiter ';' -o links.h5",
        "mgg import web.mtx -o web.h5",
        "mgg import mesh.graph -o mesh.h5",
        "mgg import edges.npy --features x.npy --feature-type float16 -o large.h5",
        "mgg import dataset/ogbn_arxiv --symmetric -o arxiv.h5",
        "mgg import tolokers.npz --split 3 -o tolokers.h5",
        "mgg import blogcatalog.npz --split-random 0.6 0.2 -o blogcatalog.h5",
        "mgg import clicks day_0.gz day_1.gz -o clicks.h5",
    ),
)
@argument("source")
@argument("files", nargs=-1, type=Existing)
@to_file("File to write.")
@option("--format", "format_", type=Choice([*FORMATS]), help="[default: by the name of SOURCE]")
@option("--name", help="The graph's name; for planetoid, the graph to read.")
@option("--memory", type=Memory, help="Memory to use, such as 2G. [default: half of the machine's]")
@option("--symmetric", is_flag=True, help="Add the reverse of each listed edge, and merge duplicates.")
@option("--simple", is_flag=True, help="Merge duplicates, and drop self loops.")
@option(
    "--combine",
    type=Choice(["sum", "mean", "max", "min", "first"]),
    help="Weight of edges that --symmetric or --simple merge; first keeps all data of the first one. [default: "
    "refuse different weights]",
)
@option("--nodes", type=IntRange(1), help="Number of nodes. [default: the largest id plus one]")
@option("--first", type=IntRange(0, 1), help="Number of the first node in an edge list. [default: 0]")
@option(
    "--map-ids",
    is_flag=True,
    help="Take any ids in an edge list, and number the nodes in the order in which they first appear there; rows of "
    "features, labels and masks are in that order. The ids are kept; mgg export and predictions list them.",
)
@option(
    "--delimiter",
    help="What separates columns of text, of edges and of nodes: a character, several, tab or blanks. [default: comma, "
    "semicolon, bar, tab or blanks, by the first lines]",
)
@option("--decimal", type=Choice([".", ","]), help="Decimal mark of text. [default: .]")
@option(
    "--comment",
    metavar="MARK",
    help="Lines of text that begin with MARK are left out. [default: # and %; with --map-ids, those before the first "
    "edge]",
)
@option(
    "--header/--no-header",
    default=None,
    help="The first line of texts names their columns, or does not. [default: words above numbers of nodes are names; "
    "above edges they are refused]",
)
@option(
    "--edge-data",
    metavar="NAME=FILE.npy",
    multiple=True,
    help="Data of the edges of an edge list or .npy, [E, ...] in the order in which they are listed; repeatable. The "
    "name weight gives the weights, [E].",
)
@option("--features", type=Existing, help="Features of the nodes: .npy, .csv, .parquet, or .npz of SciPy.")
@option("--feature-type", type=Choice(["float32", "float16"]), help="How to store them. [default: float32]")
@option(
    "--labels",
    type=Existing,
    help="Labels: .npy, .csv or .parquet; integers [N] or [N, 1], or 0 and 1 [N, C].",
)
@option(
    "--masks",
    type=(Existing, Existing, Existing),
    metavar="TRAIN VAL TEST",
    help="Nodes of each split: .npy or .csv, of node numbers or of 0 and 1.",
)
@option("--split-per-class", is_flag=True, help="Draw 20 training and 30 validation nodes a class.")
@option(
    "--split-random",
    type=(float, float),
    metavar="TRAIN VAL",
    help="Draw these shares of the nodes for training and validation.",
)
@option("--seed", type=IntRange(0), help="Seed of drawn splits. [default: 0]")
@option(
    "--transpose",
    is_flag=True,
    help="Read the entries (i, j) of a .mtx, or of SciPy's matrix in an .npz, as edges j -> i. [default: i -> j]",
)
@option("--directed", is_flag=True, help="Read an archive's directed original (dir_indptr).")
@option("--split", type=IntRange(0), help="Which of an archive's several splits.")
@option("--download", is_flag=True, help="Fetch Planetoid's files from their authors.")
@option("--skip-bad", is_flag=True, help="Pass over wrong lines of clicks, and count them.")
def import_(
    source: str,
    files: tuple[Path, ...],
    output: Path,
    force: bool,
    format_: str | None,
    skip_bad: bool,
    **options: Any,
) -> None:
    if source == "clicks":
        from ..tools.clicks import process_clicks

        given = [name for name, value in options.items() if value not in (None, (), False)]
        if given or format_:
            raise InputError(f"--{(given or ['format'])[0].replace('_', '-')} does not go with clicks")
        return process_clicks(files, output, force=force, skip_bad=skip_bad)
    if skip_bad:
        raise InputError("--skip-bad is for clicks")
    if len(files) > 1:
        raise InputError(f"'{files[1]}' is one argument too many")
    from ..tools.importing import process_import

    return process_import(
        source, files[0] if files else None, output, force=force, format_=format_, options=options
    )


@click.command(
    short_help="Turn a graph file into another format.",
    epilog=example(
        "mgg export cora.h5 -o cora.npz", "mgg export cora.h5 -o cora.mtx", "mgg export cora.h5 -o cora.pt"
    ),
)
@argument("graph", type=Existing)
@to_file("File to write: .npz, .mtx or .pt.")
@option("--memory", type=Memory, help="Memory to use, such as 2G. [default: half of the machine's]")
def export(graph: Path, output: Path, force: bool, memory: int | None) -> None:
    """Turn a graph file into an archive of NumPy (.npz), a Matrix Market file (.mtx) or a Data of PyG (.pt).

    Nodes have the numbers of the import, whatever their order in the file. An archive has all contents, and gives the
    same graph file again. Features, labels and masks of a Matrix Market file are beside it (.npy). A .pt file is a
    pickle.
    """
    from ..tools.export import process_export

    process_export(graph, output, force=force, memory=memory)


@click.command(epilog=example("mgg info cora.h5", "mgg info cora.h5 --json"))
@argument("graph", type=Existing)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(graph: Path, as_json: bool) -> None:
    """Print what is in a graph file."""
    from ..tools.files import process_info

    process_info(graph, as_json=as_json)


@click.command(short_help="Check that a graph file is sound.", epilog=example("mgg verify cora.h5"))
@argument("graph", type=Existing)
def verify(graph: Path) -> None:
    """Check that a graph file is sound, and name the first value that is not."""
    from ..tools.files import process_verify

    process_verify(graph)


@click.command(
    short_help="Divide the nodes among ranks, or renumber them.",
    epilog=example(
        "mgg partition cora.h5 -n 4",
        "mgg partition cora.h5 -n 4 --order community",
        "mgg partition cora.h5 -n 4 --method metis",
        "mgg partition cora.h5 --assignment parts.npy",
        "mgg partition cora.h5 --order visits --fanouts 15,10,5",
        "mgg partition cora.h5 --order none",
    ),
)
@argument("graph", type=Existing)
@option("-n", "--parts", type=IntRange(1, 4096), help="Parts: ranks that will train.")
@option(
    "--method",
    type=Choice(["edges", "metis", "ldg", "given"]),
    default="edges",
    help="Contiguous nodes with as many edges each (the default); or METIS, linear deterministic greedy, or a given "
    "assignment, each of which renumbers the nodes.",
)
@option(
    "--assignment",
    type=Existing,
    help="The part of each node as it was imported: integers [N] in a .npy file.",
)
@option(
    "--order",
    type=Choice(["none", "degree", "rcm", "community", "visits"]),
    help="Renumber the nodes, those of each part if a method assigns them: as imported, by descending in-degree, by "
    "reverse Cuthill-McKee, communities together (the fastest to train on, as a rule), or by descending chance that a "
    "mini-batch reads them. Default: leave them.",
)
@option(
    "--fanouts", type=Fanouts(), help="With --order visits: as train.fanouts of the job, such as 15,10,5."
)
@option(
    "--batch-size",
    "batch",
    type=IntRange(1),
    help="With --order visits: as train.batch_size. [default: 1024]",
)
@option("--memory", type=Memory, help="Memory to use, such as 2G. [default: half of the machine's]")
def partition(graph: Path, order: str | None, **options: Any) -> None:
    """Divide the nodes of a graph file into ranges for a number of ranks, or renumber them, or both.

    The file keeps the imported numbering: predictions use it with any order, and --order none restores it.
    """
    from ..tools.partition import process_partition

    process_partition(graph, renumbering=order, **options)
