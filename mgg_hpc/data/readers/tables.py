"""Tables of numbers with a row for each node: text, plain or packed by gzip or zstd; and Parquet's files.

Text has one row a line, of numbers that are divided as `dialect` says; all lines have as many as the first. An empty
field between delimiters is NaN, and so is a pair of quotes, which pandas writes where it is alone in a line. The first
line may name the columns, by words that are no numbers, or by any if that is said. Lines of blanks are passed over.
Blocks of lines are parsed natively where they are regular.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, shown
from ...sizes import counted
from .. import checks, native
from ..edge_stream import Rows
from ..schema import BOOL, Layout
from .compressed import TextBlock, lines_of, text_blocks
from .dialect import BLANKS, MISSING, Dialect, Words, check_header, is_numbered, number

GAP = "an empty line between rows, each of which is a node's; write -1 where there is no label"
FLOAT64 = np.dtype("<f8")
BATCH_BYTES = 8 << 20  # of a Parquet file's numbers that are converted at a time
BUFFER = 1 << 20  # bytes that are read of a column of Parquet at a time
MOST_COLUMNS = 1 << 20
TRUTH = {"true": 1.0, "false": 0.0}  # words of masks
ID = re.compile("((node|vertex)?[ _-]?(id|index))|node|vertex|.*[ _-]id")  # names of columns of ids


class Head(NamedTuple):
    """The dialect, columns and header of a table, found in its first lines.

    Fields: dialect: with its delimiter. columns: their number. offset, line: arguments of `text_blocks` to
    begin with the first row. first: words of the first row, unless a header is above it. note: what was passed
    over, kept or taken for a header, to print; "" for nothing. comments: their number before the first row.
    truth: rows are the words true and false. hint: ends messages about words that are no numbers.
    """

    dialect: Dialect
    columns: int
    offset: int = 0
    line: int = 1
    first: Sequence[str] = ()
    note: str = ""
    comments: int = 0
    truth: bool = False
    hint: str = ""

    @property
    def numbered(self) -> bool:
        """Whether the first row is 0, 1, 2, ..., as pandas names columns without names, or one 0."""
        numbers = [number(self.dialect.point(word)) for word in self.first]
        return self.dialect.header is None and bool(numbers) and numbers == list(range(len(numbers)))

    @property
    def may_be_header(self) -> bool:
        """Whether the first row may be names of columns that are whole numbers."""
        return self.numbered or (
            self.dialect.header is None
            and all(map(str.isdigit, self.first))
            and len({*self.first}) == self.columns
        )


def open_table(
    path: Path, rows: int | None = None, head: Head | None = None, notes: list[str] | None = None
) -> Rows:
    """Open a text as numbers, float64 [rows, columns], or as bool if its words are true and false.

    Args: rows: expected number of rows. [default: they are counted] head: from `table_head`. [default: found
    for any dialect] notes: list to which lines to print are added.

    Raises InputError for a file that cannot be read. Reading the rows raises it, with the line, for a wrong
    row, and for another number of rows.
    """
    head = head or table_head(path, Dialect())
    if rows is None:
        rows, comments = 0, head.comments
        for piece, left_out in _parsed(path, head):
            rows, comments = rows + len(piece), comments + left_out
        if notes is not None:
            notes += [head.note] * bool(head.note)
            notes += [f"{path}: left out {counted(comments, 'comment line')}"] * bool(comments)

    def pieces() -> Iterator[NDArray[Any]]:
        count = 0
        for piece, _ in _parsed(path, head):
            count += len(piece)
            if count > rows:
                break
            yield piece
        if count != rows:
            raise InputError(f"{path} has {'more' if count > rows else count} rows; expected {rows}")

    def place(row: int) -> str:
        for block in text_blocks(path, offset=head.offset, line=head.line):
            lines: Sequence[int] = range(block.line, block.line + block.lines)
            marks = any(mark.encode() in bytes(block.text) for mark in head.dialect.comments)
            if marks or native.load().count_rows(block.text) != block.lines:
                lines = [line.number for line in head.dialect.lines(block.text, block.line)]
            if row < len(lines):
                return f"line {lines[row]}"
            row -= len(lines)
        return "its end"

    return Rows(Layout(BOOL if head.truth else FLOAT64, (rows, head.columns)), pieces, place)


def table_head(path: Path, dialect: Dialect, *, mask: bool = False, hint: str = "") -> Head:
    """Read the first lines of a table.

    mask: the table is a mask: the words true and false are values, and numbers in the first line are values
    even if a header is expected. hint: as in `Head`.

    Raises InputError for a first line that may be a header or not, and for a header without all names.
    """
    comments = 0
    for block in text_blocks(path):
        lines, above = dialect.first_lines(block)
        comments += above
        if not lines:
            continue
        first, header, where = lines[0], dialect.header, f"{path}:{lines[0].number}"
        texts = [line.text for line in lines]
        found = dialect.found(where, texts[1:] or texts, _fits)
        words = found.words(where, first.text)
        numbers = all(not word or found.is_number(word) for word in words)
        named = not any(map(found.is_number, words)) and any(words)
        named = named and not {word.lower() for word in words} <= {*MISSING, ""}
        named = named and not (mask and {word.lower() for word in words} <= {*TRUTH})
        if header is None and len(words) > 2 and is_numbered(words):
            raise InputError(
                f"{where}: {shown(first.text)} may be the header that pandas writes; --header if it is one, "
                "--no-header if it is a row"
            )
        if header and numbers and not mask and not is_numbered(words):
            raise InputError(f"{where}: {shown(first.text)} are numbers; expected a header, as --header says")
        note, columns, offset, line = "", len(words), block.offset + first.start, first.number
        passed = named if header is None else header and not (numbers and mask)
        if header is None and named:
            note = f"{where}: {shown(first.text)} is taken for the header"
        if header and numbers:
            taken = "passed over as a header" if passed else "taken for data, not for a header"
            note = f"{where}: {shown(first.text)} was {taken}"
        if passed:
            check_header(where, words)
            _check_names(where, words)
            offset, line = block.offset + first.end, first.number + 1
            words = []
        row = words or (found.words(where, texts[1]) if texts[1:] else [])
        truth = mask and bool(row) and row[0].lower() in TRUTH
        return Head(found, columns, offset, line, words, note, comments, truth, hint)
    return Head(replace(dialect, delimiter=" "), 1)


def _check_names(where: str, names: Sequence[str]) -> None:
    """Raise InputError if the name of the first of several columns says that it holds ids of nodes."""
    if len(names) > 1 and ID.fullmatch(names[0].lower()):
        raise InputError(
            f"{where}: the column {shown(names[0])} would be a feature; leave it out: rows are in the order of nodes"
        )


def _fits(dialect: Dialect, words: Words) -> bool:
    """Return whether ``words`` may be a row of a table of several columns."""
    return len(words) > 1 and all(not word or dialect.is_number(word) for word in words)


def _parsed(path: Path, head: Head) -> Iterator[tuple[NDArray[np.float64], int]]:
    """Yield rows, float64 [k, columns], and the number of comments among them."""
    dialect, columns, gap = head.dialect, head.columns, 0
    for block in text_blocks(path, offset=head.offset, line=head.line):
        gap = _check_gaps(path, block, dialect, gap)
        rows, irregular = min(native.load().count_rows(block.text), len(block.text) // columns), 0
        values, comments = np.empty((rows, columns)), 0
        if dialect.native and not head.truth:
            form = columns, dialect.delimiter, values.reshape(-1)
            _, irregular = native.load().parse_table(block.text, *form)
        if irregular >= 0:
            count, comments = _parse_lines(path, block, head, values)
            values = values[:count]
        if len(values) or comments:
            yield values.astype(bool) if head.truth else values, comments


def _check_gaps(path: Path, block: TextBlock, dialect: Dialect, gap: int) -> int:
    """Return the line of the first blank line after the last row so far, or 0.

    gap: the result for the block before. Raises InputError if a row follows a blank line: each line is a
    node's, and the rows after it would be off by one.
    """
    if not gap and native.load().count_rows(block.text) == block.lines:
        return 0
    rows = [line.number for line in dialect.lines(block.text, block.line)]
    if gap and rows:
        raise InputError(f"{path}:{gap}: {GAP}")
    blank = (at for at, _, line in lines_of(block.text, block.line) if not line.strip(BLANKS))
    gap = gap or next((at for at in blank if not rows or at > rows[0]), 0)
    if gap and rows and gap < rows[-1]:
        raise InputError(f"{path}:{gap}: {GAP}")
    return gap


def _parse_lines(path: Path, block: TextBlock, head: Head, values: NDArray[np.float64]) -> tuple[int, int]:
    """Fill ``values`` [rows, columns] from a block; return the numbers of rows filled and of comments."""
    dialect, columns, row, left_out = head.dialect, values.shape[1], 0, list[int]()
    for line in dialect.lines(block.text, block.line, left_out):
        where = f"{path}:{line.number}"
        words = dialect.words(where, line.text)
        if len(words) != columns:
            raise InputError(
                f"{where}: {counted(len(words), 'column')}; expected {columns}, as in the first line"
            )
        if head.truth:
            found = [TRUTH.get(word.lower()) for word in words]
        else:
            found = [number(dialect.point(word)) if word else np.nan for word in words]
        if None in found:
            at = found.index(None)
            expected = f"{' or '.join(TRUTH)}, as other rows are" if head.truth else f"a number{head.hint}"
            raise InputError(f"{where}: {shown(words[at])} in column {at} is not {expected}")
        values[row] = found
        row += 1
    return row, len(left_out)


# --- Parquet


def open_parquet(path: Path, notes: list[str] | None = None) -> Rows:
    """Open a Parquet table as numbers [rows, columns].

    Its columns hold numbers, or lists of numbers of the same length in all rows. Nulls become NaN; the index of
    pandas is left out. notes: list to which lines to print are added. Raises InputError for a file that cannot
    be read or has columns of other types, and if pyarrow is missing. Reading the rows raises it for lists of
    several lengths.
    """
    with _parquet(path) as file:
        rows, index = file.metadata.num_rows, _index_columns(file.schema_arrow)
        kept = [at for at, name in enumerate(file.schema_arrow.names) if name not in index]
        _check_names(str(path), [file.schema_arrow.names[at] for at in kept])
        types = [_number_type(path, file.schema_arrow.field(at)) for at in kept]
        first = next(file.iter_batches(1, use_threads=False), None) if rows and kept else None
        if first is None or not first.num_rows:
            raise InputError(f"{path} holds no rows; expected a table of numbers")
        columns = _matrix(path, first.select(kept), 0).shape[1]
    if not 1 <= columns <= MOST_COLUMNS:
        raise InputError(f"{path} has {counted(columns, 'column')}; expected 1 .. {MOST_COLUMNS}")
    dtype = np.result_type(*types)
    if index and notes is not None:
        notes.append(f"{path}: left out {', '.join(map(shown, index))}, the index of pandas")

    def pieces() -> Iterator[NDArray[Any]]:
        count, step = 0, max(1, BATCH_BYTES // (columns * dtype.itemsize))
        with _parquet(path) as file:
            for batch in file.iter_batches(step, use_threads=False):
                values = _matrix(path, batch.select(kept), count)
                if values.shape[1] != columns:
                    raise InputError(
                        f"{path} has {counted(values.shape[1], 'number')} at row {count}; expected {columns}"
                    )
                if values.dtype.kind == "f" and dtype.kind != "f":
                    raise InputError(f"{path} has a null in row {count} or after it; expected integers")
                count += len(values)
                yield values.astype(dtype, copy=False)
        if count != rows:
            raise InputError(f"{path} has {counted(count, 'row')}; expected {rows}, as its metadata say")

    return Rows(Layout(dtype, (rows, columns)), pieces)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a file, and convert pyarrow's exceptions, here and while it is read, to InputError."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(
            f"{path}: Parquet's files need pyarrow, which is not installed; pip install 'mgg-hpc[parquet]'"
        ) from error
    try:
        with path.open("rb") as raw, parquet.ParquetFile(raw, buffer_size=BUFFER, pre_buffer=False) as file:
            yield file
    except InputError:
        raise
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise InputError(f"{path} cannot be read: {reason[:200]}") from error
    except (pyarrow.ArrowException, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not a Parquet file that can be read: {reason[:200]}") from error


def _index_columns(schema: Any) -> list[str]:
    """Return the names of the columns that hold the index of pandas."""
    described = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    index = described.get("index_columns", []) if isinstance(described, dict) else []
    return [name for name in schema.names if name in index]  # one that counts rows is no column


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _number_type(path: Path, field: Any) -> np.dtype[Any]:
    """Return the type of a column's numbers. Raises InputError for a column of something else."""
    from pyarrow import types

    kind = field.type.value_type if _is_list(field.type) else field.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    raise InputError(f"{path}: the column {shown(field.name)} is of {str(kind)[:40]}; expected numbers")


def _matrix(path: Path, batch: Any, row: int) -> NDArray[Any]:
    """Return a batch, whose first row is ``row``, as numbers [rows, columns]."""
    return np.column_stack([_column(path, column, row) for column in batch.columns])


def _column(path: Path, column: Any, row: int) -> NDArray[Any]:
    """Return a Parquet column as numbers [rows, L]; L is the length of its lists, or 1 if it has none.

    row: number of the column's first row in the file. Raises InputError for lists of several lengths.
    """
    from pyarrow import compute

    if not _is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(-1, 1)
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)  # NaN where there is no list
    at = checks.first(lengths != lengths[0])
    if at is not None:
        raise InputError(
            f"{path} has a list of another length at row {row + at}; expected the same in each row"
        )
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
