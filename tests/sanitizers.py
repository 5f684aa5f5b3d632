"""What a Python needs that loads code built with the address and the undefined-behaviour sanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def library(compiler: str, name: str) -> str:
    """Where a compiler's own library lies."""
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


def environment(compiler: str) -> dict[str, str]:
    """Python itself is not sanitized: the sanitizer's library must be there first, and the C++ library whose exceptions
    it watches. What Python leaves allocated when it ends is not ours."""
    return os.environ | {
        "LD_PRELOAD": " ".join(library(compiler, name) for name in ("libasan.so", "libstdc++.so")),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
    }
