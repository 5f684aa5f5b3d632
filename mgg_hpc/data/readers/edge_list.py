"""Edge lists: text, one edge a line, plain or packed by gzip or zstd.

``source destination``, or ``source destination weight``, divided as `dialect` says. Lines that start with # or % are
comments; between names, those before the first edge. All lines have as many columns as the first one; a fourth one,
which KONECT has for times, must be of numbers and is not kept, which is said. Blocks of lines are parsed natively where
they are regular; a block with anything else in it is read line by line, and that reading decides what is an error and
where.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import sizes
from ...errors import InputError
from .. import native, schema
from ..edge_stream import EdgeBlock, Imported, Rows
from .array_edges import count_rounded
from .compressed import TextBlock, lines_of, text_blocks, text_size
from .dialect import Dialect, TextLine, Words, after, attempt, is_numbered, number
from .headers import HINT, check_names, is_header, name_columns
from .limits import check_memory, shown
from .node_arrays import of_array

LARGEST_ID = 10**15  # below it, ids have 15 digits at most
FROM_ONE = "node 0 has no edge; if the ids begin at 1, import with --first 1"
COLUMNS = ("source", "destination", "weight", "time")
WHOLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")  # what may be a whole number
PIECE = 1 << 18  # names that are written at a time
LEADING = 1 << 14  # bytes in which SNAP's comments are
SNAP = re.compile(b"(#.*\n)*# *undirected graph", re.IGNORECASE)
DIMACS = re.compile("p +(sp|edge|edges|col|max|min|asn|aux|cnf|tw) .*[0-9]")
EXACT = "\x1f"  # the delimiter of words that keep their blanks and quotes


def open_edge_list(
    path: Path,
    *,
    nodes: int | None = None,
    first: int | None = None,
    map_ids: bool = False,
    counted: str = "",
    dialect: Dialect | None = None,
    keep_numbers: bool = False,
) -> Imported:
    """Open an edge list as a stream of edges; whether it is undirected is for the build to find out.

    Args: nodes: number of nodes. [default: the largest id plus one] first: number of the first node, 0 or 1. [default:
    0] map_ids: ids are any words, and rows are in the order of their first appearance; the words are kept in the file,
    and in memory while it is read: 30 to 60 bytes a node whose id is a whole number, and for any other word 40 to 75
    bytes and up to twice its text; half as much again while the table grows. counted: where the number of nodes is
    from, for messages. keep_numbers: with a header in the dialect, numbers in the first line are an edge.

    Reading raises InputError that names file and line for a word, an id out of range, a missing column, a weight that
    is not finite in single precision, a header, or a bipartite graph of KONECT, whose sides have ids of their own.
    """
    if nodes is not None:
        check_memory(f"{path}: a graph of {nodes} nodes", 8 * nodes)
    limit = LARGEST_ID if nodes is None or map_ids else nodes
    rules = LineRules(
        str(path), first or 0, limit, dialect or Dialect(), counted=counted, keep_numbers=keep_numbers
    )
    if map_ids:
        rules = replace(rules, dialect=replace(rules.dialect, leading=rules.dialect.comment is None))
        named = _NamedEdges(path, nodes, rules)
        return Imported(graph_name(path), named, rows=named.rows, directed=None, notes=rules.notes)
    edges, from_one = _NumberedEdges(path, nodes, rules), FROM_ONE if first is None else ""
    return Imported(
        graph_name(path), edges, directed=None, from_one=from_one, first=rules.first, notes=rules.notes
    )


def warn_of_one_direction(path: Path) -> None:
    """Print a note on stderr where a file begins as undirected graphs of KONECT ("% sym") or SNAP do; not for pipes."""
    if path.is_file():
        with closing(text_blocks(path)) as blocks:
            texts = [block.text[:LEADING] for block in islice(blocks, 1)]
            if any(_konect_kind(text) == "sym" or SNAP.match(text.tobytes()) for text in texts):
                note = f"note: {path} lists each undirected edge once; --symmetric adds the reverse"
                print(note, file=sys.stderr)


def _konect_kind(text: NDArray[np.uint8]) -> str:
    """Return the kind of graph in the first line of KONECT's files: sym, asym or bip; "" for any other text."""
    words = text[:200].tobytes().split(b"\n", 1)[0].decode("ascii", errors="replace").split()
    return words[1] if words[:1] == ["%"] and words[1:2] in (["sym"], ["asym"], ["bip"]) else ""


