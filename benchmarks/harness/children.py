"""Programs that a benchmark runs to their end."""

from __future__ import annotations

import subprocess

from mgg_hpc.errors import InputError


def output(command: list[object], what: str) -> str:
    """Run a command and return its standard output. Raises InputError if it fails. what: its name in the message."""
    return checked(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False), what)


def checked(done: subprocess.CompletedProcess[str], what: str) -> str:
    """Return the standard output of a command that has ended.

    Raises InputError with its name, exit code and last line of standard error if it failed.
    """
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise InputError(f"{what}: exit code {done.returncode}: {said[-1].strip()}")
    return done.stdout
