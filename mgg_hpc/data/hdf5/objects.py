"""Groups and datasets: what the messages of an object's header say (format specification, version 3.0, IV.A)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import groups
from .source import UNDEFINED, DamagedError, Fields, Source
from .types import Type, read_shape, read_type, read_value

_SHAPE, _LINK_INFO, _TYPE, _LINK, _EXTERNAL, _LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
_GROUP_INFO, _FILTERS, _ATTRIBUTE, _CONTINUATION, _TABLE, _ATTRIBUTE_INFO = 0x0A, 0x0B, 0x0C, 0x10, 0x11, 0x15
_SHARED = 2  # flag of a message that lies elsewhere
_STORAGE = {0: "in the header", 1: "contiguous", 2: "chunked", 3: "virtual"}
MOST_CHUNKS = 4096  # of one object's header: HDF5 begins another one for each few attributes that come later


class Message(NamedTuple):
    """One message of an object's header."""

    kind: int
    shared: bool
    data: bytes

    def fields(self) -> Fields:
        """Return its content. Raises DamagedError where that lies elsewhere."""
        if self.shared:
            raise DamagedError("it shares a type, a shape or an attribute with others")
        return Fields(self.data, "a message of an object's header")


@dataclass(frozen=True)
class Storage:
    """Where a dataset's entries are. kind: "contiguous", or another word of HDF5 ("chunked", "virtual", "external").

    offset, nbytes: of contiguous ones; offset None where nothing was ever written, nbytes None where that is not told.
    filters: whether entries go through some.
    """

    kind: str
    offset: int | None
    nbytes: int | None
    filters: bool


class Object:
    """A group, a dataset, or something else. path: where it was found."""

    def __init__(self, source: Source, address: int, path: str) -> None:
        self.path, self.address, self._source = path, address, source
        self._messages = list(_messages(source, address))
        kinds = {message.kind for message in self._messages}
        self.is_dataset = _LAYOUT in kinds
        self.is_group = not self.is_dataset and bool(kinds & {_TABLE, _LINK_INFO, _LINK, _GROUP_INFO})
        self._links: dict[str, int | None] | None = None
        self._attributes: dict[str, Any] | None = None
        self._children: dict[str, Object] = {}

    @property
    def links(self) -> dict[str, int | None]:
        """Addresses of a group's members by name; None for a soft or external link."""
        if self._links is None:
            self._links = _named(self._all_links() if self.is_group else ())
        return self._links

    @property
    def attributes(self) -> dict[str, Any]:
        """Values by name, as `read_value` returns them."""
        if self._attributes is None:
            self._attributes = _named(self._all_attributes())
        return self._attributes

    def child(self, name: str) -> Object:
        """Return the member of this name, by a hard link."""
        if name not in self._children:
            address = self.links[name]
            assert address is not None
            self._children[name] = Object(self._source, address, f"{self.path.rstrip('/')}/{name}")
        return self._children[name]

    @property
    def filters(self) -> bool:
        """Whether a dataset's entries, or a group's links, go through filters."""
        for message in self._of(_FILTERS):
            found = message.fields()
            if (found.number(1), found.number(1))[1]:
                return True
        return False

    @property
    def shape(self) -> tuple[int, ...] | None:
        return read_shape(self._one(_SHAPE))

    @property
    def type(self) -> Type:
        return read_type(self._one(_TYPE))

    @property
    def storage(self) -> Storage:
        """Where a dataset's entries are."""
        layout = self._one(_LAYOUT)
        version, kind = layout.number(1), layout.number(1)
        if version in (1, 2):  # a rank was read
            kind = layout.number(1)
            layout.take(5)
        elif version not in (3, 4, 5):
            raise DamagedError(f"a layout is of version {version}")
        word = "external" if any(self._of(_EXTERNAL)) else _STORAGE.get(kind, "unknown")
        offset: int | None = None
        nbytes: int | None = None
        if kind == 1:
            offset = layout.number(8)
            nbytes = layout.number(8) if version > 2 else None
        return Storage(word, None if offset == UNDEFINED else offset, nbytes, self.filters)

    def _of(self, kind: int) -> Iterator[Message]:
        return (message for message in self._messages if message.kind == kind)

    def _one(self, kind: int) -> Fields:
        found = list(self._of(kind))
        if len(found) != 1:
            raise DamagedError(f"{self.path} has {len(found)} messages of type {kind}; expected one")
        return found[0].fields()

    def _all_links(self) -> Iterator[tuple[str, int | None]]:
        if self.filters:
            raise DamagedError(f"the links of {self.path} go through a filter; a graph file has none")
        for message in self._of(_TABLE):
            yield from groups.table_links(self._source, message.fields())
        for message in self._of(_LINK):
            yield groups.read_link(message.fields())
        for message in self._of(_LINK_INFO):
            for link in groups.dense(self._source, message.fields(), links=True):
                yield groups.read_link(link)

    def _all_attributes(self) -> Iterator[tuple[str, Any]]:
        for message in self._of(_ATTRIBUTE):
            yield self._attribute(message.fields())
        for message in self._of(_ATTRIBUTE_INFO):
            for attribute in groups.dense(self._source, message.fields(), links=False):
                yield self._attribute(attribute)

    def _attribute(self, message: Fields) -> tuple[str, Any]:
        """Return an attribute's name and value."""
        version, flags = message.number(1), message.number(1)
        name_bytes, type_bytes, shape_bytes = (message.number(2) for _ in range(3))
        if version not in (1, 2, 3):
            raise DamagedError(f"an attribute is of version {version}")
        message.take(version == 3)
        round_up = 8 if version == 1 else 1
        parts = []
        for count in (name_bytes, type_bytes, shape_bytes):
            parts.append(message.take(count))
            message.take(-count % round_up)
        name = parts[0].partition(b"\0")[0].decode("utf-8", errors="backslashreplace")
        if version > 1 and flags:
            return name, None  # its type lies elsewhere
        kind, shape = (Fields(part, f"the attribute {name}") for part in parts[1:])
        return name, read_value(self._source, read_type(kind), read_shape(shape), message)


