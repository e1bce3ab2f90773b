"""Builds the library of the virtual GPUs (`device.cpp`) once per version of torch, and loads it."""

import hashlib
import os
import posix
import shutil
import tempfile
from collections.abc import Callable
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

import torch

from ddpsim.simulator.errors import UsageError

PACKAGE = "ddpsim_virtual_gpus"
"""The optional package that has the library ready (.ci/virtual_gpus_wheel.py)."""
_OPTIONS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-w")


class NoVirtualGpusError(UsageError):
    """The library of the virtual GPUs cannot be built or loaded here."""


def load_device(announce_build: Callable[[], None]) -> None:
    """Load the library of the virtual GPUs into this process; build it first if this version of torch has none."""
    torch.ops.load_library(build_device(announce_build))


def build_device(announce_build: Callable[[], None]) -> Path:
    """Build the library of the virtual GPUs if this version of torch has none, and return where it is.

    `announce_build` is called before a build, which takes 10 to 30 seconds. Raises NoVirtualGpusError.
    """
    with as_file(files(__package__).joinpath("device.cpp")) as source:
        library = library_path(source.read_bytes())
        if not library.is_file():
            library.parent.mkdir(parents=True, exist_ok=True)
            _build(source, library, announce_build)
    return library


def library_path(source: bytes) -> Path:
    """Return where the library for this torch is: in the package that has it, or in the user's cache folder."""
    digest = hashlib.sha256(source + repr(_OPTIONS).encode()).hexdigest()[:12]
    name = f"virtual-gpus-{torch.__version__}-{digest}.so"
    packed = [Path(folder, name) for folder in getattr(find_spec(PACKAGE), "submodule_search_locations", None) or ()]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return next(filter(Path.is_file, packed), Path(cache) / "ddpsim" / name)


def describe_device() -> str:
    """Return whether the library of the virtual GPUs is built, or can be."""
    with as_file(files(__package__).joinpath("device.cpp")) as source:
        is_built = library_path(source.read_bytes()).exists()
    otherwise = "built when a program asks for them" if _compiler() else "not without a C++ compiler"
    return "built for this torch" if is_built else otherwise


def _compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def _build(source: Path, library: Path, announce_build: Callable[[], None]) -> None:
    compiler = _compiler()
    if compiler is None:
        raise NoVirtualGpusError(
            "virtual GPUs need a C++ compiler once per version of torch, and there is no g++ or clang++ here: install "
            "one (Debian: apt-get install g++), or name one in CXX"
        )
    announce_build()
    from torch.utils import cpp_extension  # late, as it imports setuptools

    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    paths = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [*(f"-L{path}" for path in cpp_extension.library_paths()), "-lc10", "-ltorch_cpu"]
    # Two programs may both build. To wait for one another, a rank would sit still, which the watchdog takes for a hang.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built, log = Path(folder, "device.so"), Path(folder, "log")
        command = [compiler, *_OPTIONS, abi, *paths, str(source), "-o", str(built), *libraries]
        # A rank's subprocess would let other ranks run meanwhile, and one of them would come here, too.
        output = (os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        child = os.posix_spawnp(compiler, command, os.environ, file_actions=[output])
        _, status = posix.waitpid(child, 0)
        if status:
            first = next((line for line in log.read_text().splitlines() if "error" in line), "no error is printed")
            os.replace(log, kept := library.with_suffix(".log"))
            raise NoVirtualGpusError(
                f"virtual GPUs could not be built for torch {torch.__version__} by {compiler}: {first.strip()}; all of "
                f"its output is in {kept}"
            )
        os.replace(built, library)
