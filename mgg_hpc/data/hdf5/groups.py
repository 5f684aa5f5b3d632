"""The links of a group and the attributes of an object, wherever HDF5 has put them.

Few of them lie in the object's header. More lie in a fractal heap, where a version 2 B-tree says; older files have a
symbol table instead (a version 1 B-tree and a local heap). Sections of the format specification, version 3.0, are named
as "III.G".
"""

from __future__ import annotations

from collections.abc import Iterator

from .source import UNDEFINED, DamagedError, Fields, Source, checksum

_HEAP_HEADER, _TREE_HEADER = 146, 38  # bytes
_LINKS_BY_NAME, _ATTRIBUTES_BY_NAME = (
    5,
    8,
)  # types of B-trees: where in a record the heap's id is, and its bytes
_IDS = {_LINKS_BY_NAME: (4, 7), _ATTRIBUTES_BY_NAME: (0, 8)}
_RECORDS = {_LINKS_BY_NAME: 11, _ATTRIBUTES_BY_NAME: 17}  # bytes
_LONGEST_NAME = 1024  # bytes
_DEEPEST = 8  # levels of a version 1 B-tree; each has 32 branches or more


def read_link(message: Fields) -> tuple[str, int | None]:
    """Return a link's name, and the address of an object's header; None for a link that is not a hard one."""
    version, flags = message.number(1), message.number(1)
    if version != 1:
        raise DamagedError(f"a link is of version {version}")
    kind = message.number(1) if flags & 8 else 0
    message.take(8 * bool(flags & 4) + bool(flags & 16))
    raw = message.take(message.number(1 << (flags & 3)))
    return raw.decode("utf-8", errors="backslashreplace"), message.number(8) if kind == 0 else None


def dense(source: Source, info: Fields, *, links: bool) -> Iterator[Fields]:
    """Yield the messages that a link info or attribute info message tells to lie in a fractal heap (III.E)."""
    kind = _LINKS_BY_NAME if links else _ATTRIBUTES_BY_NAME
    version, flags = info.number(1), info.number(1)
    if version:
        raise DamagedError(f"information about links or attributes is of version {version}")
    info.take((8 if links else 2) * (flags & 1))
    heap_at, tree_at = info.number(8), info.number(8)
    if heap_at == UNDEFINED:
        return
    heap = _Heap(source, heap_at)
    start, length = _IDS[kind]
    for record in _records(source, tree_at, kind):
        yield heap.find(record[start : start + length])


def _records(source: Source, at: int, kind: int) -> Iterator[bytes]:
    """Yield the records of a version 2 B-tree of one or two levels, which hold about 1,000 (III.A.2)."""
    head = source.summed(at, _TREE_HEADER, "a B-tree", b"BTHD")
    version, found, node = head.number(1), head.number(1), head.number(4)
    record, depth, _ = head.number(2), head.number(2), head.take(2)
    root, count, total = head.number(8), head.number(2), head.number(8)
    if (version, found, record) != (0, kind, _RECORDS[kind]) or depth > 1 or not 64 <= node <= 1 << 16:
        raise DamagedError(f"a B-tree of type {found}, version {version} and {depth + 1} levels")
    most = (node - 10) // record
    said = 0
    for each in _nodes(source, root, (kind, record, most), count, depth) if total else ():
        said += 1
        yield each
    if said != total:
        raise DamagedError(f"a B-tree has {said} records in place of {total}")


