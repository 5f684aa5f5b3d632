"""Texts and archives as other programs write them: ids, delimiters, headers and quotes are read or refused."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
import scipy.sparse as sp
from command import mgg, refused
from pyarrow import parquet

from mgg_hpc.data.readers import compressed

pytestmark = pytest.mark.usefixtures("here")


def held(path):
    """Return the sources, destinations and, where there are some, weights of a graph file as lists."""
    with h5py.File(path) as file:
        destinations = np.repeat(np.arange(len(file["graph/indptr"]) - 1), np.diff(file["graph/indptr"][:]))
        weights = [file["graph/weight"][:].tolist()] if "graph/weight" in file else []
        return [file["graph/indices"][:].tolist(), destinations.tolist(), *weights]


def edges(*options, text, name="e.txt"):
    """Import an edge list, and return its edges, sorted: (source, destination), or (source, destination, weight)."""
    Path(name).write_text(text, encoding="utf-8")
    assert mgg("import", name, "-o", "g.h5", *options) == 0
    return sorted(zip(*held("g.h5"), strict=True))


ONE = [(0, 1, 0.5), (1, 2, 1.5)]
# Texts of the edges in ONE, and the options that they need.
READ = {
    "bars": ("0|1|0.5\n1|2|1.5\n", ()),
    "bars that are said": ("0|1|0.5\n1|2|1.5\n", ("--delimiter", "|")),
    "bars and decimal commas": ("0 | 1 | 0,5\n1|2|1,5\n", ("--decimal", ",")),
    "commas and decimal commas": ('0,1,"0,5"\n1,2,"1,5"\n', ("--decimal", ",")),
    "commas and decimal commas that are said": (
        '0,1,"0,5"\n1,2,"1,5"\n',
        ("--decimal", ",", "--delimiter", ","),
    ),
    "a header by several names": ("FromNodeId,ToNodeId,edge_weight\n0,1,0.5\n1,2,1.5\n", ("--header",)),
    "decimal commas": ("0;1;0,5\n1;2;1,5\n", ("--decimal", ",")),
    "quoted": ('"0","1","0.5"\n"1","2","1.5"\n', ()),
    "floats that are whole": ("0.0 1.0 0.5\n1.0 2.0 1.5\n", ()),
    "as numpy.savetxt writes them": ("0.00e+00 1.00e+00 5.0e-01\n1.0e+00 2.0e+00 1.5e+00\n", ()),
    "two characters": ("0::1::0.5\n1::2::1.5\n", ("--delimiter", "::")),
    "a tab that is said": ("0\t1\t0.5\n1\t2\t1.5\n", ("--delimiter", "tab")),
    "blanks around semicolons": (" 0 ; 1 ;0,5\n1;2;1,5\n", ("--decimal", ",")),
    "a header of numbers": ("0,1,2\n0,1,0.5\n1,2,1.5\n", ("--header",)),
    "a quoted header": ('"source","target","weight"\n0,1,0.5\n1,2,1.5\n', ("--header",)),
    "header": ("source,target,weight\n0,1,0.5\n1,2,1.5\n", ("--header",)),
    "comment of another kind": ("// made by hand\n0 1 0.5\n1 2 1.5\n", ("--comment", "//")),
}


@pytest.mark.parametrize("name", READ)
def test_edge_lists_of_other_programs(name):
    text, options = READ[name]
    assert edges(*options, text=text) == ONE


def test_one_way_to_spell_a_number():
    assert edges(text="1e+05 0\n100000 1\n100000.0 2\n") == [(100000, 0), (100000, 1), (100000, 2)]


WRONG_HEADERS = {
    "reversed": ("target,source\n0,1\n", "in order"),
    "the weight first": ("weight,source,target\n1,0,1\n", "in order"),
    "pandas' index": (",source,target\n0,5,6\n", "index"),
    "R's names of rows": ("source target\n1 5 6\n2 6 7\n", "columns"),
    "an edge": ("3,7\n0,1\n", "header"),
    "the target third": ("source,cost,target\n0,1,2\n", "in order"),
    "the target last": ("head,relation,tail\n0,1,2\n", "in order"),
    "both later": ("id,from_node,to_node\n0,1,2\n", "in order"),
    "numbered names later": ("id,protein1,protein2\n0,1,2\n", "in order"),
    "keys of addresses": ("src_ip,src_port,dst_ip,dst_port\n0,1,2,3\n", "in order"),
    "the receiver first": ("receiver,sender\n0,1\n", "in order"),
    "the weight fourth": ("source,target,cost,weight\n0,1,2,3\n", "keep source"),
    "Gephi's": ("Source,Target,Id,Weight\n0,1,2,3\n", "keep source"),
    "labels": ("source,target,label\n0,1,2\n", "third"),
    "types": ("u,v,edge_type\n0,1,2\n", "third"),
    "times": ("source,target,timestamp\n0,1,1082040961\n", "third"),
    "a comment that is the header": ("#source,target\n5,6\n7,8\n", "header"),
    "a numbered line below the header": ("# source target weight\n0 1 2\n1 2 3\n", "leave --header out"),
}
WRONG = {
    "true": ("True False\n", "True"),
    "header": ("user,item\n0,1\n", "header"),
    "header of numbers' file": ("id1;id2;w\n0;1;2\n", "header"),
    "decimal commas unsaid": ("0;1;0,5\n1;2;1,5\n", "--decimal"),
    "an index without a name": (",source,target\n0,5,6\n", "header"),
    "pandas' columns": ("0,1,2\n0,1,0.5\n", "--header"),
    "pandas' four columns between tabs": ("0\t1\t2\t3\n0\t1\t5\t7\n", "--no-header"),
    "R's names of rows": ('"1" 5 6\n"2" 6 7\n', "row.names"),
    "R's names of rows above": ('"1",5,6,0.5\n"2",6,7,1.5\n', "row.names"),
    "a comment that names another order": ("# target source\n0 1\n", "in order"),
    "a comment that names types": ("# source target type\n0 1 2\n", "third"),
    "networkx's neighbours": ("#w.py\n# GMT Sat Nov 28 14:00:00 2026\n# \n0 1 2\n1 2\n", "write_edgelist"),
    "DIMACS": ("p sp 3 2\na 1 2 5\na 2 3 5\n", "DIMACS"),
    "a weight that becomes 0": ("0 1 1e-50\n", "1e-50 is 0"),
    "a weight that is 0 in double precision": ("0 1 1\n1 2 -1e-400\n", "-1e-400 is 0"),
    "two delimiters": ("0,1;2\n", "delimiter"),
}


@pytest.mark.parametrize(
    ("header", "name"), [("", name) for name in WRONG] + [("--header", name) for name in WRONG_HEADERS]
)
def test_edge_lists_that_are_refused(header, name, capsys):
    """With --header those whose columns have another meaning."""
    text, words = (WRONG_HEADERS if header else WRONG)[name]
    Path("e.txt").write_text(text, encoding="utf-8")
    assert words in refused(capsys, "import", "e.txt", *header.split(), "-o", "g.h5")


# Texts of edges, options, and what is printed of them.
SAID = {
    "another name than a weight's": (
        "source,target,rating\n0,1,5\n",
        ("--header",),
        "column 3, 'rating', is the weight",
    ),
    "by a comment": ("# FromNodeId ToNodeId cost\n0 1 5\n", (), "column 3, 'cost', is the weight"),
    "0 1 2 between blanks": ("0 1 2\n1 2 3\n", (), "'0 1 2' is taken for an edge"),
    "an index of three": ("0,5,6\n1,6,7\n2,7,8\n", (), "index=False"),
    "an index of four": ("1,5,6,0.5\n2,6,7,0.5\n3,7,8,0.5\n", (), "row.names=FALSE"),
    "a column that is left out": ("0 1 1 5\n1 2 1 5\n", (), "left out 1 column"),
    "large weights": (
        "0 1 16777217\n1 2 -1e30\n2 3 5\n",
        (),
        "e.txt: 2 of the weights were rounded: float32",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_guessed_or_left_out_is_said(name, capsys):
    text, options, words = SAID[name]
    edges(*options, text=text)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["0,1,0.5\n1,2,0.5\n2,3,0.5\n", "0 1\n1 2\n2 3\n", "# from to weight\n0 1 1\n1 2 1\n2 3 1\n"]
)
def test_nothing_is_said_of_plain_edges(text, capsys):
    edges(text=text)
    assert len(capsys.readouterr().out.splitlines()) == 1 + ("#" in text)


@pytest.mark.parametrize(
    "comment", ["% sym weighted\n", "# Undirected graph: a.txt\n", "# x\n#undirected graph\n"]
)
def test_a_file_that_says_it_is_undirected(comment, capsys):
    edges(text=f"{comment}0 1\n")
    assert "--symmetric" in capsys.readouterr().err


def names(text, *options, file="n.csv"):
    """Import a list of named edges, and return them as a sorted list of pairs of names."""
    Path(file).write_text(text, encoding="utf-8")
    assert mgg("import", file, "--map-ids", "-o", "n.h5", *options) == 0
    with h5py.File("n.h5") as made:
        if "node/id" in made:
            words = list(map(str, made["node/id"][:]))
        else:
            ends, letters = made["node/name/offsets"][:], made["node/name/text"][:].tobytes()
            words = [letters[a:b].decode() for a, b in pairwise(ends)]
    sources, destinations, *_ = held("n.h5")
    return sorted((words[u], words[v]) for u, v in zip(sources, destinations, strict=True))


NAMED = {
    "hash in a name": ("a,#b\n#c,a\n", (), [("#c", "a"), ("a", "#b")]),
    "percent in a name": ("x,y\n%z,x\n", (), [("%z", "x"), ("x", "y")]),
    "a leading comment": ("# names\n# of people\na,b\n", (), [("a", "b")]),
    "a name that begins with a comment's mark": ("a,b\n#c,d\n", (), [("#c", "d"), ("a", "b")]),
    "quotes": ('"a","b"\n"c","a"\n', (), [("a", "b"), ("c", "a")]),
    "a comma in quotes": ('"Smith, J",Doe\n', (), [("Smith, J", "Doe")]),
    "a doubled quote": ('"the ""x""",b\n', (), [('the "x"', "b")]),
    "a comma beside semicolons": ("Smith, J;Doe\nA;B\n", (), [("A", "B"), ("Smith, J", "Doe")]),
    "a semicolon beside commas": ("a;b,c\nd,e\n", ("--delimiter", ","), [("a;b", "c"), ("d", "e")]),
    "blanks in names": ("New York\tLos Angeles\n", (), [("New York", "Los Angeles")]),
    "a header that is said": ("user,item\nu1,i1\n", ("--header",), [("u1", "i1")]),
    "comments that are said": ("a,b\n//c,d\ne,f\n", ("--comment", "//"), [("a", "b"), ("e", "f")]),
    "a first name like a comment": ("#a,b\n", ("--comment", ""), [("#a", "b")]),
    "a header that is none": ("user,item\n", ("--no-header",), [("user", "item")]),
    "a tab in quotes": ('"a\tb",c\n', (), [("a\tb", "c")]),
    "blanks in quotes": ('" a ",a\n', (), [(" a ", "a")]),
    "quotes between blanks": ('"New York" Paris\n', (), [("New York", "Paris")]),
    "a quote within a name": ('5"disk,a\n', (), [('5"disk', "a")]),
    "KONECT's blanks and tabs": ("1 2\t1\n3 1\t1\n", (), [("1", "2"), ("3", "1")]),
    "numbers": ("10,20\n20,5\n", (), [("10", "20"), ("20", "5")]),
    "names that are numbered": ("n1,n2\nn2,n3\n", (), [("n1", "n2"), ("n2", "n3")]),
    "single letters": ("a,b\nb,c\n", (), [("a", "b"), ("b", "c")]),
    "0 and 1 among numbers": ("0,1\n1,7\n", (), [("0", "1"), ("1", "7")]),
    "bars within names": ("sp|P1 sp|P2\nsp|P2 tr|P3\n", (), [("sp|P1", "sp|P2"), ("sp|P2", "tr|P3")]),
    "bars within names of weighted edges": ("sp|P1|A sp|P2|B 0.5\n", (), [("sp|P1|A", "sp|P2|B")]),
    "bars around blanks": ("New York|Boston\nParis|Rome\n", (), [("New York", "Boston"), ("Paris", "Rome")]),
    "bars that are said to divide": ("a|b c|2\n", ("--delimiter", "|"), [("a", "b c")]),
    "letters of other scripts": ("Ä,漢字\n", (), [("Ä", "漢字")]),
}


