"""Checkpoints on disk: a folder each, which appears whole or not at all and says by digests whether it is sound.

``epoch-0000120/``, or within the epoch after it ``epoch-0000120-batch-0000034/``, is written under a temporary name in
the same folder: each file is written and fsynced, then the manifest with the size and the digest (XXH3-128) of every
file, then the folder; it gets its name last. A crash at any point leaves what was there before, and at most a temporary
folder that the next checkpoint removes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from ...data.atomic_write import sync
from ...data.readers.limits import shown
from ...errors import InputError
from ..run_folder import make_folders

FORMAT, VERSION = "mgg-checkpoint", 1
MANIFEST = "manifest.json"
BLOCK = 4 << 20  # bytes that are written, or read, at a time
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700  # whatever the umask is
_NAME = re.compile(r"epoch-([0-9]{7,18})(?:-batch-([0-9]{7,18}))?")
_TEMPORARY = re.compile(r"\.epoch-[0-9]{7,18}(?:-batch-[0-9]{7,18})?\.[0-9a-f]{12}\.tmp")
_LARGEST_MANIFEST = 16 << 20
_DIGEST = re.compile(r"[0-9a-f]{32}")


class DamagedError(Exception):
    """A checkpoint is not what its manifest says."""


class Position(NamedTuple):
    """Where a training is: complete epochs, and batches of the next one that are done. They are ordered so."""

    epoch: int = 0
    batch: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch} of epoch {self.epoch + 1}" if self.batch else f"epoch {self.epoch}"


START = Position()


@dataclass(frozen=True)
class Written:
    """A file of a checkpoint: its size, and XXH3-128 of its bytes in hexadecimal digits."""

    bytes: int
    digest: str


@dataclass(frozen=True)
class Found:
    """A sound checkpoint. skipped: a line for each newer one that is damaged."""

    folder: Path
    at: Position
    skipped: tuple[str, ...] = ()


def name_of(epoch: int, batch: int = 0) -> str:
    """Return the name of the folder of a checkpoint after an epoch, or after batches of the one that follows it."""
    return f"epoch-{epoch:07d}-batch-{batch:07d}" if batch else f"epoch-{epoch:07d}"


def make(parent: Path) -> None:
    """Make the folder of checkpoints, if it is not there. Raises InputError where it cannot be written to."""
    try:
        make_folders(parent, PRIVATE_FOLDER)
        parent.chmod(PRIVATE_FOLDER)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        raise InputError(f"{parent} cannot be written to ({error.strerror}); name another folder") from error


def draft(parent: Path, epoch: int, batch: int = 0) -> Path:
    """Make and return the temporary folder of a checkpoint. Raises OSError."""
    folder = parent / f".{name_of(epoch, batch)}.{uuid.uuid4().hex[:12]}.tmp"
    folder.mkdir(PRIVATE_FOLDER)
    folder.chmod(PRIVATE_FOLDER)
    return folder


def write_file(path: Path, pieces: Iterable[Any]) -> Written:
    """Write a new file from its bytes (``bytes`` or uint8 arrays), and wait until it is on the disk. Raises OSError."""
    digest, size = xxhash.xxh3_128(), 0
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        os.fchmod(descriptor, PRIVATE_FILE)
        for piece in pieces:
            whole = memoryview(piece)
            for start in range(0, len(whole), BLOCK):
                block = whole[start : start + BLOCK]
                digest.update(block)
                size += len(block)
                while block:
                    block = block[os.write(descriptor, block) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Written(size, digest.hexdigest())


def commit(folder: Path, epoch: int, files: Mapping[str, Written], batch: int = 0) -> Path:
    """Write the manifest of a draft and give it its name; returns the checkpoint. Raises OSError.

    Another checkpoint of this place is replaced.
    """
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "epoch": epoch}
    if batch:
        content["batch"] = batch
    content["files"] = {name: asdict(file) for name, file in sorted(files.items())}
    content["digest"] = _digest(content)
    write_file(folder / MANIFEST, [json.dumps(content, indent=1).encode()])
    sync(folder)
    made = folder.parent / name_of(epoch, batch)
    if made.exists():
        made.rename(draft(folder.parent, epoch, batch) / "replaced")
    folder.rename(made)
    sync(folder.parent)
    return made


def discard(folder: Path) -> None:
    """Remove a draft or a checkpoint, as far as that is possible."""
    with suppress(OSError):
        (folder / MANIFEST).unlink()  # first: what is half removed must not look like a checkpoint
    shutil.rmtree(folder, ignore_errors=True)


def prune(parent: Path, keep: int, newest: Position) -> None:
    """Remove all checkpoints but the newest ``keep``, and drafts that were never committed. No draft is under way.

    newest: where the one is that was committed last. What is later was found damaged when the run went on from an
    earlier one, and goes too.
    """
    places = sorted(_places(parent), reverse=True)
    kept = [at for at in places if at <= newest][:keep]
    for at in places:
        if at not in kept:
            discard(parent / name_of(*at))
    for path in drafts(parent):
        shutil.rmtree(path, ignore_errors=True)


def drafts(parent: Path) -> list[Path]:
    """Return the temporary folders of checkpoints that are under way, or were when their run was killed."""
    return [path for path in parent.glob(".*.tmp") if _TEMPORARY.fullmatch(path.name)]


def newest(parent: Path) -> Found | None:
    """Return the newest sound checkpoint, or None where there is none at all; all bytes of it have been read.

    Raises InputError where all are damaged, and for one that a later version of this program has written.
    """
    skipped: list[str] = []
    reason = ""
    for at in sorted(_places(parent), reverse=True):
        folder = parent / name_of(*at)
        try:
            verify(folder, *at)
        except DamagedError as error:
            reason = reason or str(error)
            skipped.append(f"{folder}: damaged ({error}); trying the one before it")
            continue
        return Found(folder, at, tuple(skipped))
    if reason:
        raise InputError(
            f"{parent}: no checkpoint is sound ({reason}); put one back, or remove them all to begin again"
        )
    return None


def verify(folder: Path, epoch: int, batch: int = 0) -> None:
    """Raise DamagedError unless a checkpoint has every file that its manifest names, with its bytes."""
    try:
        files = _manifest(folder, Position(epoch, batch))
        present = {entry.name for entry in folder.iterdir()} - {MANIFEST}
        if present != files.keys():
            raise DamagedError(
                f"{shown(sorted(present ^ files.keys())[0])[1:-1]} is missing, or does not belong to it"
            )
        for name, file in files.items():
            digest = xxhash.xxh3_128()
            for block in _blocks(folder / name, file.bytes):
                digest.update(block)
            if digest.hexdigest() != file.digest:
                raise DamagedError(f"{name} has other bytes than were written")
    except OSError as error:
        raise DamagedError(f"{Path(error.filename or folder).name}: {error.strerror}") from error


def _manifest(folder: Path, at: Position) -> dict[str, Written]:
    """Return the files that a checkpoint must have. Raises DamagedError, OSError, InputError for a later version."""
    data = b"".join(_blocks(folder / MANIFEST, None, _LARGEST_MANIFEST))
    try:
        content: dict[str, Any] = json.loads(data)
        told = content.pop("digest")
        if told != _digest(content) or content["format"] != FORMAT:
            raise DamagedError(f"{MANIFEST} has other bytes than were written")
        version, files = content["version"], content["files"]
        of = Position(content["epoch"], content.get("batch", 0))
        found = {name: Written(file["bytes"], file["digest"]) for name, file in files.items()}
        sound = all(_is_sound(file) for file in found.values()) and {type(version), *map(type, of)} == {int}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} is not one") from error
    if not sound:
        raise DamagedError(f"{MANIFEST} is not one")
    if version != VERSION:
        raise InputError(
            f"{folder}: is a checkpoint of version {shown(version)}, and this program reads version {VERSION}; "
            "resume it with the version of mgg that wrote it"
        )
    if of != at:
        raise DamagedError(f"{MANIFEST} is of {shown(str(of))[1:-1]}")
    return found


def _is_sound(file: Written) -> bool:
    """Whether a manifest has a file's size and digest in the right types."""
    return type(file.bytes) is int and type(file.digest) is str and _DIGEST.fullmatch(file.digest) is not None


def _digest(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _blocks(path: Path, size: int | None, most: int = 1 << 62) -> Iterator[bytes]:
    """Yield the bytes of a regular file. Raises DamagedError for anything else, and for another size."""
    # Only regular files are accepted: a link could lead out of the checkpoint, and reading a pipe could block.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedError(f"{path.name} is not a regular file")
        if found.st_size > most:
            raise DamagedError(f"{path.name} is larger than any")
        if size is not None and found.st_size != size:
            raise DamagedError(f"{path.name} has {found.st_size} bytes, and {shown(size)} were written")
        while block := os.read(descriptor, BLOCK):
            yield block
    finally:
        os.close(descriptor)


def _places(parent: Path) -> list[Position]:
    """Return the places of which there is a checkpoint, sound or not."""
    found = (_NAME.fullmatch(entry.name) for entry in parent.iterdir()) if parent.is_dir() else ()
    return [Position(int(match[1]), int(match[2] or 0)) for match in found if match]
