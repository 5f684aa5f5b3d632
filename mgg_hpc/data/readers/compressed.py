"""Text files, plain or packed by gzip or zstd, in blocks of whole lines or words, in bounded memory.

The first bytes of a file, not its name, say how it is packed. A packed file is unpacked in a thread of its own, some
pieces ahead. It unpacks to RATIO times its size at most, and lines have a longest length, so that no file costs more
than it holds.
"""

from __future__ import annotations

import gzip
import re
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native

BLOCK_BYTES = 8 << 20
LONGEST_LINE = 1 << 20  # bytes; a comment may be long
RATIO = 250  # largest compression ratio that texts of edges reach; deflate has 1032 for repetitions
FREE = 64 << 20  # bytes that are unpacked before the ratio counts
BYTE_ORDER = b"\xef\xbb\xbf"
ZSTD_INPUT = 4 << 10  # bytes that are unpacked at a time, of which each 4 may be 128 KiB of text
# Size of the pieces of unpacked text, and how many of them wait to be parsed.
PIECE_BYTES, PIECES = 1 << 20, 8

PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
PACKED |= {bytes([kind]) + b"\x2a\x4d\x18": "zstd" for kind in range(0x50, 0x60)}  # frames to skip
OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\3\4": "zip"}

# (buffer) -> bytes of text read into it, bytes of the file read so far.
Fill = Callable[[memoryview], tuple[int, int]]


@dataclass(frozen=True, eq=False)
class TextBlock:
    """A run of whole lines, or of whole words.

    Fields: text: uint8 [n], which ends with a newline or, of words, a blank; the next block overwrites it. offset,
    line: byte of the unpacked text and number of the line where it begins. lines: newlines in it. done: bytes of the
    file that have been read so far.
    """

    text: NDArray[np.uint8]
    offset: int
    line: int
    lines: int
    done: int

    @property
    def end(self) -> dict[str, int]:
        """The arguments ``offset`` and ``line`` with which `text_blocks` begins after this block."""
        return {"offset": self.offset + len(self.text), "line": self.line + self.lines}


def text_size(path: Path) -> int:
    """Return the bytes of a file on the disk; 0 for a pipe. Raises InputError where there is none."""
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def text_blocks(
    path: Path, *, offset: int = 0, line: int = 1, words: bool = False
) -> Generator[TextBlock, None, None]:
    """Yield blocks of a file's text from byte ``offset`` on; a newline is added to a last line without one.

    line: number of the line at ``offset``. words: True to end blocks after any blank, since lines may be long.
    Blanks replace a byte order mark of UTF-8. Raises InputError for a file that cannot be read, is damaged,
    unpacks to too much, has a line (or word) of more than LONGEST_LINE bytes, or a carriage return within a
    line.
    """
    buffer = bytearray(BLOCK_BYTES + LONGEST_LINE + 1)
    view, held, done = memoryview(buffer), 0, 0
    ends = (b"\n", b" ", b"\t") if words else (b"\n",)
    with _opened(path, offset) as fill:
        while True:
            full, more = held + BLOCK_BYTES, True
            while held < full and more:
                count, done = fill(view[held:full])
                held, more = held + count, count > 0
            if not offset and buffer.startswith(BYTE_ORDER):
                view[: len(BYTE_ORDER)] = b" " * len(BYTE_ORDER)
            end = 1 + max(buffer.rfind(each, 0, held) for each in ends)
            if not more and end < held:
                buffer[held] = ord("\n")
                end = held = held + 1
            if end:
                text = np.frombuffer(buffer, np.uint8, end)
                lines = native.load().count_lines(text)
                _check_returns(f"{path}", buffer, end, line)
                yield TextBlock(text, offset, line, lines, done)
                offset, line = offset + end, line + lines
                view[: held - end] = view[end:held]
                held -= end
            if not more:
                return
            if held > LONGEST_LINE:
                raise InputError(
                    f"{path}:{line}: the {'word' if words else 'line'} is longer than {LONGEST_LINE} bytes"
                )


def _check_returns(where: str, text: bytearray, end: int, line: int) -> None:
    """Raise InputError for a carriage return that no newline follows, in a text that begins in ``line``."""
    if text.find(b"\r", 0, end) < 0 or text.count(b"\r", 0, end) == text.count(b"\r\n", 0, end):
        return
    found = re.compile(rb"\r(?!\n)").search(text, 0, end)
    if found:
        number = line + text.count(b"\n", 0, found.start())
        raise InputError(
            f"{where}:{number}: a carriage return (\\r) with no newline (\\n) after it; expected lines that end with "
            "\\n or \\r\\n"
        )


def lines_of(text: NDArray[np.uint8], number: int = 0) -> Iterator[tuple[int, int, str]]:
    """Yield (number, byte after the line, text) for each line in a block. number: number of the first line."""
    begin, data = 0, text.tobytes()
    while begin < len(data):
        end = data.index(b"\n", begin)
        yield number, end + 1, data[begin:end].decode("utf-8", errors="replace")
        begin, number = end + 1, number + 1