@pytest.mark.parametrize("name", NAMED)
def test_names(name):
    text, options, expected = NAMED[name]
    assert names(text, *options) == expected


HEADERS = """
    user,item Source;Target from|to user_id,movie_id V1,V2 Var1,Var2 protein1,protein2 gene_a,gene_b u,v i,j
    InteractorA,InteractorB entity1,entity2 FromNodeId,ToNodeId SOURCE_SUBREDDIT,TARGET_SUBREDDIT userId,movieId
    user_id,business_id src_ip,dst_ip srcip,dstip orig,dest ego,alter regulator,target TF,target caller,callee
    buyer,seller von,nach node_from,node_to 0,1
"""


@pytest.mark.parametrize("header", [*HEADERS.split(), "Node A,Node B", "Origin Airport,Destination Airport"])
def test_a_header_of_names_is_refused_unless_it_is_said(header, capsys):
    mark = next(mark for mark in ",;|" if mark in header)
    Path("n.csv").write_text(f"{header}\nx{mark}y\nz{mark}x\n", encoding="utf-8")
    assert "--header" in refused(capsys, "import", "n.csv", "--map-ids", "-o", "n.h5")
    assert names(f"{header}\nx{mark}y\n", "--header") == [("x", "y")]
    assert "first edge is x -> y" in capsys.readouterr().out


