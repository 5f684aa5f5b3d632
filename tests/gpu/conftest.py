"""What tests of a GPU run on, and on how many processes: a GPU, or the shim (--device)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
from builds import made
from devices import limit

from .pes.engine import Engine

RANKS = Path(__file__).parent / "ranks"
LAUNCH = (
    "import sys; from mgg_hpc.runtime import launch; sys.exit(launch.run(sys.argv[2:], int(sys.argv[1])))"
)
# Without NCCL and multicast, which NVSHMEM has not where processes share a GPU, and without a network.
SHARED = {"NVSHMEM_DISABLE_NCCL": "1", "NVSHMEM_DISABLE_NVLS": "1", "NVSHMEM_REMOTE_TRANSPORT": "none"}
CONTROL = "nvidia-cuda-mps-control"
PROBE = "from mgg_hpc.runtime.backends.cuda import module; module.need_device(module.load())"


@pytest.fixture(scope="session")
def whole_engine(request) -> Engine:
    """The engine of all tests of this process."""
    library = request.config.getoption("--library")
    if request.config.getoption("--device") == "cuda":
        return Engine.gpu(library)
    return Engine.shim(library or made("shim") / "_cuda.so")


@pytest.fixture
def device(request, record_property) -> str:
    """ "cuda" or "shim", which stands in each result."""
    record_property("device", request.config.getoption("--device") or "shim")
    return request.config.getoption("--device") or "shim"


@pytest.fixture
def engine(whole_engine, device) -> Iterator[Engine]:
    """The engine; after an error that a GPU does not survive, this process ends, and another one goes on."""
    yield whole_engine
    if not whole_engine.answers():
        os._exit(70)


@pytest.fixture
def on_device(request, device):
    """Runs tests marked gpu in a process of its own, or in so many ranks: on_device(WORDS, ranks=, how=).

    how: "", "unreached" or "mps". Raises AssertionError where they do not all pass.
    """

    def run(*words: object, ranks: int, how: str = "") -> str:
        program = [sys.executable, "-m", "mpi4py", "-m", "pytest", "--with-mpi", *gpu_words(request.config)]
        program += ["--unreached"] if how == "unreached" else []
        command = [sys.executable, "-c", LAUNCH, ranks, *program, "-x", "-s", "-v", *words]
        with mps(ranks) if how == "mps" else contextlib.nullcontext({}) as variables:
            environment = os.environ | SHARED | variables
            seconds = limit(request.node) - 5
            done = programs.run_limited(*command, env=environment, seconds=seconds)
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    return run


def gpu_words(config: pytest.Config) -> list[object]:
    """Return pytest's words for tests that run on the same device as these."""
    words: list[object] = ["-p", "no:cacheprovider", "--timeout=0", "-m", "gpu"]
    words += ["--device", config.getoption("--device")]
    library = config.getoption("--library")
    return words + (["--library", library] if library else [])


@contextlib.contextmanager
def mps(ranks: int) -> Iterator[dict[str, str]]:
    """The variables of ranks that share a GPU through a daemon of CUDA's Multi-Process Service, which is ended after.

    Skips the test where none can be started.
    """
    with tempfile.TemporaryDirectory(prefix="mgg-mps-") as folder, tempfile.TemporaryFile("w+") as said:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def ask(*words: str, says: str = "", seconds: float = 60.0) -> None:
            options = {
                "env": os.environ | variables,
                "stdout": said,
                "stderr": said,
            }  # which a daemon keeps open
            subprocess.run(words, input=says, text=True, check=True, timeout=seconds, **options)

        try:
            try:
                ask(CONTROL, "-d")
                ask(sys.executable, "-c", PROBE)  # its server starts with the first client
            except (OSError, subprocess.SubprocessError) as error:
                said.seek(0)
                pytest.skip(f"no daemon of CUDA's Multi-Process Service: {error}: {said.read()[-300:]}")
            yield variables | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // ranks)}
        finally:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                ask(CONTROL, says="quit -t 5\n", seconds=15)
            for file in Path(folder).glob("*.pid"):  # which does not end by being asked
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int(file.read_text()), signal.SIGKILL)
