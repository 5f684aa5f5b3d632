"""An import that is killed at any instant goes on when the same command is given again, and gives the same file."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

SCRIPT = """
    import sys
    from mgg_hpc.__main__ import main
    from mgg_hpc.data.assembly import rows, runs, work
    from mgg_hpc.data.readers import compressed
    runs.MOST_EDGES, rows.MOST_EDGES, work.KEEP_SECONDS, compressed.BLOCK_BYTES = 5000, 3000, 0.2, 30_000
    print("ready", flush=True)
    sys.exit(main(["import", "edges.txt", "--symmetric", "-o", sys.argv[1]]))
"""


def started(folder, name: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), name]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.trials(2, torture=40)
def test_a_killed_import_goes_on(rng, tmp_path, trials):
    pairs = rng.integers(2000, size=(60_000, 2))
    (tmp_path / "edges.txt").write_text("".join(f"{u} {v}\n" for u, v in pairs))
    began = time.monotonic()
    with started(tmp_path, "whole.h5") as process:
        assert process.wait() == 0
    took = time.monotonic() - began
    for _ in range(trials):
        for _ in range(int(rng.integers(1, 4))):
            with started(tmp_path, "g.h5") as process:
                time.sleep(rng.random() * took)
                process.send_signal(signal.SIGKILL)
            if (tmp_path / "g.h5").exists():
                break
        else:
            with started(tmp_path, "g.h5") as process:
                assert process.wait() == 0
        assert (tmp_path / "g.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
        (tmp_path / "g.h5").unlink()
        shutil.rmtree(tmp_path / ".g.h5.build", ignore_errors=True)  # killed between the file and its end
