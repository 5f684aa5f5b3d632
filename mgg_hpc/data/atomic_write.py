"""Write files that appear whole or not at all: a temporary name in the same folder, fsync, rename."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import InputError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SLACK = 1 << 20  # more than an HDF5 file's metadata takes


def check_output(path: Path, *, force: bool) -> Path:
    """Return the path of an output, links resolved.

    Raises InputError if it exists (unless ``force``), is no regular file, or lies in no writable folder.
    """
    target = path.resolve()
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
    """Yield a temporary path beside ``path``, and rename it to ``path`` when the body is done.

    ``size`` bytes are allocated before the body begins; all is on disk before the renaming. Any error removes the
    temporary file. mode: permissions of the file, whatever the umask is. [default: as the umask says] Raises InputError
    where ``check_output`` does, and when the device is full.
    """
    target = check_output(path, force=force)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with _full_device(path):
            _claim(temporary, size)
            if mode is not None:
                temporary.chmod(mode)
            yield temporary
            _sync(temporary)
            temporary.replace(target)
            _sync(target.parent)
    finally:
        with suppress(FileNotFoundError, PermissionError):
            temporary.unlink()


def reserve(descriptor: int, size: int) -> None:
    """Allocate a file's blocks up to ``size`` bytes, so that later writes cannot run out of space."""
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # such a file system raises while writing
            raise


def _claim(temporary: Path, size: int) -> None:
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise InputError(f"{temporary.parent} is not writable ({os.strerror(error.errno or 0)})") from error
    try:
        reserve(descriptor, size + SLACK)
    finally:
        os.close(descriptor)


@contextmanager
def _full_device(path: Path) -> Iterator[None]:
    """Turn errors of a full device into an InputError (on closing, HDF5 raises a RuntimeError)."""
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