def head_lines(path: Path) -> Iterator[tuple[dict[str, int], int, str]]:
    """Yield (arguments, number, text) for each line of a file that is read again later.

    arguments: those with which `text_blocks` begins after the line. text: without the blanks around it. Raises
    InputError as `text_blocks` does, and for a pipe or a device, which can be read only once.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a pipe or a device, and a pipe cannot be read twice; give a file")
    for block in text_blocks(path):
        for number, end, line in lines_of(block.text, block.line):
            yield {"offset": block.offset + end, "line": number + 1}, number, line.strip()


@contextmanager
def _opened(path: Path, offset: int) -> Iterator[Fill]:
    """Open a file's text, unpacked, from byte ``offset`` on.

    Raises InputError for a file that cannot be read, is damaged, or is packed in another way.
    """
    try:
        with path.open("rb") as raw:
            begin = raw.peek(8)[:8]
            for magic, name in OTHERS.items():
                if begin.startswith(magic):
                    raise InputError(
                        f"{path} is packed by {name}; expected text, plain or packed by gzip or zstd"
                    )
            kinds = [name for magic, name in PACKED.items() if begin.startswith(magic)]
            if kinds:
                thread = ThreadPoolExecutor(1, f"unpack {path.name}")
                try:
                    yield _filling(_ahead(thread, _pieces(path, raw, kinds[0])), offset)
                finally:  # without a wait: the garbage collector may be here, while a thread is started
                    thread.shutdown(wait=False, cancel_futures=True)
                return
            done = raw.seek(offset) if offset else 0

            def fill(room: memoryview) -> tuple[int, int]:
                nonlocal done
                count = raw.readinto(room)
                done += count
                return count, done

            yield fill
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


Piece = tuple[bytes, int]  # unpacked text, and the bytes of the file that were read for it and all before


def _filling(pieces: Iterator[Piece], offset: int) -> Fill:
    """Return a function that copies pieces of text into buffers, from byte ``offset`` on."""
    rest, done = memoryview(b""), 0

    def fill(room: memoryview) -> tuple[int, int]:
        nonlocal rest, done, offset
        while not rest:
            piece, done = next(pieces, (b"", done))
            if not piece:
                break
            rest = memoryview(piece)[offset:]
            offset = max(0, offset - len(piece))
        count = min(len(room), len(rest))
        room[:count], rest = rest[:count], rest[count:]
        return count, done

    return fill


def _ahead(thread: ThreadPoolExecutor, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield pieces, while a thread produces the next ones."""
    waiting = deque(thread.submit(next, pieces, None) for _ in range(PIECES))
    while (piece := waiting.popleft().result()) is not None:
        waiting.append(thread.submit(next, pieces, None))
        yield piece


def _pieces(path: Path, raw: BinaryIO, kind: str) -> Iterator[Piece]:
    """Yield the text that a file unpacks to, in pieces of PIECE_BYTES and more.

    Raises InputError for a damaged file, and for one that unpacks to too much.
    """
    unpacked, waiting, size, packed = 0, [], 0, _Counted(raw)
    try:
        for each in UNPACKERS[kind](packed):
            unpacked, size = unpacked + len(each), size + len(each)
            if unpacked > FREE + RATIO * packed.bytes:
                raise InputError(
                    f"{path} unpacks to more than {RATIO} times its size, which no list of edges does; "
                    "unpack it first if it is one"
                )
            waiting.append(each)
            if size >= PIECE_BYTES:
                yield b"".join(waiting), packed.bytes
                waiting, size = [], 0
    except Exception as error:  # BadGzipFile, zlib.error, zstandard.ZstdError, EOFError
        if isinstance(error, InputError) or (isinstance(error, OSError) and error.errno):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is damaged {kind}: {reason}, found at byte {packed.bytes}") from error
    if waiting:
        yield b"".join(waiting), packed.bytes


class _Counted:
    """A file that counts the bytes read from it, since a pipe cannot tell its position."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self.bytes = raw, 0

    def read(self, count: int) -> bytes:
        data = self._raw.read(count)
        self.bytes += len(data)
        return data


def _gunzip(packed: Any) -> Iterator[bytes]:
    """Yield the text of all members of a gzip file. Raises BadGzipFile, zlib.error or EOFError where it is damaged."""
    with gzip.GzipFile(mode="rb", fileobj=packed) as file:
        while piece := file.read1(PIECE_BYTES):
            yield piece


def _unzstd(raw: _Counted) -> Iterator[bytes]:
    """Yield the text of all frames of a zstd file. Raises zstandard.ZstdError or EOFError where it is damaged."""
    import zstandard

    context, frame = zstandard.ZstdDecompressor(), None
    packed = raw.read(ZSTD_INPUT)
    while packed:
        frame = frame or context.decompressobj()
        if piece := frame.decompress(packed):
            yield piece
        packed = b""
        if frame.eof:
            packed, frame = frame.unused_data, None
        packed = packed or raw.read(ZSTD_INPUT)
    if frame is not None:
        raise EOFError("it ends within a frame")


UNPACKERS: dict[str, Callable[[_Counted], Iterator[bytes]]] = {"gzip": _gunzip, "zstd": _unzstd}