def graph_name(path: Path) -> str:
    """Return the name of a graph in a file."""
    return path.name.split(".")[0] or "graph"


class _NumberedEdges:
    """The stream of an edge list of numbers.

    Marks: arguments of `text_blocks` after a block, and as "head" the columns, the delimiter, the comments so far, and
    the lines to print.
    """

    named = False

    def __init__(self, path: Path, nodes: int | None, rules: LineRules) -> None:
        self._path, self.where, self.nodes, self.total = path, rules.where, nodes, text_size(path)
        self._rules = rules

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`."""
        place = dict(mark or {})
        columns, delimiter, comments, notes = place.pop("head", (0, "", 0, ()))
        rules = self._rules.divided_by(delimiter)
        for note in notes:
            rules.note(note)
        for block in text_blocks(self._path, **place):
            rest = block
            if not columns:
                rules, columns, rest, comments = rules.begin(block, comments, named=self.named)
            if columns:
                found, more, rounded = self._parse(rules, rest, columns)
                comments += more
                if len(found.sources):
                    head = [columns, rules.dialect.delimiter, comments, rules.notes]
                    mark = None if self.named else block.end | {"head": head}
                    yield EdgeBlock(*found, mark=mark, rounded={"weight": rounded})
            if progress is not None:
                progress(block.done)
        rules.note_comments(comments)

    def _parse(self, rules: LineRules, block: TextBlock, columns: int) -> tuple[Edges, int, int]:
        """Return the edges of a block, and the numbers of comments and of rounded weights in it."""
        return rules.parse(block, columns)


class _NamedEdges(_NumberedEdges):
    """The stream of an edge list between names. It has no marks: rows depend on the names of all lines before."""

    named = True

    def __init__(self, path: Path, nodes: int | None, rules: LineRules) -> None:
        super().__init__(path, None, rules)  # the number of nodes is known once all were read
        self._expected = nodes
        self._names: Any = None

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`."""
        self._names, self.nodes = native.load().Names(), None
        yield from super().blocks(progress=progress)
        self.nodes = len(self._names)
        if self._expected not in (None, self.nodes):
            reason = f", since {self._rules.counted}" if self._rules.counted else ""
            raise InputError(
                f"{self.where} names {sizes.counted(self.nodes, 'node')}; expected {self._expected}{reason}"
            )

    def rows(self) -> Mapping[str, Rows]:
        """Return the dataset of ids where all names are whole numbers that fit int64; otherwise the two of names.

        The names are read again where another process has read the edges.
        """
        if self.nodes is None:
            for _ in self.blocks():
                pass
        names, count = self._names, len(self._names)
        if names.all_numbers():
            numbers = np.empty(count, np.int64)
            names.fill_numbers(0, numbers)
            return {schema.NODE_ID: of_array(numbers)}
        offsets = np.zeros(count + 1, np.int64)
        names.fill_lengths(0, offsets[1:])
        np.cumsum(offsets, out=offsets)

        def text() -> Iterator[NDArray[np.uint8]]:
            for first in range(0, count, PIECE):
                last = min(first + PIECE, count)
                piece = np.empty(offsets[last] - offsets[first], np.uint8)
                names.fill_text(first, last - first, piece)
                yield piece

        layout = schema.Layout(np.dtype(np.uint8), (int(offsets[-1]),))
        return {schema.NAME_OFFSETS: of_array(offsets), schema.NAME_TEXT: Rows(layout, text)}

    def _parse(self, rules: LineRules, block: TextBlock, columns: int) -> tuple[Edges, int, int]:
        edges, dialect = Edges.empty(block.lines, weighted=columns > 2), rules.dialect
        parse = native.load().parse_names
        count, irregular, comments, rounded = 0, 0, dialect.comments, 0
        if dialect.native:
            into = comments, self._names, *edges.arrays()
            count, irregular, left_out, rounded = parse(block.text, columns, dialect.delimiter, *into)
        if irregular >= 0:  # the same words, without quotes and comments
            among: list[int] = []
            rows = (_names(rules, line, columns) for line in dialect.lines(block.text, block.line, among))
            plain = "".join(EXACT.join(words) + "\n" for words in rows).encode(errors="replace")
            text, left_out = np.frombuffer(plain, np.uint8), len(among)
            count, irregular, _, rounded = parse(text, columns, EXACT, [], self._names, *edges.arrays())
            assert irregular < 0, (self.where, block.line, irregular)
        return edges.cut(count), left_out, rounded


def _names(rules: LineRules, line: TextLine, columns: int) -> Words:
    """Return the words of a line. Raises InputError where it is no edge between names."""
    where = f"{rules.where}:{line.number}"
    words = rules.dialect.words(where, line.text)
    rules.check_columns(where, words, columns)
    for word in words[:2]:
        if not all((letter.isprintable() and letter != "\ufffd") or letter == "\t" for letter in word):
            raise InputError(
                f"{where}: {shown(word)} is not a name; expected UTF-8 without control characters"
            )
    numbers = zip(COLUMNS[2:], words[2:], strict=False)
    return [*words[:2], *(repr(rules.number(where, name, word)) for name, word in numbers)]


class Edges(NamedTuple):
    """A run of k edges: int64 [k] ids, and float32 [k] weights where there is a third column."""

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    weight: NDArray[np.float32] | None

    @staticmethod
    def empty(count: int, *, weighted: bool) -> Edges:
        """Return uninitialised arrays for so many edges."""
        weight = np.empty(count, np.float32) if weighted else None
        return Edges(np.empty(count, np.int64), np.empty(count, np.int64), weight)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return the arrays as the native module takes them."""
        return (
            self.sources,
            self.destinations,
            np.empty(0, np.float32) if self.weight is None else self.weight,
        )

    def cut(self, count: int) -> Edges:
        """Return the first edges."""
        weight = None if self.weight is None else self.weight[:count]
        return Edges(self.sources[:count], self.destinations[:count], weight)