# Texts of other formats, and those that two delimiters divide; the last is a -> "b c" of weight 2, or a|b -> c|2.
NO_NAMES = ["p sp 3 2\na 1 2 5\n", "c x\np edge 3 2\ne 1 2\n", "# GMT Sat Nov 28\na b\n", "0,1,2\na,b,1\n"]
AMBIGUOUS = ["Smith, J;Doe\n", "a;b;0,5\n", "a b\t0.5\n", "a b 0,5\n", "a|b c|2\nd|e f|3\n"]


@pytest.mark.parametrize("text", NO_NAMES + AMBIGUOUS)
def test_lists_of_names_that_are_refused(text, capsys):
    Path("n.csv").write_text(text, encoding="utf-8")
    said = refused(capsys, "import", "n.csv", "--map-ids", "-o", "n.h5")
    assert text in NO_NAMES or "; --delimiter says" in said


def test_the_number_of_comment_lines_is_printed(capsys):
    assert edges(text="# one\n0 1\n% two\n1 2\n") == [(0, 1), (1, 2)]
    names("# one\n# two\na,b\n")
    assert capsys.readouterr().out.count("2 comment") == 2


def random_names(rng, count):
    letters = list("ab,;\"'# %\t|éß0")
    found = {"".join(rng.choice(letters, rng.integers(1, 6))).strip() for _ in range(count)}
    return [word for word in found if word]


