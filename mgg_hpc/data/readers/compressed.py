"""Text files, plain or packed by gzip or zstd, in blocks of whole lines or words, in bounded memory.

How a file is packed is told by its first bytes, not by its name. A packed file is unpacked in a thread of its own. It
unpacks to RATIO times its size at most, and lines have a longest length, so that no file costs more than it holds.
"""

from __future__ import annotations

import queue
import re
import stat
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native

BLOCK_BYTES = 8 << 20
LONGEST_LINE = 1 << 20  # bytes; a comment may be long
RATIO = 250  # the most that text of edges reaches; deflate has 1032 for repetitions
FREE = 64 << 20  # bytes that are unpacked before the ratio counts
GZIP_INPUT = 64 << 10  # bytes that are unpacked at a time
ZSTD_INPUT = 4 << 10  # of which each four may be 128 KiB of text
BYTE_ORDER = b"\xef\xbb\xbf"
PIECE_BYTES, PIECES = 1 << 20, 8  # of text that waits to be parsed

PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
PACKED |= {bytes([kind]) + b"\x2a\x4d\x18": "zstd" for kind in range(0x50, 0x60)}  # frames that are skipped
OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\3\4": "zip"}

Read = Callable[[int], bytes]  # returns so many next bytes of a file at most


@dataclass(frozen=True, eq=False)
class TextBlock:
    """A run of whole lines, or of whole words.

    text: uint8 [n], which ends with a newline or, of words, a blank; it is overwritten when the next block is asked
    for. offset, line: the byte of the unpacked text and the number of the line where it begins. lines: newlines in it.
    done: bytes of the file that have been read so far.
    """

    text: NDArray[np.uint8]
    offset: int
    line: int
    lines: int
    done: int


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
    """Yield a file's text from ``offset`` on, which is in ``line``; where it ends within a line, a newline is added.

    words: blocks end behind any blank, since lines may be long. A byte order mark of UTF-8 is made blanks. Raises
    InputError for a file that cannot be read, is damaged, unpacks to too much, has a line (or word) of more than
    LONGEST_LINE bytes, or a carriage return within a line.
    """
    buffer = bytearray(BLOCK_BYTES + LONGEST_LINE + 1)
    view, held = memoryview(buffer), 0
    ends = (b"\n", b" ", b"\t") if words else (b"\n",)
    with _opened(path) as source:
        source.skip(offset)
        while True:
            full, more = held + BLOCK_BYTES, True
            while held < full and more:
                count = source.fill(view[held:full])
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
                yield TextBlock(text, offset, line, lines, source.done)
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
    if text.count(b"\r", 0, end) == text.count(b"\r\n", 0, end):
        return
    found = re.compile(rb"\r(?!\n)").search(text, 0, end)
    if found:
        number = line + text.count(b"\n", 0, found.start())
        raise InputError(
            f"{where}:{number}: a carriage return (\\r) with no newline (\\n) behind it; expected lines that end with "
            "\\n or \\r\\n"
        )


