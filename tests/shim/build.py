"""Builds _cuda for the shim: the GPU kernels and all code around them, compiled by the host's compiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import nanobind

HERE, CUDA = Path(__file__).parent, Path(__file__).parents[2] / "cuda"
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
        self.sources = {
            "nanobind": (binding / "nb_combined.cpp", ("-w",)),
            **{
                name: (HERE / f"{name}.cpp", ())
                for name in (
                    "shim",
                    "shim_memory",
                    "runtime_shim",
                    "nvshmem_shim",
                    "module_shim",
                    "exercises",
                )
            },
            "module_cuda": (CUDA / "module_cuda.cpp", ()),
            "module_cuda_edges": (CUDA / "module_cuda_edges.cpp", ()),
            "module_device": (CUDA / "module_device.cpp", ()),
            "module_nvshmem": (CUDA / "module_nvshmem.cpp", ()),
            "rows": (CUDA / "rows.cu", ()),
            **{
                f"{source}_{name}": (CUDA / f"{source}.cu", (f"-DMGG_ROWS={of}",))
                for source in ("halo", "get", "aggregate", "edges")
                for name, of in TYPES.items()
            },
        }
        self.include = [
            HERE,
            CUDA,
            CUDA / "include",
            nanobind.include_dir(),
            binding.parent / "ext" / "robin_map" / "include",
            sysconfig.get_path("include"),
        ]

    def compile(self, name: str, first: Path | None = None) -> Path:
        """One object; headers in the folder ``first`` are taken before the project's."""
        source, more = self.sources[name]
        include = [*([first] if first else []), *self.include]
        target = (first or self.folder) / f"{name}.o"
        if first:
            source = first / source.name
        command = [
            self.compiler,
            "-std=c++17",
            "-O1",
            "-g1",
            "-fPIC",
            "-fvisibility=hidden",
            "-DMGG_SHIM",
            f"-DMGG_SHIM_BULK={self.bulk:d}",
            f"-DNB_DOMAIN={self.domain}",  # types of modules that are loaded side by side are not the same
            "-Wall",
        ]
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
        path = HERE / file if (HERE / file).exists() else CUDA / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file}: {old!r} is there {text.count(old)} times"
        return self.rewritten({path.name: text.replace(old, new)}, objects, folder)

    def rewritten(self, texts: dict[str, str], objects: tuple[str, ...], folder: Path) -> Path:
        """After `whole`: the same with other texts of some sources, in these objects."""
        for source in (*HERE.glob("*.[ch]*"), *CUDA.glob("*.[ch]*")):  # they look beside themselves first
            if source.is_file():
                shutil.copy(source, folder)
        for name, text in texts.items():
            (folder / name).write_text(text)
        made = {name: self.compile(name, folder) for name in objects}
        # The altered ones first: of an inline function that several objects hold, the first is linked.
        rest = [self.folder / f"{name}.o" for name in self.sources if name not in made]
        return self.link([*made.values(), *rest], folder)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(Build("g++", folder, tuple(sys.argv[2:])).whole())