@dataclass(frozen=True)
class LineRules:
    """Format of the lines of an edge list.

    Fields: where: the file. first, limit: ids are first .. first + limit - 1. names: names of the columns. counted:
    where the limit is from, for messages. keep_numbers: as in `open_edge_list`. notes: lines to print once all were
    read.
    """

    where: str
    first: int
    limit: int
    dialect: Dialect
    names: tuple[str, ...] = COLUMNS
    counted: str = ""
    keep_numbers: bool = False
    notes: list[str] = field(default_factory=list)

    def begin(
        self, block: TextBlock, comments: int, *, named: bool = False
    ) -> tuple[LineRules, int, TextBlock, int]:
        """Return the rules with a delimiter, the number of columns, the block from its first edge on, and comments.

        The number of columns is 0 where the block has no edge and no header. comments: their number before the block.
        named: ids may be any words. Raises InputError for a first line that is a header, if the dialect does not say
        so, and for bipartite graphs of KONECT.
        """
        if block.line == 1 and _konect_kind(block.text) == "bip":
            raise InputError(
                f"{self.where}:1: '% bip' is a bipartite graph, both sides of which have ids of their own; number the "
                "second side after the first, and remove this line"
            )
        lines, more = self.dialect.first_lines(block)
        comments += more
        if not lines:
            return self, 0, block, comments
        above = block.text[: lines[0].start]
        first, header = lines[0], self.dialect.header
        where, texts = f"{self.where}:{first.number}", [line.text for line in lines]
        self._check_format(where, above, texts)
        among = texts[1:] if header and texts[1:] else texts
        dialect = self.dialect.found(where, among, _fits_names if named else _fits_numbers)
        words = dialect.words(where, first.text)
        columns = min(max(len(words), 2), len(self.names))
        if dialect.leading:
            dialect = replace(dialect, comment="", leading=False)
        rules = replace(self, dialect=dialect)
        numbers, numbered = all(map(dialect.is_number, words)), is_numbered(words)
        comment = _last_comment(self.dialect, dialect, above)
        if header and numbers and self.keep_numbers and not (numbered and len(words) > 2):
            self.note(
                f"{where}: {shown(first.text)} is an edge; numbers are no header of edges where tables have one"
            )
        elif header:
            self._check_header(where, words, numbers, comment)
            self._tell(where, dialect, texts[1:], columns, named=named, known=name_columns(words))
            return rules, columns, after(block, first.end, first.number + 1), comments
        elif header is None and (
            (named and is_header(dialect, texts)) or self._may_be_pandas(where, dialect, texts, named=named)
        ):
            raise InputError(f"{where}: {shown(first.text)} may be a header; {HINT}")
        elif header is None and re.search("[A-DF-Za-df-z]", first.text):
            try:
                _names(rules, first, columns) if named else rules._edge(where, first.text, columns)
            except InputError as error:
                raise InputError(f"{error}; {HINT}") from None
        known = len(comment) == len(words) and name_columns(comment)
        if known and header is None and (note := check_names(f"{self.where}: its comment", comment)):
            self.note(note)
        self._tell(where, dialect, texts, columns, named=named, known=known)
        return rules, columns, after(block, first.start, first.number), comments

    def _check_format(self, where: str, above: NDArray[np.uint8], texts: list[str]) -> None:
        """Raise InputError for networkx's lists of neighbours, and for the formats of DIMACS."""
        if b"\n# GMT " in b"\n" + above.tobytes():
            raise InputError(
                f"{self.where} begins as networkx.write_adjlist writes neighbours; expected edges, as "
                "networkx.write_edgelist(graph, path, data=False) writes them"
            )
        remarks = next((at for at, text in enumerate(texts) if not re.match("c( |$)", text)), 0)
        if DIMACS.match(texts[remarks]):
            raise InputError(
                f"{where}: {shown(texts[remarks])} begins a file of DIMACS; expected 'source destination [weight]' a "
                "line: leave out its lines c and p, and the letter before its edges, and read it with --first 1"
            )

    def _may_be_pandas(self, where: str, dialect: Dialect, texts: list[str], *, named: bool) -> bool:
        """Return whether the first line may be the numbers that pandas writes above columns without names."""
        first, *rest = (attempt(dialect, text) for text in texts)
        if not is_numbered(first) or len(first) < 2:
            return False
        if len(first) == 2:  # as an edge among numbers, 0 -> 1, and none among words
            return named and bool(rest) and not any(dialect.is_number(word) for row in rest for word in row)
        if dialect.delimiter == " " and "\t" not in texts[0]:  # as people write edges, and pandas seldom
            self.note(f"{where}: {shown(texts[0])} is taken for an edge; --header if it names the columns")
            return False
        return True

    def _check_header(self, where: str, words: Words, numbers: bool, comment: Words) -> None:
        """Raise InputError for a header that is none, or names other columns than these."""
        if numbers and not is_numbered(words):
            raise InputError(
                f"{where}: {shown(' '.join(words))} are numbers; expected a header, as --header says"
            )
        if len(comment) == len(words) and not name_columns(words):
            raise InputError(
                f"{where}: {shown(' '.join(words))} is below the comment {shown(' '.join(comment))}; if that is the "
                "header, leave --header out; otherwise remove the comment"
            )
        if numbers:
            self.note(f"{where}: {shown(' '.join(words))} was passed over as a header")
        elif note := check_names(where, words):
            self.note(note)

    def _tell(
        self, where: str, dialect: Dialect, texts: list[str], columns: int, *, named: bool, known: bool
    ) -> None:
        """Note what the first lines are taken for. known: columns have names. Raises InputError for names of rows."""
        rows = [attempt(dialect, text) for text in texts]
        if not all(rows) or not rows:
            return
        firsts = [row[0] for row in rows]
        counted = [firsts == [str(at + low) for at in range(len(rows))] for low in (0, 1)]
        if counted[1] and len(rows) > 1 and all(text[0] == '"' and text.count('"') == 2 for text in texts):
            raise InputError(
                f"{where}: {shown(texts[0])} begins with a row's name, as R writes it; row.names=FALSE leaves it out"
            )
        whole = columns == 4 or all(re.fullmatch(r"[0-9]+(\.0*)?", word) for row in rows for word in row[1:])
        if any(counted) and len(rows) > 2 and columns > 2 and whole and not known:
            self.note(
                f"{where}: column 1 counts the lines and may be an index, but is read as the source; pandas leaves it "
                "out with index=False, and R with row.names=FALSE"
            )
        if columns == 4:
            self.note(f"{self.where}: left out 1 column, the fourth")
        if named and len(rows[0]) > 1:
            self.note(f"{where}: the first edge is {' -> '.join(shown(word)[1:-1] for word in rows[0][:2])}")

    def divided_by(self, delimiter: str) -> LineRules:
        """Return the rules with a delimiter that was found before; "" if none was."""
        return replace(self, dialect=replace(self.dialect, delimiter=delimiter)) if delimiter else self

    def note(self, line: str) -> None:
        """Add a line to print, once."""
        if line not in self.notes:
            self.notes.append(line)

    def note_comments(self, comments: int) -> None:
        """Add the number of comments that were left out to the lines to print."""
        if comments:
            self.note(f"{self.where}: left out {sizes.counted(comments, 'comment line')}")

    def parse(self, block: TextBlock, columns: int) -> tuple[Edges, int, int]:
        """Return the edges of a block, and the numbers of comments and of rounded weights in it.

        Raises InputError that names file and line of the first that is wrong.
        """
        edges, dialect = Edges.empty(block.lines, weighted=columns > 2), self.dialect
        count, irregular, comments, rounded = 0, 0, 0, 0
        if dialect.native:
            form = columns, self.first, self.limit, dialect.delimiter, dialect.comments
            count, irregular, comments, rounded = native.load().parse_edges(
                block.text, *form, *edges.arrays()
            )
        if irregular >= 0:
            count, left_out, exact = 0, list[int](), np.empty(block.lines)
            for line in dialect.lines(block.text, block.line, left_out):
                source, destination, weight = self._edge(f"{self.where}:{line.number}", line.text, columns)
                edges.sources[count], edges.destinations[count], exact[count] = source, destination, weight
                count += 1
            comments = len(left_out)
            if edges.weight is not None:
                edges.weight[:count] = exact[:count]
                rounded = count_rounded(exact[:count], edges.weight[:count])
        return edges.cut(count), comments, rounded

    def check_columns(self, where: str, words: list[str], columns: int) -> None:
        """Raise InputError unless a line has so many words."""
        if len(words) != columns or "" in words:
            have = len([word for word in words if word])
            names = self.names[:columns]
            named = f"{', '.join(names[:-1])} and {names[-1]}" if columns > 2 else ", ".join(names)
            hint = "; --delimiter says what is between them" if len(words) == 1 else ""
            raise InputError(f"{where}: {sizes.counted(have, 'column')}; expected {columns}: {named}{hint}")

    def _edge(self, where: str, line: str, columns: int) -> tuple[int, int, float]:
        """Return source, destination and weight (1 without one) of a line. Raises InputError where it is wrong."""
        words = self.dialect.words(where, line)
        self.check_columns(where, words, columns)
        source, destination = self._node(where, words[0]), self._node(where, words[1])
        numbers = [
            self.number(where, name, word) for name, word in zip(self.names[2:], words[2:], strict=False)
        ]
        return source, destination, numbers[0] if numbers else 1.0

    def _node(self, where: str, word: str) -> int:
        """Return the row of a node id."""
        if (
            word.isascii()
            and word.isdecimal()
            and len(word) < 16
            and 0 <= (row := int(word) - self.first) < self.limit
        ):
            return row
        point = self.dialect.point(word)
        node = Decimal(point) if WHOLE.fullmatch(point) else Decimal("NaN")
        if node != node.to_integral_value():
            names = "; --map-ids takes names" if node.is_nan() else ""
            raise InputError(f"{where}: {shown(word)} is not a node id; expected a whole number{names}")
        expected = f"expected {self.first} .. {self.first + self.limit - 1}"
        if self.counted:
            expected += f", since {self.counted}"
        if len(word) > 400:  # beyond any number, and beyond what int() converts
            raise InputError(f"{where}: a node id of {len(word)} digits is too large; {expected}")
        name = shown(word)[1:-1] if re.search("[.,eE]", word) else shown(int(node))
        if node < 0:
            raise InputError(f"{where}: the node id {name} is negative; nodes are numbered from {self.first}")
        if node < self.first:
            raise InputError(f"{where}: the node id {name} is too small; {expected}")
        if node >= self.first + self.limit:
            one = "; --first 1 if ids begin at 1" if not self.first and node == self.limit else ""
            raise InputError(f"{where}: the node id {name} is too large; {expected}{one}")
        return int(node) - self.first

    def number(self, where: str, name: str, word: str) -> float:
        """Return the number in a column."""
        value = number(self.dialect.point(word))
        if value is None:
            comma = (
                "; --decimal says that commas are decimal" if re.fullmatch("[+-]?[0-9]*,[0-9]+", word) else ""
            )
            raise InputError(f"{where}: {shown(word)} is not a {name}; expected a number{comma}")
        with np.errstate(over="ignore"):
            single = np.float32(value)
        if not np.isfinite(single):
            raise InputError(f"{where}: the {name} {shown(word)[1:-1]} is not finite in single precision")
        if not single and re.search("[1-9]", re.split("[eE]", word)[0]):
            raise InputError(f"{where}: the {name} {shown(word)[1:-1]} is 0 in single precision")
        return value