def test_what_pythons_csv_writes_is_read(rng):
    for delimiter in ",;\t":
        words = random_names(rng, 40)
        pairs = sorted({tuple(rng.choice(words, 2)) for _ in range(60)})
        with Path("w.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(pairs)
        assert names(Path("w.csv").read_text(encoding="utf-8"), "--delimiter", delimiter, "--force") == pairs


# ---- tables of nodes


def with_rows(text, *options, rows=3):
    """Import a path of ``rows`` nodes with features from a table; return the features."""
    Path("e.txt").write_text("".join(f"{i} {i + 1}\n" for i in range(rows - 1)), encoding="utf-8")
    Path("x.csv").write_text(text, encoding="utf-8")
    assert mgg("import", "e.txt", "--features", "x.csv", "--nodes", rows, "-o", "x.h5", *options) == 0
    with h5py.File("x.h5") as made:
        return made["node/x"][:].tolist()


VALUES = [[0.5, 1.0], [2.0, 3.0], [4.0, 5.5]]
# Tables of VALUES as NumPy, pandas and spreadsheets write them, and the options that they need.
TABLES = {
    "numbered columns": ("0,1\n0.5,1.0\n2.0,3.0\n4.0,5.5\n", ("--header",)),
    "named columns": ("a,b\n0.5,1.0\n2.0,3.0\n4.0,5.5\n", ("--header",)),
    "decimal commas": ("0,5;1,0\n2,0;3,0\n4,0;5,5\n", ("--decimal", ",")),
    "quoted numbers": ('"0.5","1.0"\n"2.0","3.0"\n"4.0","5.5"\n', ()),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_features(name):
    text, options = TABLES[name]
    assert with_rows(text, *options) == VALUES


def test_a_header_that_is_found_and_comments_are_said(capsys):
    assert with_rows("# one\na,b\n0.5,1.0\n2.0,3.0\n# two\n4.0,5.5\n") == VALUES
    said = capsys.readouterr().out
    assert "'a,b' is taken for the header" in said
    assert "x.csv: left out 2 comment lines" in said


def test_the_index_of_pandas_is_left_out_of_parquet(capsys):
    columns = dict(zip("ab", zip(*VALUES, strict=True), strict=True))
    table = pyarrow.table({**columns, "id": [7, 8, 9]})
    described = json.dumps(
        {"index_columns": ["id", {"kind": "range"}]}
    )  # as pandas.DataFrame.to_parquet does
    parquet.write_table(table.replace_schema_metadata({"pandas": described}), "x.parquet")
    Path("e.txt").write_text("0 1\n1 2\n", encoding="utf-8")
    assert mgg("import", "e.txt", "--features", "x.parquet", "-o", "x.h5") == 0
    assert "left out 'id'" in capsys.readouterr().out
    with h5py.File("x.h5") as made:
        assert made["node/x"][:].tolist() == VALUES


# Masks of four nodes as text, and the nodes in them, or what is said of them.
MASKS: dict[str, tuple[str, list[int] | str]] = {
    "0 and 1": ("0\n1\n1\n0\n", [1, 2]),
    "a header": ("train\n0\n1\n1\n0\n", [1, 2]),
    "node numbers": ("3\n0\n", [0, 3]),
    "words of pandas": ("False\nTrue\nTrue\nFalse\n", [1, 2]),
    "words below a header": ("mask\nTrue\nFalse\nTrue\nFalse\n", [0, 2]),
    "small letters": ("true\nfalse\nfalse\nfalse\n", [0]),
    "words in quotes": ('"TRUE"\n"FALSE"\n"FALSE"\n"TRUE"\n', [0, 3]),
    "numbers of all nodes": ("0\n2\n1\n3\n", "m.csv has 2.0 at line 2; expected 0 or 1, or true or false"),
    "three values": ("0\n1\n2\n0\n", "m.csv has 2.0 at line 3; expected 0 or 1"),
    "1 and 2": ("1\n2\n2\n1\n", "m.csv has 2.0 at line 2; expected 0 or 1"),
    "shares": ("0\n0.5\n1\n0\n", "m.csv has 0.5 at line 2; expected 0 or 1"),
    "no and yes": ("no\nyes\nno\nyes\n", "'yes'"),
    "a word among others": ("true\n1\nfalse\nfalse\n", "m.csv:2: '1' in column 0 is not true or false"),
    "a word among numbers": ("0\ntrue\n0\n1\n", "m.csv:2: 'true' in column 0 is not a number"),
    "a word that is missing": ("true\n\nfalse\nfalse\n", "m.csv:2: an empty line between rows"),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_text(name, capsys):
    text, expected = MASKS[name]
    Path("e.txt").write_text("0 1\n1 2\n2 3\n", encoding="utf-8")
    Path("m.csv").write_text(text, encoding="utf-8")
    np.save("y.npy", np.zeros(4, int))
    np.save("none.npy", np.zeros(4, bool))
    options = ("--labels", "y.npy", "--masks", "m.csv", "none.npy", "none.npy", "-o", "g.h5")
    if isinstance(expected, str):
        assert expected in refused(capsys, "import", "e.txt", *options)
    else:
        assert mgg("import", "e.txt", *options) == 0
        with h5py.File("g.h5") as file:
            assert np.flatnonzero(file["node/train"][:]).tolist() == expected


def test_a_mask_that_may_be_numbers_of_all_nodes_is_refused(capsys):
    Path("e.txt").write_text("0 1\n", encoding="utf-8")
    np.save("y.npy", [0, 1])
    np.save("none.npy", [False, False])
    for name, content in (("m.csv", "1\n0\n"), ("m.csv", "True\nFalse\n")):
        Path(name).write_text(content, encoding="utf-8")
        options = ("--labels", "y.npy", "--masks", name, "none.npy", "none.npy", "-o", "g.h5")
        if content[0] == "1":
            assert "may be a mask, or the numbers of all nodes" in refused(
                capsys, "import", "e.txt", *options
            )
        else:
            assert mgg("import", "e.txt", *options) == 0


def test_bytes_other_than_0_and_1_are_no_mask(capsys):
    np.save("y.npy", [0, 1, 0])
    np.save("m.npy", np.array([2, 0, 1], np.uint8))
    Path("e.txt").write_text("0 1\n1 2\n", encoding="utf-8")
    masks = ("--labels", "y.npy", "--masks", "m.npy", "m.npy", "m.npy")
    assert "has 2 at row 0; expected 0 or 1" in refused(capsys, "import", "e.txt", *masks, "-o", "g.h5")


def test_what_single_precision_does_not_hold(capsys):
    np.save("e.npy", [[0, 1], [1, 2]])
    np.save("w.npy", [2**24 + 1, 7])
    np.save("x.npy", np.array([[2**24 + 1, 2**25 + 1], [3, 4], [5, 2**24]]))
    options = ("--edge-data", "weight=w.npy", "--features", "x.npy", "-o", "g.h5")
    assert mgg("import", "e.npy", *options) == 0
    said = capsys.readouterr().out
    assert (
        "e.npy: 1 of the weights was rounded: float32 does not hold all whole numbers beyond 16,777,216"
        in said
    )
    assert "x.npy: 2 of the features were rounded: float32" in said
    assert "first row has the sources" in said
    np.save("w.npy", [1.0, 1e-50])
    assert "1e-50 at entry 1" in refused(capsys, "import", "e.npy", *options, "--force")


# Tables of three nodes, and words of the message; those that need --header are read with --no-header where that fits.
WRONG_TABLES = {
    "numbered columns": (TABLES["numbered columns"][0], "has 4 rows, and e.txt has 3 nodes; --header"),
    "a number above more rows than nodes": ("0\n1\n2\n1\n0\n", "--header"),
    "two numbers above more rows than nodes": ("0,1\n5,6\n5,6\n5,6\n5,6\n", "--header"),
    "floats above more rows than nodes": ("0.0,1.0\n5,6\n5,6\n5,6\n5,6\n", "--header"),
    "pandas' header": ("0,1,2\n1,2,3\n1,2,3\n1,2,3\n", "--header"),
    "a column of ids": ("id,f1,f2\n0,1,2\n1,1,2\n2,1,2\n", "the column 'id' would be a feature"),
    "R's missing values": ("NA,NA\n1,2\n1,2\n", "'NA'"),
    "pandas' index": (",a,b\n0,1,2\n1,1,2\n2,1,2\n", "index"),
    "R's names of rows": ("a b\n1 5 6\n2 6 7\n3 1 1\n", "columns"),
    "decimal commas": ("0,5;1,5\n0,5;1,5\n0,5;1,5\n", "--decimal"),
}


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_tables_that_are_refused(name, capsys):
    text, words = WRONG_TABLES[name]
    Path("e.txt").write_text("0 1\n1 2\n", encoding="utf-8")
    Path("x.csv").write_text(text, encoding="utf-8")
    assert words in refused(capsys, "import", "e.txt", "--features", "x.csv", "-o", "g.h5")
    if "more rows" in name:
        assert mgg("import", "e.txt", "--features", "x.csv", "--no-header", "-o", "g.h5") == 0


def test_a_mask_below_a_header_of_a_number_is_refused(capsys):
    np.save("y.npy", [0, 1, 0, 1])
    np.save("e.npy", [[0, 1, 2], [1, 2, 3]])
    Path("m.csv").write_text("0\n1\n0\n1\n1\n", encoding="utf-8")
    masks = ("--masks", "m.csv", "m.csv", "m.csv")
    assert "each node once" in refused(capsys, "import", "e.npy", "--labels", "y.npy", *masks, "-o", "g.h5")


def test_masks_without_a_header_are_read_as_data_and_said(capsys):
    Path("e.csv").write_text("from,to\n0,1\n1,2\n", encoding="utf-8")
    np.save("y.npy", [0, 1, 0])
    for node, name in enumerate(("train", "val", "test")):
        Path(f"{name}.csv").write_text(f"{node}\n", encoding="utf-8")
    masks = ("--masks", "train.csv", "val.csv", "test.csv")
    assert mgg("import", "e.csv", "--header", "--labels", "y.npy", *masks, "-o", "g.h5") == 0
    assert "val.csv:1: '1' was taken for data, not for a header" in capsys.readouterr().out
    with h5py.File("g.h5") as made:
        assert made["node/val"][:].tolist() == [False, True, False]


def test_a_header_of_a_table_leaves_the_edges(capsys):
    assert with_rows(TABLES["numbered columns"][0], "--header") == VALUES
    assert held("x.h5") == [[0, 1], [1, 2]]
    assert "is an edge" in capsys.readouterr().out


# ---- archives


def test_archives_of_platonov_are_read(rng, capsys):
    ends, x = rng.integers(6, size=(9, 2)), rng.normal(size=(6, 3)).astype(np.float32)
    kinds = rng.integers(4, size=(10, 6))  # of nodes, in each split
    masks = {f"{name}_masks": kinds == at for at, name in enumerate(("train", "val", "test"))}
    np.savez("roman.npz", edges=ends, node_features=x, node_labels=np.arange(6) % 3, **masks)
    assert mgg("import", "roman.npz", "--split", 4, "-o", "r.h5") == 0
    assert "--symmetric" in capsys.readouterr().out
    assert sorted(zip(*held("r.h5"), strict=True)) == sorted(map(tuple, ends.tolist()))
    with h5py.File("r.h5") as made:
        assert made["node/x"][:].tolist() == x.tolist()
        assert made["node/y"][:].tolist() == [0, 1, 2, 0, 1, 2]
        assert made["node/val"][:].tolist() == masks["val_masks"][4].tolist()


@pytest.mark.parametrize("dense", [False, True])
def test_archives_of_the_gnn_benchmark_are_read(dense, rng, capsys):
    adj = sp.random(7, 7, 0.4, format="csr", random_state=int(rng.integers(2**31)), dtype=np.float32)
    attr = sp.random(7, 5, 0.5, format="csr", random_state=int(rng.integers(2**31)), dtype=np.float32)
    arrays = {f"adj_{name}": getattr(adj, name) for name in ("data", "indices", "indptr", "shape")}
    if dense:
        arrays["attr_matrix"] = attr.toarray()
    else:
        arrays |= {f"attr_{name}": getattr(attr, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez("a.npz", labels=np.arange(7) % 4, node_names=np.array(["a", None], object), **arrays)
    assert mgg("import", "a.npz", "-o", "a.h5") == 0
    assert "left out 1 array" in capsys.readouterr().out
    rows = adj.tocoo()  # an entry (i, j) is an edge i -> j, as PyG and DGL read it
    expected = zip(rows.row.tolist(), rows.col.tolist(), rows.data.tolist(), strict=True)
    assert sorted(zip(*held("a.h5"), strict=True)) == sorted(expected)
    with h5py.File("a.h5") as made:
        assert made["node/y"][:].tolist() == [0, 1, 2, 3, 0, 1, 2]
        found = made["node/x"][:].tolist() if dense else made["node/x/data"][:].tolist()
        assert found == (attr.toarray() if dense else attr.data).tolist()


@pytest.mark.parametrize(
    ("option", "text", "line"),
    [
        ("--labels", "0\n1\n\n1\n", 3),
        ("--features", "x;y\n1;2\n \n\n3;4\n5;6\n", 3),
        ("--features", "# made by hand\n1,2\n# below\n\n# above\n3,4\n5,6\n", 4),
        ("--labels", "0\n" * 2_100 + "\n1\n", 2_101),
    ],
)
def test_an_empty_line_between_rows_of_nodes_is_refused(capsys, monkeypatch, option, text, line):
    """All rows after it would belong to the node before, also in a later block. At the end it is no row."""
    monkeypatch.setattr(compressed, "BLOCK_BYTES", 1 << 10)
    Path("e.txt").write_text(f"0 {2 if len(text) < 100 else 2_100}\n")
    Path("t.csv").write_text(text)
    said = refused(capsys, "import", "e.txt", option, "t.csv", "-o", "g.h5")
    assert f"t.csv:{line}: an empty line between rows" in said
    Path("t.csv").write_text(text.replace("\n\n", "\n").replace(" \n", "") + "\n \n\n")
    assert mgg("import", "e.txt", option, "t.csv", "-o", "g.h5") == 0