def text_lines(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield number, byte behind it, and text without blanks around it of each line, of a file that is read again later.

    Raises InputError as `text_blocks` does, and for a pipe or a device, which is read only once.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a pipe or a device, and a pipe cannot be read twice; give a file")
    for block in text_blocks(path):
        data, begin = block.text.tobytes(), 0
        for number in range(block.line, block.line + block.lines):
            end = data.index(b"\n", begin)
            yield number, block.offset + end + 1, data[begin:end].decode("utf-8", errors="replace").strip()
            begin = end + 1


class _Text(Protocol):
    """Text that is read in order. done: bytes of the file that were read."""

    done: int

    def fill(self, room: memoryview) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end."""
        ...

    def skip(self, count: int) -> None:
        """Pass over the first bytes of the text."""
        ...


@contextmanager
def _opened(path: Path) -> Iterator[_Text]:
    """Open a file's text, unpacked. Raises InputError for one that cannot be read, or is packed in another way."""
    try:
        with path.open("rb") as raw:
            begin = raw.peek(8)[:8]
            for magic, name in OTHERS.items():
                if begin.startswith(magic):
                    raise InputError(
                        f"{path} is packed by {name}; expected text, plain or packed by gzip or zstd"
                    )
            kinds = [name for magic, name in PACKED.items() if begin.startswith(magic)]
            if not kinds:
                yield _Plain(raw)
                return
            unpacked = _Unpacked(path, raw, kinds[0])
            try:
                yield unpacked
            finally:
                unpacked.close()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


class _Plain:
    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self.done = raw, 0

    def fill(self, room: memoryview) -> int:
        count = self._raw.readinto(room)  # type: ignore[attr-defined]
        self.done += count
        return count

    def skip(self, count: int) -> None:
        if count:
            self.done = self._raw.seek(count)


class _Unpacked:
    """Text that a thread unpacks, some pieces ahead of the reader."""

    def __init__(self, path: Path, raw: BinaryIO, kind: str) -> None:
        self._path, self._raw, self._kind = path, raw, kind
        self._pieces: queue.Queue[tuple[bytes, int] | Exception] = queue.Queue(PIECES)
        self._rest, self._ended, self._closed = memoryview(b""), False, False
        self._packed = self.done = 0
        self._thread = threading.Thread(target=self._unpack, name=f"unpack {path.name}", daemon=True)
        self._thread.start()

    def fill(self, room: memoryview) -> int:
        if not len(self._rest):
            self._next()
        count = min(len(room), len(self._rest))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def skip(self, count: int) -> None:
        while count > len(self._rest) and not self._ended:
            count -= len(self._rest)
            self._next()
        self._rest = self._rest[count:]

    def close(self) -> None:
        """Have the thread end, wherever it is."""
        self._closed = True
        while self._thread.is_alive():
            while not self._pieces.empty():
                self._pieces.get()
            self._thread.join(0.01)

    def _next(self) -> None:
        if self._ended:
            return
        found = self._pieces.get()
        if isinstance(found, Exception):
            raise found
        self._rest, self.done = memoryview(found[0]), found[1]
        self._ended = not found[0]

    def _read(self, count: int) -> bytes:
        data = self._raw.read(count)
        self._packed += len(data)
        return data

    def _unpack(self) -> None:
        unpacked, waiting, size = 0, [], 0
        try:
            for piece in UNPACKERS[self._kind](self._read):
                unpacked, size = unpacked + len(piece), size + len(piece)
                if unpacked > FREE + RATIO * self._packed:
                    raise InputError(
                        f"{self._path} unpacks to more than {RATIO} times its size, which no list of edges does; "
                        "unpack it first if it is one"
                    )
                waiting.append(piece)
                if size >= PIECE_BYTES:
                    self._pieces.put((b"".join(waiting), self._packed))
                    waiting, size = [], 0
                if self._closed:
                    return
            if size:
                self._pieces.put((b"".join(waiting), self._packed))
            self._pieces.put((b"", self._packed))
        except (InputError, OSError) as error:
            self._pieces.put(error)
        except Exception as error:  # zlib.error, zstandard.ZstdError, EOFError
            reason = " ".join(str(error).split())
            self._pieces.put(
                InputError(f"{self._path} is damaged {self._kind}: {reason}, found at byte {self._packed}")
            )


def _gunzip(read: Read) -> Iterator[bytes]:
    """Yield what the members of a gzip file unpack to. Raises zlib.error or EOFError where it is damaged."""
    member, packed = zlib.decompressobj(wbits=31), read(GZIP_INPUT)
    while True:
        if piece := member.decompress(packed, PIECE_BYTES):
            yield piece
        packed = member.unconsumed_tail
        if member.eof:
            packed = member.unused_data.lstrip(b"\0")  # members may be padded
            while not packed and (packed := read(GZIP_INPUT)):
                packed = packed.lstrip(b"\0")
            if not packed:
                return
            member = zlib.decompressobj(wbits=31)
        elif not packed:
            packed = read(GZIP_INPUT)
            if not packed and not piece:
                raise EOFError("it ends within a member")


def _unzstd(read: Read) -> Iterator[bytes]:
    """Yield what the frames of a zstd file unpack to. Raises zstandard.ZstdError or EOFError where it is damaged."""
    import zstandard

    context, frame = zstandard.ZstdDecompressor(), None
    packed = read(ZSTD_INPUT)
    while packed:
        frame = frame or context.decompressobj()
        if piece := frame.decompress(packed):
            yield piece
        packed = b""
        if frame.eof:
            packed, frame = frame.unused_data, None
        packed = packed or read(ZSTD_INPUT)
    if frame is not None:
        raise EOFError("it ends within a frame")


UNPACKERS: dict[str, Callable[[Read], Iterator[bytes]]] = {"gzip": _gunzip, "zstd": _unzstd}
