"""Edge lists: text, one edge a line, plain or packed by gzip or zstd.

A line is ``source destination`` or ``source destination weight``, with the delimiter that `dialect` finds.
Lines that start with # or % are comments; if ids may be any words, only those before the first edge are. All
lines must have as many columns as the first one. A fourth column, which KONECT uses for times, must hold
numbers; it is left out with a note. Blocks of regular lines are parsed natively; any other block is read line
by line, which finds errors and their lines.
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
from ...errors import InputError, shown
from .. import native, schema
from ..edge_stream import EdgeBlock, Imported, Rows
from .array_edges import count_rounded
from .compressed import TextBlock, lines_of, text_blocks, text_size
from .dialect import Dialect, TextLine, Words, after, attempt, is_numbered, number
from .headers import HINT, check_names, is_header, name_columns
from .limits import check_memory
from .node_arrays import of_array

LARGEST_ID = 10**15  # below it, ids have 15 digits at most
FROM_ONE = "node 0 has no edge; if the ids begin at 1, import with --first 1"
COLUMNS = ("source", "destination", "weight", "time")
WHOLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")  # a number, maybe an integer
PIECE = 1 << 18  # number of names that are written at a time
LEADING = 1 << 14  # bytes at the beginning of a file that are searched for SNAP's comments
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
    """Open an edge list as a stream of edges. The build finds out whether the graph is undirected.

    Args: nodes: number of nodes. [default: the largest id plus one] first: number of the first node, 0 or 1.
    [default: 0] map_ids: True if ids may be any words; rows are then in the order of first appearance, and the
    graph file keeps the words. While the list is read they take memory: 30 to 60 bytes for each node whose id
    is an integer, for any other word 40 to 75 bytes and up to twice its text; 1.5 times as much while the table
    grows. counted: where ``nodes`` was found, for messages. dialect: delimiter, header and comments, as far as
    the user gives them. keep_numbers: True to read the first line as an edge if it has numbers, even if the
    dialect has a header.

    Reading raises InputError that names file and line for a word that is not an id, an id out of range, a
    missing column, a weight that is not finite in float32, an unexpected header, or a bipartite graph of
    KONECT, as its two sides are numbered separately.
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
    """Print a note on stderr if a file lists each undirected edge once, as its first lines tell.

    These are "% sym" in files of KONECT, and the comment "undirected graph" in files of SNAP. Pipes are not
    read.
    """
    if path.is_file():
        with closing(text_blocks(path)) as blocks:
            texts = [block.text[:LEADING] for block in islice(blocks, 1)]
            if any(_konect_kind(text) == "sym" or SNAP.match(text.tobytes()) for text in texts):
                note = f"note: {path} lists each undirected edge once; --symmetric adds the reverse"
                print(note, file=sys.stderr)


def _konect_kind(text: NDArray[np.uint8]) -> str:
    """Return the kind of graph in the first line of a KONECT file, sym, asym or bip; "" for other files."""
    words = text[:200].tobytes().split(b"\n", 1)[0].decode("ascii", errors="replace").split()
    return words[1] if words[:1] == ["%"] and words[1:2] in (["sym"], ["asym"], ["bip"]) else ""


def graph_name(path: Path) -> str:
    """Return the name of the graph in a file: the file's name without its endings, or "graph"."""
    return path.name.split(".")[0] or "graph"


