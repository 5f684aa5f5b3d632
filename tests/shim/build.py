"""Builds _cuda for the shim: the GPU kernels and all code around them, compiled by the host's compiler."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import nanobind

SHIM, CUDA = Path(__file__).parent / "src", Path(__file__).parents[2] / "cuda"
TYPES = {"float32": "float", "float16": "Float16", "bfloat16": "BFloat16"}


@dataclass
class Build:
    """Objects and modules in a folder, by one compiler with these flags.

    sources: of each object, its source and what is asked of the compiler beside the flags.
    """

    compiler: str
    folder: Path
    flags: tuple[str, ...] = ()
    bulk: bool = True  # as from sm_90 on, or as before
    domain: str = "shim"
    sources: dict[str, tuple[Path, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        binding = Path(nanobind.source_dir())
        own = "shim shim_memory shim_counts runtime_shim nvshmem_shim module_shim"
        bound = "module_cuda module_cuda_edges module_cuda_traversal module_device module_nvshmem"
        of_rows = [
            Path(name) for name in ("sums/halo.cu", "sums/get.cu", "sums/aggregate.cu", "edges/edges.cu")
        ]
        self.sources = {
            "nanobind": (binding / "nb_combined.cpp", ("-w",)),
            **{name: (SHIM / f"{name}.cpp", ()) for name in own.split()},
            **{name: (CUDA / "python" / f"{name}.cpp", ()) for name in bound.split()},
            "load_all": (CUDA / "gpu" / "load_all.cpp", ()),
            "rows": (CUDA / "gpu" / "rows" / "rows.cu", ()),
            "sample": (CUDA / "gpu" / "sampling" / "sample.cu", ("-ffp-contract=off",)),
            "traverse": (CUDA / "gpu" / "traversal" / "traverse.cu", ()),
            **{
                f"{source.stem}_{name}": (CUDA / "gpu" / source, (f"-DMGG_ROWS={of}",))
                for source in of_rows
                for name, of in TYPES.items()
            },
        }
        self.include = [
            SHIM,
            CUDA,
            CUDA / "include",
            nanobind.include_dir(),
            binding.parent / "ext" / "robin_map" / "include",
            sysconfig.get_path("include"),
        ]

    def compile(self, name: str, first: Path | None = None) -> Path:
        """One object; sources and headers in the folder ``first`` are taken before the project's."""
        source, more = self.sources[name]
        include = [*([first] if first else []), *self.include]
        target = (first or self.folder) / f"{name}.o"
        if first:
            source = next(path for path in (first / _relative(source), source) if path.exists())
        command = [self.compiler, "-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-DMGG_SHIM"]
        # Types of modules that are loaded side by side are not the same.
        command += [f"-DMGG_SHIM_BULK={self.bulk:d}", f"-DNB_DOMAIN={self.domain}", "-Wall"]
        command += ["-Wno-unknown-pragmas", *self.flags, *more, *(f"-I{path}" for path in include)]
        done = subprocess.run(
            [*command, "-x", "c++", "-c", source, "-o", target], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return target

    def link(self, objects: list[Path], folder: Path) -> Path:
        """The module made of these objects."""
        target = folder / "_cuda.so"
        subprocess.run([self.compiler, "-shared", *self.flags, *objects, "-o", target], check=True)
        return target

    def whole(self) -> Path:
        """Everything, as it is."""
        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(self.compile, self.sources))
        return self.link(objects, self.folder)

    def older(self, folder: Path) -> Build:
        """The same in another folder, for GPUs before sm_90. It loads beside this one."""
        return replace(self, folder=folder, bulk=False, domain="before")

    def before(self, folder: Path) -> Path:
        """After `whole`: the module of `older`. Only what differs is compiled."""
        older = self.older(folder)
        differs = [name for name in self.sources if name.startswith(("get", "aggregate", "module"))]
        for name in self.sources.keys() - differs:
            (folder / f"{name}.o").symlink_to(self.folder / f"{name}.o")
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(older.compile, differs))
        return older.link([folder / f"{name}.o" for name in self.sources], folder)

    def altered(self, file: str, old: str, new: str, objects: tuple[str, ...], folder: Path) -> Path:
        """After `whole`: the same with one text of a source replaced by another, in these objects."""
        return self.rewritten({file: with_other_text(file, old, new)}, objects, folder)

    def rewritten(self, texts: dict[str, str], objects: tuple[str, ...], folder: Path) -> Path:
        """After `whole`: the same with other texts of some sources, in these objects.

        texts: by path within cuda/, or by name for sources of the shim.
        """
        for source in SHIM.iterdir():  # they look beside themselves first
            shutil.copy(source, folder)
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        made = {name: self.compile(name, folder) for name in objects}
        # The altered ones first: of an inline function that several objects hold, the first is linked.
        rest = [self.folder / f"{name}.o" for name in self.sources if name not in made]
        return self.link([*made.values(), *rest], folder)


def with_other_text(file: str, old: str, new: str) -> str:
    """Return a source, by its path within cuda/ or its name in the shim's, with another text where ``old`` is once."""
    text = (SHIM / file if (SHIM / file).exists() else CUDA / file).read_text()
    assert text.count(old) == 1, f"{file}: {old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def _relative(source: Path) -> str:
    """Return what `Build.rewritten` calls a source."""
    return str(source.relative_to(CUDA)) if source.is_relative_to(CUDA) else source.name
