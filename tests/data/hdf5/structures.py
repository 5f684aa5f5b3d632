"""Where HDF5's own structures lie in a file, and their checksums, by the format specification (version 3.0).

It knows what graph files have (superblock 2, object headers 2, links and attributes in fractal heaps), so that mutants
can change a field and put its checksum right: HDF5 then believes it.
"""

from __future__ import annotations

from dataclasses import dataclass

OFFSETS = 8  # bytes of an offset or a length
HEAP_HEADER, TREE_HEADER = 146, 38  # bytes
CONTINUATION = 0x10  # type of the message that tells where an object header goes on


@dataclass(frozen=True)
class Structure:
    """Bytes start .. end-1 of a file. checksum: place of theirs, 0 without one; fields: places that mean something."""

    kind: str
    start: int
    end: int
    checksum: int
    fields: tuple[int, ...]


def structures(data: bytes) -> list[Structure]:
    """Return all structures that are found in a file's bytes, in order."""
    found = [Structure("superblock", 0, 48, 44, tuple(range(8, 44)))]
    for kind, read in (("OHDR", _object), ("FRHP", _heap), ("BTHD", _tree)):
        at = data.find(kind.encode())
        while at >= 0:
            found += read(data, at)
            at = data.find(kind.encode(), at + 1)
    return sorted((each for each in found if each.end <= len(data)), key=lambda each: each.start)


def seal(data: bytearray, structure: Structure) -> None:
    """Put the checksum of a structure right."""
    at = structure.checksum
    if at:
        body = data[structure.start : at]
        if structure.kind == "FHDB":
            body = data[structure.start : at] + bytes(4) + data[at + 4 : structure.end]
        data[at : at + 4] = lookup3(bytes(body)).to_bytes(4, "little")


def _number(data: bytes, at: int, width: int = OFFSETS) -> int:
    return int.from_bytes(data[at : at + width], "little")


def _object(data: bytes, at: int) -> list[Structure]:
    """Return an object header and the chunks where it goes on."""
    flags = data[at + 5]
    start = at + 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
    width = 1 << (flags & 3)
    size = _number(data, start, width)
    body = start + width
    found = [Structure("OHDR", at, body + size + 4, body + size, ())]
    fields = list(range(at + 4, body))
    pending = [(body, body + size)]
    chunks: list[Structure] = []
    more = 4 + 2 * bool(flags & 4)
    while pending:
        first, last = pending.pop()
        places = []
        while first + more <= last:
            places += range(first, min(first + more + _number(data, first + 1, 2), last))
            if data[first] == CONTINUATION:
                goes_on, length = _number(data, first + more), _number(data, first + more + OFFSETS)
                if data[goes_on : goes_on + 4] == b"OCHK":
                    chunks.append(Structure("OCHK", goes_on, goes_on + length, goes_on + length - 4, ()))
                    pending.append((goes_on + 4, goes_on + length - 4))
            first += more + _number(data, first + 1, 2)
        fields += places
    return [
        Structure(each.kind, each.start, each.end, each.checksum, _within(fields, each))
        for each in found + chunks
    ]


def _within(fields: list[int], chunk: Structure) -> tuple[int, ...]:
    return tuple(at for at in fields if chunk.start <= at < chunk.checksum)


def _heap(data: bytes, at: int) -> list[Structure]:
    """Return a fractal heap's header and its root block, if that is a direct one without filters."""
    end = at + HEAP_HEADER
    found = [Structure("FRHP", at, end, end - 4, tuple(range(at + 4, end - 4)))]
    most, root, rows = _number(data, at + 128, 2), _number(data, at + 132), _number(data, at + 140, 2)
    if data[root : root + 4] == b"FHDB" and rows == 0:
        size, summed = _number(data, at + 112), bool(data[at + 9] & 2)
        place = root + 13 + -(-most // 8)
        fields = tuple(range(root + 4, min(root + size, root + 400)))
        found.append(Structure("FHDB", root, root + size, place if summed else 0, fields))
    return found


def _tree(data: bytes, at: int) -> list[Structure]:
    """Return a version 2 B-tree's header, and its root if that is a leaf."""
    end = at + TREE_HEADER
    found = [Structure("BTHD", at, end, end - 4, tuple(range(at + 4, end - 4)))]
    record, root, count = _number(data, at + 10, 2), _number(data, at + 16), _number(data, at + 24, 2)
    if data[root : root + 4] == b"BTLF":
        last = root + 6 + record * count
        found.append(Structure("BTLF", root, last + 4, last, tuple(range(root + 4, last))))
    return found


def lookup3(key: bytes) -> int:
    """Return Bob Jenkins' hashlittle (lookup3.c, 2006) of some bytes, which HDF5 takes as a checksum."""
    mask = 0xFFFFFFFF

    def turned(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & mask

    a = b = c = (0xDEADBEEF + len(key)) & mask
    at, left = 0, len(key)
    while left > 12:
        a, b, c = ((x + _number(key, at + 4 * i, 4)) & mask for i, x in enumerate((a, b, c)))
        a = (a - c & mask) ^ turned(c, 4)
        c = c + b & mask
        b = (b - a & mask) ^ turned(a, 6)
        a = a + c & mask
        c = (c - b & mask) ^ turned(b, 8)
        b = b + a & mask
        a = (a - c & mask) ^ turned(c, 16)
        c = c + b & mask
        b = (b - a & mask) ^ turned(a, 19)
        a = a + c & mask
        c = (c - b & mask) ^ turned(b, 4)
        b = b + a & mask
        at, left = at + 12, left - 12
    if not left:
        return c
    rest = key[at:] + bytes(12 - left)
    a, b, c = ((x + _number(rest, 4 * i, 4)) & mask for i, x in enumerate((a, b, c)))
    for x, y, by in (
        ("c", "b", 14),
        ("a", "c", 11),
        ("b", "a", 25),
        ("c", "b", 16),
        ("a", "c", 4),
        ("b", "a", 14),
        ("c", "b", 24),
    ):
        value = {"a": a, "b": b, "c": c}
        value[x] = ((value[x] ^ value[y]) - turned(value[y], by)) & mask
        a, b, c = value["a"], value["b"], value["c"]
    return c
