"""Edge lists and tables as other programs write them: ids, delimiters, headers, comments and quotes are read or refused."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from command import mgg, refused

import mgg_hpc as mgg_


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edges(*options, text, name="e.txt"):
    """Import an edge list, and return its edges as a sorted list of (source, destination, weight), in the user's ids."""
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    assert mgg("import", name, "-o", "g.h5", *options) == 0
    found = mgg_.to_scipy("g.h5").tocoo()
    return sorted(zip(found.col.tolist(), found.row.tolist(), found.data.tolist(), strict=True))


ONE = [(0, 1, 0.5), (1, 2, 1.5)]
# Texts of the edges in ONE, and the options that they need.
READ = {
    "blanks": ("0 1 0.5\n1 2 1.5\n", ()),
    "tabs": ("0\t1\t0.5\n1\t2\t1.5\n", ()),
    "commas": ("0,1,0.5\n1,2,1.5\n", ()),
    "commas and blanks": ("0, 1, 0.5\n1, 2, 1.5\n", ()),
    "semicolons": ("0;1;0.5\n1;2;1.5\n", ()),
    "bars": ("0|1|0.5\n1|2|1.5\n", ("--delimiter", "|")),
    "decimal commas": ("0;1;0,5\n1;2;1,5\n", ("--decimal", ",")),
    "quoted": ('"0","1","0.5"\n"1","2","1.5"\n', ()),
    "floats that are whole": ("0.0 1.0 0.5\n1.0 2.0 1.5\n", ()),
    "exponents": ("0 1 5e-1\n1 2e+00 1.5\n", ()),
    "header": ("source,target,weight\n0,1,0.5\n1,2,1.5\n", ("--header",)),
    "comment": ("# made by hand\n0 1 0.5\n1 2 1.5\n", ()),
    "comment of another kind": ("// made by hand\n0 1 0.5\n1 2 1.5\n", ("--comment", "//")),
    "byte order mark": ("\ufeff0 1 0.5\n1 2 1.5\n", ()),
    "carriage returns": ("0 1 0.5\r\n1 2 1.5\r\n", ()),
    "no newline at the end": ("0 1 0.5\n1 2 1.5", ()),
}


@pytest.mark.parametrize("name", READ)
def test_edge_lists_of_other_programs(name):
    text, options = READ[name]
    assert edges(*options, text=text) == ONE


WRONG = {
    "float id": ("0.7 1\n1 2\n", "0.7"),
    "large float id": ("9007199254740993.0 1\n", "9007199254740993.0"),
    "nan id": ("nan 1\n", "nan"),
    "negative id": ("-1 2\n", "-1"),
    "true": ("True False\n", "True"),
    "header": ("user,item\n0,1\n", "header"),
    "header of numbers' file": ("id1;id2;w\n0;1;2\n", "header"),
    "decimal commas unsaid": ("0;1;0,5\n1;2;1,5\n", "--decimal"),
    "two delimiters": ("0,1;2\n", "delimiter"),
}


@pytest.mark.parametrize("name", WRONG)
def test_edge_lists_that_are_refused(name, capsys):
    text, words = WRONG[name]
    with open("e.txt", "w") as file:
        file.write(text)
    assert words in refused(capsys, "import", "e.txt", "-o", "g.h5")


def names(text, *options, file="n.csv"):
    """Import a list of named edges, and return them as a sorted list of pairs of names."""
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    assert mgg("import", file, "--map-ids", "-o", "n.h5", *options) == 0
    import h5py

    with h5py.File("n.h5") as held:
        ends, letters = held["node/name/offsets"][:], held["node/name/text"][:].tobytes()
    words = [letters[a:b].decode() for a, b in zip(ends, ends[1:], strict=False)]
    found = mgg_.to_scipy("n.h5").tocoo()
    return sorted((words[u], words[v]) for u, v in zip(found.col, found.row, strict=True))


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
    "numbers": ("10,20\n20,5\n", (), [("10", "20"), ("20", "5")]),
    "letters of other scripts": ("Ä,漢字\n", (), [("Ä", "漢字")]),
}


@pytest.mark.parametrize("name", NAMED)
def test_names(name):
    text, options, expected = NAMED[name]
    assert names(text, *options) == expected


@pytest.mark.parametrize("text", ["user,item\nu1,i1\n", "Source;Target\na;b\n", "from\tto\nx\ty\n", "user_id,movie_id\n1,2\n"])
def test_a_header_of_names_is_refused_unless_it_is_said(text, capsys):
    with open("n.csv", "w") as file:
        file.write(text)
    assert "--header" in refused(capsys, "import", "n.csv", "--map-ids", "-o", "n.h5")


def test_the_number_of_comment_lines_is_printed(capsys):
    names("# one\n# two\na,b\n")
    assert "2 comment" in capsys.readouterr().out


def random_names(rng, count):
    letters = list("ab,;\"'# %\t|éß0")
    found = {"".join(rng.choice(letters, rng.integers(1, 6))).strip() for _ in range(count)}
    return [word for word in found if word]


def test_what_pythons_csv_writes_is_read(rng):
    for delimiter in ",;\t":
        words = random_names(rng, 40)
        pairs = sorted({tuple(rng.choice(words, 2)) for _ in range(60)})
        with open("w.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(pairs)
        with open("w.csv", encoding="utf-8") as file:
            assert names(file.read(), "--delimiter", delimiter, "--force") == pairs


# ---- tables of nodes


def with_rows(text, *options, rows=3):
    """Import a path of ``rows`` nodes with features from a table; return the features."""
    with open("e.txt", "w") as file:
        file.writelines(f"{i} {i + 1}\n" for i in range(rows - 1))
    with open("x.csv", "w") as file:
        file.write(text)
    assert mgg("import", "e.txt", "--features", "x.csv", "--nodes", rows, "-o", "x.h5", *options) == 0
    import h5py

    with h5py.File("x.h5") as held:
        return held["node/x"][:].tolist()


VALUES = [[0.5, 1.0], [2.0, 3.0], [4.0, 5.5]]
# Tables of VALUES as NumPy, pandas and spreadsheets write them, and the options that they need.
TABLES = {
    "numpy": ("5.000000000000000000e-01,1.0e+00\n2.0e+00,3.0e+00\n4.0e+00,5.5e+00\n", ()),
    "numbered columns": ("0,1\n0.5,1.0\n2.0,3.0\n4.0,5.5\n", ("--header",)),
    "named columns": ("a,b\n0.5,1.0\n2.0,3.0\n4.0,5.5\n", ("--header",)),
    "no header": ("0.5,1.0\n2.0,3.0\n4.0,5.5\n", ()),
    "decimal commas": ("0,5;1,0\n2,0;3,0\n4,0;5,5\n", ("--decimal", ",")),
    "quoted numbers": ('"0.5","1.0"\n"2.0","3.0"\n"4.0","5.5"\n', ()),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_features(name):
    text, options = TABLES[name]
    assert with_rows(text, *options) == VALUES


def test_a_header_of_numbers_is_refused_by_the_number_of_rows(capsys):
    with open("e.txt", "w") as file:
        file.write("0 1\n1 2\n")
    with open("x.csv", "w") as file:
        file.write(TABLES["numbered columns"][0])
    said = refused(capsys, "import", "e.txt", "--features", "x.csv", "-o", "g.h5")
    assert "4" in said and "3" in said and "--header" in said
