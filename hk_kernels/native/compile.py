"""Compiles HIP device code: with hipcc, or without ROCm with the clang of the ziglang wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdnasim.errors import InputError
from hk_kernels.lower.hip import AMD

DEVICE_FLAGS = ("-x", "hip", "--cuda-device-only", "-O3")
NO_ROCM = ("-nogpulib", "-nogpuinc")  # the sources need no device library and no header
ROCM = "/opt/rocm"  # where ROCm installs itself unless ROCM_PATH says otherwise
TRIPLE = "--target=amdgcn-amd-amdhsa"


@dataclass(frozen=True)
class Compiler:
    """A compiler of HIP. command: what starts it. linker: empty for hipcc, which links itself."""

    command: tuple[str, ...]
    linker: tuple[str, ...] = ()

    @property
    def is_hipcc(self) -> bool:
        """Whether it is ROCm's."""
        return not self.linker

    def version(self) -> str:
        """The line of `--version` that names the clang; register figures depend on it."""
        lines = _run([*self.command, "--version"], "").splitlines()
        named = [line for line in lines if "clang version" in line]
        return (named or lines or [""])[0].strip()


def find_compiler() -> Compiler:
    """HIPCC, else hipcc of ROCM_PATH or PATH, else the ziglang wheel's clang.

    Raises InputError if there is none, or if HIPCC is no program.
    """
    named = os.environ.get("HIPCC")
    if named:
        found = shutil.which(named)
        if not found:
            raise InputError(f"HIPCC={named} is not a program; unset it or name a hipcc")
        return Compiler((found,))
    in_rocm = Path(os.environ.get("ROCM_PATH") or ROCM) / "bin" / "hipcc"
    found = shutil.which(str(in_rocm)) or shutil.which("hipcc")
    if found:
        return Compiler((found,))
    if importlib.util.find_spec("ziglang"):
        ziglang = (sys.executable, "-m", "ziglang")
        return Compiler((*ziglang, "clang"), (*ziglang, "ld.lld"))
    raise InputError(
        "no compiler for HIP: install ROCm (hipcc in PATH, ROCM_PATH or HIPCC), or, to compile "
        "without running, `pip install ziglang`"
    )


def compile_assembly(source: str, target: str, *, keep: Path | None = None) -> str:
    """The assembly of HIP device code for `target` (gfx950, gfx942).

    Raises InputError with the first error of the compiler; `keep` is where the source is then left,
    if given. Nothing else stays on disk.
    """
    _check(target)
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="hip") as folder:
        return _assembly(compiler, source, target, Path(folder), keep)


def compile_object(source: str, target: str, path: Path, *, keep: Path | None = None) -> None:
    """Write the code object of HIP device code for `target`, which hipModuleLoad takes, to `path`.

    Raises InputError as `compile_assembly` does, and if `path` cannot be written.
    """
    _check(target)
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="hip") as name:
        folder = Path(name)
        made = folder / "kernel.co"
        if compiler.is_hipcc:
            file = _written(folder / "kernel.hip", source)
            flags = ["--genco", "-O3", f"--offload-arch={target}"]
            _compile([*compiler.command, *flags, str(file), "-o", str(made)], source, keep)
        else:
            file = _written(folder / "kernel.s", _assembly(compiler, source, target, folder, keep))
            linkable = str(folder / "kernel.o")
            flags = [TRIPLE, f"-mcpu={target}", "-c"]
            _compile([*compiler.command, *flags, str(file), "-o", linkable], source, keep)
            _compile([*compiler.linker, "-shared", linkable, "-o", str(made)], source, keep)
        try:
            shutil.copyfile(made, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _check(target: str) -> None:
    if target not in AMD:
        raise InputError(f"HIP is not compiled for '{target}'; allowed: {', '.join(AMD)}")


def _assembly(compiler: Compiler, source: str, target: str, folder: Path, keep: Path | None) -> str:
    file = _written(folder / "kernel.hip", source)
    flags = [*DEVICE_FLAGS, *(() if compiler.is_hipcc else NO_ROCM), f"--offload-arch={target}"]
    return _compile([*compiler.command, *flags, "-S", "-o", "-", str(file)], source, keep)


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _compile(command: Sequence[str], source: str, keep: Path | None) -> str:
    """Run one step; its output, or the first error with where the source was kept."""
    kept = f"; the source is in {keep}" if keep else ""
    try:
        return _run(command, kept)
    except InputError:
        if keep:
            _keep(keep, source)
        raise


def _keep(path: Path, source: str) -> None:
    try:
        _written(path, source)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _run(command: Sequence[str], kept: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"{command[0]} does not start: {error.strerror or error}") from None
    if done.returncode:
        raise InputError(f"{Path(command[0]).name} failed: {_first_error(done.stderr)}{kept}")
    return done.stdout


def _first_error(text: str) -> str:
    """The line of the first error, without the temporary folder."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    first = (errors or lines or ["no message"])[0]
    return re.sub(r"\S*[/\\](?=kernel\.\w+)", "", first)
