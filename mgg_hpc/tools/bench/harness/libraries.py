"""The libraries that benchmarks can compare with: names, where they are installed, and starting their workers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import InputError
from .options import BenchOptions
from .timing import Worker

ENVIRONMENT = Path(".venv-peers")  # what `make bench-peers` makes
MAKE = "'make bench-peers' installs the baselines"
OURS = "mgg_hpc.tools.bench.baselines.ours"
MODULES = {
    "dgl": "peer_dgl",
    "torch": "peer_torch",
    "pyg": "peer_pyg",
    "mkl": "peer_mkl",
    "scipy": "peer_scipy",
    "pyg-csr": "peer_pyg_csr",
}


@dataclass(frozen=True)
class Libraries:
    """The participants: this package, the installed baselines, and a line for each baseline that is not installed."""

    ours: Worker
    baselines: list[Worker]
    missing: list[str]

    @property
    def about(self) -> dict[str, str]:
        """Description of each participant, by name."""
        return {one.name: one.about for one in (self.ours, *self.baselines)}


def interpreter(environment: Path | None) -> Path:
    """Return the Python that has the baselines: of ``environment``, else of .venv-peers here or beside the package.

    Without any it is this one, which has torch and SciPy. Raises InputError for one that is given and is not there.
    """
    if environment is not None:
        python = environment / "bin" / "python"
        if not python.exists():
            raise InputError(f"--peers-env {environment}: no Python environment (bin/python); {MAKE}")
        return python.absolute()
    for folder in (Path.cwd(), Path(__file__).resolve().parents[4]):
        python = folder / ENVIRONMENT / "bin" / "python"
        if python.exists():
            return python
    return Path(sys.executable)


@contextlib.contextmanager
def started(
    names: Sequence[str], options: BenchOptions, ours_module: str = OURS, modules: Mapping[str, str] = MODULES
) -> Iterator[Libraries]:
    """Start the processes of this package and of the baselines; they end with the context.

    ours_module, modules: what they run (baselines/worker.py), ours by its whole name.
    """
    python, alike = interpreter(options.peers_env), (options.threads, options.pages)
    with contextlib.ExitStack() as stack:
        ours = Worker("mgg", Path(sys.executable), ours_module, *alike)
        ours.about = stack.enter_context(ours).need("about")["about"]
        baselines, missing = [], []
        for name in names:
            baseline = stack.enter_context(Worker(name, python, modules[name], *alike))
            reply = baseline.ask("about")
            if "about" in reply:
                baseline.about = reply["about"]
                baselines.append(baseline)
            else:
                missing.append(f"{name} is left out: {reply.get('missing') or reply['failed']}; {MAKE}")
        yield Libraries(ours, baselines, missing)


def fastest(runs: dict[str, Worker], ms: Mapping[str, float]) -> dict[str, Worker]:
    """Return each library's fastest run."""
    ordered = sorted(runs, key=lambda name: ms[name])
    first = {runs[name].name: name for name in reversed(ordered)}
    return {name: worker for name, worker in runs.items() if first[worker.name] == name}
