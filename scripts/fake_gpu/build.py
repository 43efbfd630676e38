"""Compiles the fake CUDA runtime for the torch that is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SOURCES = [Path(__file__).with_name(name) for name in ("cudart.c", "driver.c")]

# NVIDIA's headers include one that comes with nvcc only: what its macros mean to gcc.
_HOST_DEFINES = """
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
"""


def build(folder: Path) -> list[Path]:
    """Compile the libraries, if that has not been done yet.

    They have the names of CUDA's own, so that the loader takes them for those once they are
    preloaded.

    Returns:
        The files of the runtime and of the driver.
    """
    real = _cuda_runtime()
    text = "".join(path.read_text() for path in (*_SOURCES, Path(__file__)))
    folder = folder / hashlib.sha256(f"{real} {text}".encode()).hexdigest()[:12]
    libraries = [folder / real.name, folder / "libcuda.so.1"]
    if all(library.exists() for library in libraries):
        return libraries
    (folder / "crt").mkdir(parents=True, exist_ok=True)
    (folder / "crt/host_defines.h").write_text(_HOST_DEFINES)
    (folder / "missing.c").write_text(_stubs(real, _SOURCES[0].read_text()))
    (folder / "versions").write_text(f"{real.name} {{ global: *; }};\n")
    _compile(libraries[1], [_SOURCES[1]], [])
    headers: list[str | Path] = ["-isystem", folder, "-isystem", real.parent.parent / "include"]
    versions = [f"-Wl,--version-script,{folder / 'versions'}"]
    _compile(libraries[0], [_SOURCES[0], folder / "missing.c"], [*headers, *versions])
    return libraries


def _compile(library: Path, sources: Sequence[Path], flags: Sequence[str | Path]) -> None:
    half_made = library.with_name(f"{secrets.token_hex(8)}.half")
    command = ["gcc", "-O1", "-g", "-Wall", "-fPIC", "-shared", "-pthread", *flags]
    subprocess.run([*command, f"-Wl,-soname,{library.name}", *sources, "-o", half_made], check=True)
    half_made.rename(library)


def _cuda_runtime() -> Path:
    """CUDA's runtime library that torch was installed with."""
    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else list(found.submodule_search_locations or [])
    for place in places:
        for library in Path(place).glob("cu*/lib/libcudart.so.*"):
            return library
    sys.exit("fake_gpu: this needs torch's CUDA build for CUDA 13: pip install torch==2.14.1")


def _stubs(real: Path, source: str) -> str:
    """A function that says its name for each one that the source leaves out."""
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", real], check=True, capture_output=True, text=True
    ).stdout
    there = set(re.findall(r"^[\w *]*?\**(\w+)\(", source, re.MULTILINE))
    names = {line.split()[2].split("@")[0] for line in listing.splitlines() if " T " in line}
    body = "\n".join(
        f'int {name}(void) {{ return fake_missing("{name}"); }}' for name in sorted(names - there)
    )
    return f"int fake_missing(const char *);\n{body}\n"
