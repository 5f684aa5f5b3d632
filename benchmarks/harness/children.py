"""Programs that a benchmark runs to their end."""

from __future__ import annotations

import subprocess

from mgg_hpc.errors import InputError


def output(command: list[object], what: str) -> str:
    """Run a program; return what it prints. Raises InputError (`checked`) if it fails."""
    return checked(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False), what)


def checked(done: subprocess.CompletedProcess[str], what: str) -> str:
    """Return what a program printed. Raises InputError if it failed: what it was, its exit code and its last line."""
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise InputError(f"{what}: exit code {done.returncode}: {said[-1].strip()}")
    return done.stdout
