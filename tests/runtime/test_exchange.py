"""The protocol of halos between ranks that are out of each other's reach."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_acknowledgement_is_lost(tmp_path):
    """Rows that arrive while nobody calls the transport are acknowledged all the same."""
    program = tmp_path / "acknowledged"
    source = [Path(__file__).with_name("acknowledged.cpp"), ROOT / "cuda" / "runtime" / "halo_exchange.cpp"]
    folders = ["-I", ROOT / "cuda", "-I", ROOT / "cuda" / "include"]
    compiler = os.environ.get("CXX", "c++").split()
    subprocess.run([*compiler, "-std=c++17", "-O2", "-pthread", *folders, *source, "-o", program], check=True)
    ended = subprocess.run([program], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
