"""Checkpoint folders on disk: each appears whole or not at all, and digests in it prove that it is undamaged.

``epoch-0000120/``, or within the following epoch ``epoch-0000120-batch-0000034/``, is first written under a temporary
name in the same folder: each file is written and fsynced, then the manifest with the size and digest (XXH3-128) of
every file, then the folder itself, and the rename comes last. A crash at any point leaves the earlier checkpoints, and
at most a temporary folder, which the next checkpoint removes.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import xxhash

from ...data.atomic_write import sync
from ...errors import InputError, shown
from ...runtime.exit_code import write
from ..run_folder import make_folders

VERSION = 1
MANIFEST = "manifest.json"
BLOCK = 4 << 20  # bytes written or read at a time
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700  # regardless of the umask
_NAME = re.compile(r"epoch-([0-9]{7,18})(?:-batch-([0-9]{7,18}))?")
_TEMPORARY = re.compile(r"\.epoch-[0-9]{7,18}(?:-batch-[0-9]{7,18})?\.[0-9a-f]{12}\.tmp")
_LARGEST_MANIFEST = 16 << 20


class DamagedError(Exception):
    """A checkpoint differs from its manifest."""


class Position(NamedTuple):
    """Progress of a training: number of complete epochs, and of complete batches of the next epoch."""

    epoch: int = 0
    batch: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch} of epoch {self.epoch + 1}" if self.batch else f"epoch {self.epoch}"


START = Position()


class Written(msgspec.Struct, frozen=True):
    """Size in bytes of a file of a checkpoint, and its XXH3-128 digest in hexadecimal."""

    bytes: int
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class _Manifest(msgspec.Struct, omit_defaults=True):
    """Content of a manifest, without its own digest."""

    epoch: int
    files: dict[str, Written]
    version: int
    format: Literal["mgg-checkpoint"]
    batch: int = 0


@dataclass(frozen=True)
class Found:
    """An undamaged checkpoint."""

    folder: Path
    at: Position


def name_of(epoch: int, batch: int = 0) -> str:
    """Return the name of the checkpoint folder written after an epoch, or after ``batch`` batches of the next one."""
    return f"epoch-{epoch:07d}-batch-{batch:07d}" if batch else f"epoch-{epoch:07d}"


def make(parent: Path) -> None:
    """Make the folder that holds the checkpoints, unless it exists. Raises InputError if it cannot be written to."""
    try:
        make_folders(parent, PRIVATE_FOLDER)
        parent.chmod(PRIVATE_FOLDER)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        raise InputError(f"{parent} cannot be written to ({error.strerror}); name another folder") from error


def draft(parent: Path, epoch: int, batch: int = 0) -> Path:
    """Create the temporary folder in which a checkpoint is written, and return its path. Raises OSError."""
    folder = parent / f".{name_of(epoch, batch)}.{uuid.uuid4().hex[:12]}.tmp"
    folder.mkdir(PRIVATE_FOLDER)
    folder.chmod(PRIVATE_FOLDER)
    return folder


def write_file(path: Path, pieces: Iterable[Any]) -> Written:
    """Write a new file and wait until it is on the disk. Raises OSError.

    pieces: consecutive parts of the content, ``bytes`` or uint8 arrays.
    """
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
    """Write the manifest of a temporary folder, rename it to its final name and return that. Raises OSError.

    An existing checkpoint of the same position is replaced.
    """
    manifest = _Manifest(epoch, dict(sorted(files.items())), VERSION, "mgg-checkpoint", batch)
    content = msgspec.to_builtins(manifest)
    write_file(folder / MANIFEST, [json.dumps(content | {"digest": _digest(content)}, indent=1).encode()])
    sync(folder)
    made = folder.parent / name_of(epoch, batch)
    if made.exists():
        made.rename(draft(folder.parent, epoch, batch) / "replaced")
    folder.rename(made)
    sync(folder.parent)
    return made


def discard(folder: Path) -> None:
    """Remove a temporary folder or a checkpoint, as far as possible."""
    with suppress(OSError):
        (folder / MANIFEST).unlink()  # first, so that a half-removed folder does not look like a checkpoint
    shutil.rmtree(folder, ignore_errors=True)


def prune(parent: Path, keep: int, newest: Position) -> None:
    """Remove all checkpoints but the newest ``keep``, and all temporary folders.

    No checkpoint may be written meanwhile. newest: position of the last committed checkpoint. Checkpoints of
    later positions were found damaged when the run was resumed from an earlier one; they are removed too.
    """
    positions = sorted(_positions(parent), reverse=True)
    kept = [at for at in positions if at <= newest][:keep]
    for at in positions:
        if at not in kept:
            discard(parent / name_of(*at))
    for path in drafts(parent):
        shutil.rmtree(path, ignore_errors=True)


def drafts(parent: Path) -> list[Path]:
    """Return the temporary folders of checkpoints that are being written, or were when a run was killed."""
    return [path for path in parent.glob(".*.tmp") if _TEMPORARY.fullmatch(path.name)]


def newest(parent: Path) -> Found | None:
    """Return the newest undamaged checkpoint, all of whose files are read to verify it; None if there is none.

    Damaged ones are named on stderr. Raises InputError if all are damaged, and for one of another format
    version.
    """
    reason = ""
    skipped = []
    for at in sorted(_positions(parent), reverse=True):
        folder = parent / name_of(*at)
        try:
            verify(folder, *at)
        except DamagedError as error:
            reason = reason or str(error)
            skipped.append(f"mgg: warning: {folder}: damaged ({error}); trying the one before it")
            continue
        for line in skipped:
            write(line)
        return Found(folder, at)
    if reason:
        raise InputError(
            f"{parent}: no checkpoint is sound ({reason}); put one back, or remove them all to begin again"
        )
    return None


def verify(folder: Path, epoch: int, batch: int = 0) -> None:
    """Raise DamagedError unless a checkpoint has exactly the files of its manifest, with the same bytes."""
    try:
        files = _files_of(folder, Position(epoch, batch))
        present = {entry.name for entry in folder.iterdir()} - {MANIFEST}
        if present != files.keys():
            odd = sorted(present ^ files.keys())[0]
            raise DamagedError(f"{shown(odd)[1:-1]} is missing, or does not belong to it")
        for name, file in files.items():
            digest = xxhash.xxh3_128()
            for block in _blocks(folder / name, file.bytes):
                digest.update(block)
            if digest.hexdigest() != file.digest:
                raise DamagedError(f"{name} has other bytes than were written")
    except OSError as error:
        raise DamagedError(f"{Path(error.filename or folder).name}: {error.strerror}") from error


def _files_of(folder: Path, at: Position) -> dict[str, Written]:
    """Return the files that a checkpoint's manifest lists, by name.

    at: position in the folder's name. Raises DamagedError for a manifest that is wrong or of another position,
    OSError if it cannot be read, and InputError for another format version.
    """
    data = b"".join(_blocks(folder / MANIFEST, None, _LARGEST_MANIFEST))
    try:
        content: dict[str, Any] = json.loads(data)
        if content.pop("digest") != _digest(content):
            raise DamagedError(f"{MANIFEST} has other bytes than were written")
        manifest = msgspec.convert(content, _Manifest)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        msgspec.MsgspecError,
    ) as error:
        raise DamagedError(f"{MANIFEST} is not one") from error
    if manifest.version != VERSION:
        raise InputError(
            f"{folder}: is a checkpoint of version {shown(manifest.version)}, and this program reads version "
            f"{VERSION}; resume it with the version of mgg that wrote it"
        )
    if (found := Position(manifest.epoch, manifest.batch)) != at:
        raise DamagedError(f"{MANIFEST} is of {shown(str(found))[1:-1]}")
    return manifest.files


def _digest(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _blocks(path: Path, size: int | None, most: int = 1 << 62) -> Iterator[bytes]:
    """Yield the bytes of a file, block by block.

    Raises DamagedError if it is not a regular file, has more than ``most`` bytes, or, if ``size`` is not None,
    has another number of bytes.
    """
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


def _positions(parent: Path) -> list[Position]:
    """Return the positions of all checkpoints in ``parent``, damaged or not."""
    found = (_NAME.fullmatch(entry.name) for entry in parent.iterdir()) if parent.is_dir() else ()
    return [Position(int(match[1]), int(match[2] or 0)) for match in found if match]