def _nodes(source: Source, at: int, sizes: tuple[int, int, int], count: int, depth: int) -> Iterator[bytes]:
    kind, record, most = sizes
    if count > most:
        raise DamagedError(f"a node of a B-tree has {count} records")
    width = -(-most.bit_length() // 8)
    size = 10 + record * count + depth * (count + 1) * (8 + width)
    node = source.summed(at, size, "a node of a B-tree", b"BTIN" if depth else b"BTLF")
    if (node.number(1), node.number(1)) != (0, kind):
        raise DamagedError("a node of a B-tree is of another type")
    for _ in range(count):
        yield node.take(record)
    for _ in range(depth * (count + 1)):
        yield from _nodes(source, node.number(8), sizes, node.number(width), depth - 1)


class _Heap:
    """A fractal heap (III.G) without filters, whose objects lie in blocks under one indirect block at most."""

    def __init__(self, source: Source, at: int) -> None:
        self._source, self._at = source, at
        head = source.fields(at, _HEAP_HEADER, "a fractal heap", b"FRHP")
        version, self._id_bytes, filters, flags = (head.number(width) for width in (1, 2, 2, 1))
        if version or filters:
            raise DamagedError(f"a fractal heap is of version {version}, with {filters} bytes of filters")
        head = source.summed(at, _HEAP_HEADER, "a fractal heap", b"FRHP")
        head.take(106)
        self._width, self._start, self._largest = head.number(2), head.number(8), head.number(8)
        self._offset_bytes = -(-head.number(2) // 8)
        _, self._root, self._rows = head.take(2), head.number(8), head.number(2)
        self._summed = bool(flags & 2)
        if not (
            1 <= self._width <= 64 and 64 <= self._start <= self._largest <= 1 << 20 and self._rows <= 32
        ):
            raise DamagedError("a fractal heap has blocks of sizes that HDF5 does not choose")
        self._blocks: dict[int, bytes] = {}
        self._addresses = self._children() if self._rows else [self._root]

    def find(self, name: bytes) -> Fields:
        """Return an object by its id."""
        given = Fields(name, "an id in a fractal heap")
        if len(name) != self._id_bytes or given.number(1):  # a managed object; links and attributes are small
            raise DamagedError("a link or an attribute is not in the blocks of a fractal heap")
        offset, length = given.number(self._offset_bytes), given.number(given.left)
        row = 0
        while offset >= self._width * self._block_size(row) + self._base(row):
            row += 1
            if row >= max(self._rows, 1):
                raise DamagedError("an id lies outside of its fractal heap")
        column, within = divmod(offset - self._base(row), self._block_size(row))
        place = row * self._width + column
        if place >= len(self._addresses):
            raise DamagedError("an id lies outside of its fractal heap")
        block = self._block(
            self._addresses[place], self._block_size(row), self._base(row) + column * self._block_size(row)
        )
        if within + length > len(block):
            raise DamagedError("an object lies across blocks of a fractal heap")
        return Fields(block[within : within + length], "a link or an attribute")

    def _block_size(self, row: int) -> int:
        return self._start << max(row - 1, 0)

    def _base(self, row: int) -> int:
        """Return the offset of a row of blocks within the heap; rows of all blocks before it are as long together."""
        return self._width * self._start << row - 1 if row else 0

    def _children(self) -> list[int]:
        """Return the addresses of the direct blocks of the root's indirect block."""
        direct = sum(self._block_size(row) <= self._largest for row in range(self._rows))
        count = self._width * self._rows
        size = 4 + 1 + 8 + self._offset_bytes + 8 * count + 4
        node = self._source.summed(self._root, size, "a block of a fractal heap", b"FHIB")
        node.take(9 + self._offset_bytes)
        return [node.number(8) for _ in range(self._width * direct)]

    def _block(self, at: int, size: int, offset: int) -> bytes:
        if at not in self._blocks:
            what = "a block of a fractal heap"
            block = self._source.fields(at, size, what, b"FHDB")
            version, heap, told = block.number(1), block.number(8), block.number(self._offset_bytes)
            if (version, heap, told) != (0, self._at, offset):
                raise DamagedError(f"{what} belongs to another one")
            if self._summed:
                place, said = (
                    block.at,
                    block.number(4),
                )  # the checksum is of the block with zeros in its place
                if said != checksum(block.data[:place] + bytes(4) + block.data[place + 4 :]):
                    raise DamagedError(f"{what} has another checksum")
            self._blocks[at] = block.data
        return self._blocks[at]


def table_links(source: Source, message: Fields) -> Iterator[tuple[str, int | None]]:
    """Yield the links of a symbol table (III.B, III.D), in files of the first versions of the format."""
    tree, heap = message.number(8), message.number(8)
    head = source.fields(heap, 32, "a local heap", b"HEAP")
    head.take(4)
    size, _, data = head.number(8), head.take(8), head.number(8)
    names = source.take(data, size, "a local heap")
    for at in _tables(source, tree, _DEEPEST):
        table = source.fields(at, 8, "a symbol table", b"SNOD")
        table.take(2)
        entries = source.fields(at + 8, 40 * table.number(2), "a symbol table")
        while entries.left:
            name, address, kind = entries.number(8), entries.number(8), entries.number(4)
            entries.take(20)
            end = names.find(b"\0", name)
            if not name < end <= name + _LONGEST_NAME:
                raise DamagedError("a symbol table has a link without a name, or with a long one")
            text = names[name:end].decode("utf-8", errors="backslashreplace")
            yield text, None if kind == 2 else address


def _tables(source: Source, at: int, levels: int) -> Iterator[int]:
    """Yield the addresses of the symbol tables below a node of a version 1 B-tree (III.A.1)."""
    node = source.fields(at, 24, "a B-tree", b"TREE")
    kind, level, count = node.number(1), node.number(1), node.number(2)
    if kind or level >= levels:
        raise DamagedError(f"a B-tree of type {kind} with {level + 1} levels")
    children = source.fields(at + 24, 16 * count, "a B-tree")
    for _ in range(count):
        children.take(8)
        child = children.number(8)
        if level:
            yield from _tables(source, child, level)
        else:
            yield child