def _named(pairs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise DamagedError(f"the name {ascii(name)[:60]} is there twice")
        found[name] = value
    return found


def _messages(source: Source, at: int) -> Iterator[Message]:
    """Yield the messages of an object's header, of all its chunks."""
    if source.take(at, 4, "an object's header") == b"OHDR":
        yield from _newer(source, at)
        return
    head = source.fields(at, 16, "an object's header")
    version, _, count = head.number(1), head.take(1), head.number(2)
    head.take(4)
    if version != 1:
        raise DamagedError(f"an object's header is of version {version}")
    chunks = [(at + 16, head.number(4))]
    for number, (start, size) in enumerate(chunks):
        chunk = source.fields(start, size, "an object's header")
        while chunk.left >= 8 and count:
            kind, length, flags = chunk.number(2), chunk.number(2), chunk.number(1)
            chunk.take(3)
            count -= 1
            yield from _each(chunks, number, Message(kind, bool(flags & _SHARED), chunk.take(length)))


def _newer(source: Source, at: int) -> Iterator[Message]:
    """Yield the messages of a version 2 header, whose chunks have checksums."""
    head = source.fields(at, min(48, source.size - at), "an object's header", b"OHDR")
    version, flags = head.number(1), head.number(1)
    head.take(16 * bool(flags & 0x20) + 4 * bool(flags & 0x10))
    size = head.number(1 << (flags & 3))
    if version != 2:
        raise DamagedError(f"an object's header is of version {version}")
    chunks = [(at, head.at + size + 4)]
    for number, (start, length) in enumerate(chunks):
        chunk = source.summed(start, length, "an object's header", b"OCHK" if number else b"OHDR")
        chunk.take(0 if number else head.at - 4)
        least = 4 + 2 * bool(flags & 4)
        while chunk.left >= least:  # less is a gap
            kind, count, said = chunk.number(1), chunk.number(2), chunk.number(1)
            chunk.take(least - 4)
            yield from _each(chunks, number, Message(kind, bool(said & _SHARED), chunk.take(count)))


def _each(chunks: list[tuple[int, int]], number: int, message: Message) -> Iterator[Message]:
    """Yield a message, or add the chunk that it tells of."""
    if message.kind != _CONTINUATION:
        yield message
        return
    where = message.fields()
    chunks.append((where.number(8), where.number(8)))
    if len(chunks) > MOST_CHUNKS:
        raise DamagedError("an object's header goes on for ever")