def _fits_numbers(dialect: Dialect, words: Words) -> bool:
    """Return whether words may be an edge between numbers; tabs are blanks."""
    ids_are_whole = not any("," in word for word in words[:2])
    return (
        len(words) > 1 and dialect.delimiter != "\t" and ids_are_whole and all(map(dialect.is_number, words))
    )


def _fits_names(dialect: Dialect, words: Words) -> bool:
    """Return whether words may be an edge between names; between blanks, one with a weight.

    Blanks at a comma or a semicolon are no delimiters.
    """
    comma = replace(dialect, decimal=",")
    return (
        1 + (dialect.delimiter == " ") < len(words) <= len(COLUMNS)
        and all(word and (dialect.delimiter not in " \t" or word == word.strip(",;|")) for word in words[:2])
        and all(dialect.is_number(word) or comma.is_number(word) for word in words[2:])
    )


def _last_comment(dialect: Dialect, found: Dialect, above: NDArray[np.uint8]) -> Words:
    """Return the words, divided as ``found``, of the last comment of a text; none where there is no comment."""
    marks = tuple(dialect.comments)
    lines = [line.strip(found.padding) for _, _, line in lines_of(above[-LEADING:])]
    last = next((line for line in reversed(lines) if line.startswith(marks)), "") if marks else ""
    mark = next((mark for mark in marks if last.startswith(mark)), "")
    text = last.removeprefix(mark).strip(mark + found.padding) if mark else ""
    return attempt(found, text) if text else []
