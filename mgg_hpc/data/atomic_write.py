"""Write files that appear whole or not at all: a temporary name in the same folder, fsync, rename."""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import InputError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SLACK = 1 << 20  # more than an HDF5 file's metadata takes


def check_output(
    path: Path, *, force: bool, inputs: Iterable[Path] = (), endings: Sequence[str] = ()
) -> Path:
    """Check that an output can be written, and return its path with links resolved.

    inputs: files that are read. endings: the endings that its name may have. [default: any] Raises InputError
    if it exists (unless ``force``), is an input, has another ending, is not a regular file, or is not in a
    writable folder.
    """
    target = path.resolve()
    if endings and path.suffix not in endings:
        raise InputError(f"{path}: its name must end in {' or '.join(endings)}")
    for each in inputs:
        if target.exists() and each.exists() and target.samefile(each):
            raise InputError(f"{path} is {each}, which is read; choose another output path")
    if target.exists():
        if not stat.S_ISREG(target.stat().st_mode):
            raise InputError(f"{path} is not a regular file; choose another output path")
        if not force:
            raise InputError(f"{path} exists; choose another output path, or overwrite it with --force")
    if not target.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; create it, or choose another output path")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path.parent} is not writable; choose another output path")
    return target


@contextmanager
def replacement(path: Path, *, force: bool, size: int, mode: int | None = None) -> Iterator[Path]:
    """Yield the path of a temporary file, which is renamed to ``path`` after the body, or removed if it raises.

    size: bytes that are allocated before the body. mode: permissions of the file. [default: by the umask] The file is
    on disk before it is renamed. Raises InputError as `check_output` does, and if the device is full.
    """
    target = check_output(path, force=force)
    name = temporary(target)
    try:
        with _full_device(path):
            _claim(name, size, mode)
            yield name
            sync(name)
            name.replace(target)
            sync(target.parent)
    finally:
        with suppress(FileNotFoundError, PermissionError):
            name.unlink()


def temporary(target: Path) -> Path:
    """Return a temporary path in the folder of a file, and remove temporary files that killed processes left there.

    The name is ``.NAME.ID.tmp``; ID has six hexadecimal digits for the machine, and six for the process. Files of other
    machines are not removed: their processes may still be writing.
    """
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{_machine():06x}([0-9a-f]{{6}})\.tmp")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            if match and not _is_another(int(match[1], 16)):
                with suppress(OSError):
                    Path(entry.path).unlink()
    return target.with_name(f".{target.name}.{_machine():06x}{os.getpid():06x}.tmp")


@functools.cache
def _machine() -> int:
    """Return 24 bits of a hash of the host name and the namespace of process numbers."""
    space = 0
    with suppress(OSError):
        space = Path("/proc/self/ns/pid").stat().st_ino
    return zlib.crc32(f"{os.uname().nodename} {space}".encode()) & 0xFFFFFF


def _is_another(process: int) -> bool:
    """Return True if another process with this number runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()


def reserve(descriptor: int, size: int) -> None:
    """Allocate a file's blocks up to ``size`` bytes, so that later writes cannot run out of space."""
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system cannot allocate
            raise


def _claim(temporary: Path, size: int, mode: int | None) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise InputError(f"{temporary.parent} is not writable ({os.strerror(error.errno or 0)})") from error
    try:
        if mode is not None:
            os.fchmod(descriptor, mode)  # whatever the umask is
        reserve(descriptor, size + SLACK)
    finally:
        os.close(descriptor)


@contextmanager
def _full_device(path: Path) -> Iterator[None]:
    """Within ``with``, turn errors of writing to a full device into InputError.

    They may be OSError, or RuntimeError, which HDF5 raises on closing a file. path: the output, for the
    message.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        code = getattr(error, "errno", None) or next((e for e in FULL if f"errno = {e}," in str(error)), None)
        if code not in FULL:
            raise
        raise InputError(
            f"no space left on device for {path} ({os.strerror(code)}); "
            "free some, or choose another output path"
        ) from error


def sync(path: Path) -> None:
    """Wait until the contents of a file or folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
