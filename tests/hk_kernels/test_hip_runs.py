"""The HIP source computes C = A · Bᵀ: compiled for the CPU, lanes and waves emulated, and run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hk_kernels import gemm
from hk_kernels.lower.hip import hip_source
from hk_kernels.lower.program import Program
from hk_kernels.tile.dtypes import bf16
from hk_kernels.tile.language import lower

Matrix = NDArray[np.float32]
CXX = shutil.which("c++")
EMULATED = Path(__file__).with_name("emulated_prelude.hpp")
MAIN = """
static const void *a_bytes, *b_bytes;
static void* c_bytes;

static void* wave_main(void* number) {
    this_wave = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(number));
    KERNEL(a_bytes, b_bytes, c_bytes, nullptr);
    return nullptr;
}

static char* read_all(const char* path, long size) {
    char* data = static_cast<char*>(calloc(size, 1));
    FILE* file = fopen(path, "rb");
    if (file && fread(data, 1, size, file) != size_t(size)) abort();
    return data;
}

int main() {
    a_bytes = read_all("a.bin", A_SIZE);
    b_bytes = read_all("b.bin", B_SIZE);
    c_bytes = calloc(C_SIZE, 1);
    pthread_barrier_init(&all_waves, nullptr, WAVES);
    for (this_workgroup = 0; this_workgroup < WORKGROUPS; ++this_workgroup) {
        pthread_t waves[WAVES];
        for (uintptr_t w = 0; w < WAVES; ++w)
            pthread_create(&waves[w], nullptr, wave_main, reinterpret_cast<void*>(w));
        for (pthread_t wave : waves) pthread_join(wave, nullptr);
    }
    FILE* file = fopen("c.bin", "wb");
    fwrite(c_bytes, 1, C_SIZE, file);
    fclose(file);
}
"""


def emulated(program: Program) -> str:
    """The HIP source of a program with the emulated prelude and a main."""
    prelude = resources.files("hk_kernels.lower").joinpath("prelude.hip").read_text("utf-8")
    source = hip_source(program)
    assert prelude in source
    rows, cols = program.grid
    sizes = {f"{t.name}_SIZE": t.rows * t.pitch for t in program.tensors}
    values = sizes | {"WAVES": program.waves, "WORKGROUPS": rows * cols, "KERNEL": program.name}
    main = MAIN
    for name, value in values.items():
        main = main.replace(name, str(value))
    return source.replace(prelude, EMULATED.read_text("utf-8")) + main


def fp8(small_program: Any) -> Program:
    return lower(gemm.interleave4, "gfx950", 64, 64, 512, "fp8", bm=64, bn=64, bk=128)


def kslices(small_program: Any) -> Program:
    return lower(gemm.kslices8, "gfx950", 128, 128, 256, bm=64, bn=128, bk=64)


PROGRAMS: dict[str, Callable[[Any], Program]] = {
    "pingpong8": lambda small: small("pingpong8", grid=(2, 1)),
    "pingpong8_whole": lambda small: small("pingpong8_whole", grid=(1, 2)),
    "pingpong8_registers": lambda small: small("pingpong8_registers", grid=(2, 2)),
    "interleave4": lambda small: small("interleave4", grid=(1, 2)),
    "specialized": lambda small: small("specialized", grid=(2, 2)),
    "interleave4_fp8": fp8,
    "kslices8": kslices,
}


@pytest.mark.skipif(not CXX, reason="needs a C++ compiler for the CPU")
@pytest.mark.parametrize("name", PROGRAMS)
def test_source_computes_the_product(
    name: str, small_program: Any, problem: Any, tmp_path: Path
) -> None:
    program = PROGRAMS[name](small_program)
    wanted = problem(program)
    ta, tb, tc = program.tensors
    ta.dtype.encode(wanted.a).tofile(tmp_path / "a.bin")
    tb.dtype.encode(wanted.b).tofile(tmp_path / "b.bin")
    c = run(emulated(program), tmp_path)
    np.testing.assert_array_equal(c.reshape(tc.rows, tc.cols), wanted.c)


@pytest.mark.skipif(not CXX, reason="needs a C++ compiler for the CPU")
def test_a_wrong_address_shows(small_program: Any, problem: Any, tmp_path: Path) -> None:
    program = small_program("pingpong8", grid=(2, 1))
    wanted = problem(program)
    ta, tb, _ = program.tensors
    ta.dtype.encode(wanted.a).tofile(tmp_path / "a.bin")
    tb.dtype.encode(wanted.b).tofile(tmp_path / "b.bin")
    source = emulated(program)
    assert "ds_read_b128<1024>(" in source
    c = run(source.replace("ds_read_b128<1024>(", "ds_read_b128<1040>(", 1), tmp_path)
    assert (c != wanted.c.reshape(-1)).any()


def run(source: str, folder: Path) -> Matrix:
    """C, flat, of a compiled source that reads a.bin and b.bin in `folder`."""
    (folder / "kernel.cpp").write_text(source)
    flags = ["-std=c++17", "-O1", "-w", "-pthread", "-fno-strict-aliasing"]
    command = [str(CXX), *flags, "kernel.cpp", "-o", "kernel"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:2000]
    subprocess.run(["./kernel"], cwd=folder, check=True, timeout=60)
    return bf16.decode(np.fromfile(folder / "c.bin", np.uint16))