class _NumberedEdges:
    """The `EdgeStream` of an edge list whose ids are numbers.

    A mark has the arguments with which `text_blocks` continues after a block, and, as "head", the number of
    columns, the delimiter, the number of comments so far, and the notes to print.
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
        """Return the edges of a block of lines, and its numbers of comments and of rounded weights."""
        return rules.parse(block, columns)


class _NamedEdges(_NumberedEdges):
    """The `EdgeStream` of an edge list whose ids are names.

    It has no marks: a row depends on all names before it.
    """

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
        """Return the datasets of the nodes' names by path: ids if all are int64 integers, else two of text.

        The edge list is read again if another process has read the edges.
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
    """Return the words of a line, with numbers in canonical form.

    Raises InputError if it is not an edge between names.
    """
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
    """Consecutive edges: ids, int64 [k], and, if there is a third column, weights, float32 [k]."""

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    weight: NDArray[np.float32] | None

    @staticmethod
    def empty(count: int, *, weighted: bool) -> Edges:
        """Return uninitialised arrays for ``count`` edges."""
        weight = np.empty(count, np.float32) if weighted else None
        return Edges(np.empty(count, np.int64), np.empty(count, np.int64), weight)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return sources, destinations and weights for the native module; no weights are an empty array."""
        return (
            self.sources,
            self.destinations,
            np.empty(0, np.float32) if self.weight is None else self.weight,
        )

    def cut(self, count: int) -> Edges:
        """Return the first ``count`` edges."""
        weight = None if self.weight is None else self.weight[:count]
        return Edges(self.sources[:count], self.destinations[:count], weight)


@dataclass(frozen=True)
class LineRules:
    """Format of the lines of an edge list.

    Fields: where: name of the file, for messages. first, limit: ids are first .. first + limit - 1. names:
    names of the columns. counted: where ``limit`` was found, for messages. keep_numbers: as in
    `open_edge_list`. notes: notes to print after the file was read.
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
        """Find the delimiter and the columns in a block of lines with the first edge or header.

        Returns the rules with the delimiter, the number of columns (0 if the block has neither edge nor
        header), the block from its first edge on, and the number of comments so far. comments: their number
        before the block. named: True if ids may be any words. Raises InputError for a header that the dialect
        does not announce, and for bipartite graphs of KONECT.
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
        """Raise InputError for files of other formats: adjacency lists of networkx, and files of DIMACS.

        where: file and line of the first edge. above: text before it. texts: the first lines.
        """
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
        """Return True if the first line may be the header 0, 1, ... of pandas for columns without names."""
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
        """Raise InputError if the first line, a header according to the dialect, is not one, or a wrong one.

        That is if it has numbers other than 0, 1, 2, ..., names other columns than those of an edge list, or is
        below a comment with as many words, which may be the header. where: file and line. words: words of the
        first line. numbers: True if all are numbers. comment: words of the last comment before it.
        """
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
        """Add notes that say how the first lines were understood, where a reader might expect something else.

        texts: the first lines with edges. known: True if a header or comment names the columns. Raises
        InputError if the first column has names of rows, as R writes them.
        """
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
        """Return the rules with this delimiter; unchanged if it is ""."""
        return replace(self, dialect=replace(self.dialect, delimiter=delimiter)) if delimiter else self

    def note(self, line: str) -> None:
        """Add a note to print, unless it was added before."""
        if line not in self.notes:
            self.notes.append(line)

    def note_comments(self, comments: int) -> None:
        """Add a note with the number of comments that were left out."""
        if comments:
            self.note(f"{self.where}: left out {sizes.counted(comments, 'comment line')}")

    def parse(self, block: TextBlock, columns: int) -> tuple[Edges, int, int]:
        """Return the edges of a block of lines, and its numbers of comments and of rounded weights.

        columns: number of columns. Raises InputError that names file and line of the first error.
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
        """Raise InputError unless a line has ``columns`` words, none of them empty. where: file and line."""
        if len(words) != columns or "" in words:
            have = len([word for word in words if word])
            names = self.names[:columns]
            named = f"{', '.join(names[:-1])} and {names[-1]}" if columns > 2 else ", ".join(names)
            hint = "; --delimiter says what is between them" if len(words) == 1 else ""
            raise InputError(f"{where}: {sizes.counted(have, 'column')}; expected {columns}: {named}{hint}")

    def _edge(self, where: str, line: str, columns: int) -> tuple[int, int, float]:
        """Return source, destination and weight (1 if it has none) of a line.

        Raises InputError for a wrong line.
        """
        words = self.dialect.words(where, line)
        self.check_columns(where, words, columns)
        source, destination = self._node(where, words[0]), self._node(where, words[1])
        numbers = [
            self.number(where, name, word) for name, word in zip(self.names[2:], words[2:], strict=False)
        ]
        return source, destination, numbers[0] if numbers else 1.0

    def _node(self, where: str, word: str) -> int:
        """Return the row of a node id, the id less ``first``.

        Raises InputError for a word that is not a valid id.
        """
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
        """Return the number that a word stands for.

        Raises InputError unless it is finite, and not rounded to 0, in float32. name: name of the column, for
        messages.
        """
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
    """Return True if words, divided as ``dialect`` says, may be an edge between numbers.

    It is False for the delimiter tab, since the delimiter blank divides at tabs as well.
    """
    ids_are_whole = not any("," in word for word in words[:2])
    return (
        len(words) > 1 and dialect.delimiter != "\t" and ids_are_whole and all(map(dialect.is_number, words))
    )


def _fits_names(dialect: Dialect, words: Words) -> bool:
    """Return True if words, divided as ``dialect`` says, may be an edge between names.

    If the delimiter is blank, the edge must have a weight. If it is blank or tab, no name begins or ends with a
    comma, semicolon or bar: these would be the delimiter, with blanks next to it.
    """
    comma = replace(dialect, decimal=",")
    return (
        1 + (dialect.delimiter == " ") < len(words) <= len(COLUMNS)
        and all(word and (dialect.delimiter not in " \t" or word == word.strip(",;|")) for word in words[:2])
        and all(dialect.is_number(word) or comma.is_number(word) for word in words[2:])
    )


def _last_comment(dialect: Dialect, found: Dialect, above: NDArray[np.uint8]) -> Words:
    """Return the words of the last comment in a text, or [] without one.

    dialect: has the marks of comments. found: has the delimiter. above: text before the first edge.
    """
    marks = tuple(dialect.comments)
    lines = [line.strip(found.padding) for _, _, line in lines_of(above[-LEADING:])]
    last = next((line for line in reversed(lines) if line.startswith(marks)), "") if marks else ""
    mark = next((mark for mark in marks if last.startswith(mark)), "")
    text = last.removeprefix(mark).strip(mark + found.padding) if mark else ""
    return attempt(found, text) if text else []
