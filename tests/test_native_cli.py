"""The native commands: what they write, what they refuse, and that the sources compile."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cdnasim import cli, native_commands
from cdnasim.native_commands import NativeCase, native_case
from cdnasim.validation.measured import read_measured
from hk_kernels.native.program import program_source

GEMM = ("gemm", "m=512", "n=512", "k=512")
HIP = Path("/usr/include/hip/hip_runtime.h")  # of Debian's libamdhip64-dev
# Of Debian's libclang-common-14-dev: what HIP's headers include of clang.
WRAPPERS = Path("/usr/lib/llvm-14/lib/clang/14.0.6/include")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cdnasim", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_without_hipcc_device_code_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIPCC", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert call(monkeypatch, "native", "build", *GEMM, "--out", str(tmp_path)) == 0
    names = {path.suffix for path in tmp_path.iterdir()}
    assert names == {".hip", ".order", ".s", ".co"}
    assert next(tmp_path.glob("*.co")).read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
def test_the_compiled_loop_is_the_traced_one(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "native", "compare-isa", *GEMM, "--target", target) == 0
    assert "0 spills, 0 B of scratch" in capsys.readouterr().out


def test_the_order_is_a_permutation_of_the_tiles() -> None:
    native = native_case("gemm", ["m=4096", "n=2048", "k=512", "order=xcd:w=4,c=8"], "gfx950")
    tiles = np.frombuffer(native.tiles(), "<u4")
    assert sorted(tiles) == list(range(16 * 8))
    assert tiles.tolist() != sorted(tiles)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("build", *GEMM, "--target", "sm_80"), "allowed: gfx950, gfx942, sm_90"),
        (("build", *GEMM, "schedule=interleave4", "--target", "gfx942"), "no kernel for gfx942"),
        (("build", *GEMM, "dtype=fp16"), "the host program makes data of bf16, fp8"),
        (("compare-isa", *GEMM, "tile=128x128x64", "--target", "sm_90"), "allowed: gfx950, gfx942"),
        (("run", *GEMM), "no hipcc: the program can be compiled here"),
        (("build", "conv", "m=4"), "kernel 'conv' is unknown"),
        (("sweep", "none", "--rows", "rows.csv"), "suite 'none' is unknown; allowed: "),
    ],
)
def test_misuse_ends_in_one_line(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert call(monkeypatch, "native", *arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_sweep_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.csv"
    ran: list[str] = []

    def measured(native: NativeCase, out: Path, options: list[str]) -> dict[str, float]:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(native.name)
        return {"median_us": 10.0, "tflops": 5.0, "max_error": 0.0}

    monkeypatch.setattr(native_commands, "run_program", measured)
    arguments = ("native", "sweep", "hk_bf16_gemm", "--rows", str(rows), "--out", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["cdnasim", *arguments])
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        cli.main()
    assert len(read_measured(rows, "hk_bf16_gemm")) == 4
    ran.clear()
    assert call(monkeypatch, *arguments) == 0
    assert len(ran) == 1  # the suite's third problem; the same on another card is not run again
    assert {m.metric for m in read_measured(rows, "hk_bf16_gemm")} == {"time_us", "tflops"}


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize(
    ("schedule", "tile"),
    [
        ("pingpong8", "128x256x64"),
        ("interleave4", "64x128x64"),
        ("specialized:p=4,c=8", "128x256x64"),
    ],
)
def test_programs_for_nvidia_compile_without_spills(
    schedule: str, tile: str, tmp_path: Path
) -> None:
    native = native_case("gemm", [*GEMM[1:], f"schedule={schedule}", f"tile={tile}"], "sm_90")
    source = tmp_path / "kernel.cu"
    source.write_text(program_source(native.program()), encoding="utf-8")
    flags = ["-O3", "-std=c++17", "-arch=sm_90", "-Xptxas", "-v", "-cubin"]
    command = ["nvcc", *flags, "-o", str(tmp_path / "kernel.cubin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spills = [line for line in done.stderr.splitlines() if "spill stores" in line]
    assert spills
    assert all(", 0 bytes spill stores, 0 bytes spill loads" in line for line in spills)


@pytest.mark.skipif(
    not (HIP.exists() and WRAPPERS.exists()), reason="needs libamdhip64-dev, libclang-common-14-dev"
)
@pytest.mark.parametrize("side", ["--cuda-host-only", "--cuda-device-only"])
def test_the_host_program_compiles_against_hips_headers(side: str, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("ziglang")
    assert spec and spec.origin
    native = native_case("gemm", [*GEMM[1:], "tile=256x256x64"], "gfx950")
    source = tmp_path / "kernel.hip"
    source.write_text(program_source(native.program()), encoding="utf-8")
    cxx = Path("/usr/include/c++/12")
    places = [
        *("-isystem", str(WRAPPERS.parent), "-isystem", str(cxx)),
        *("-isystem", f"/usr/include/x86_64-linux-gnu/{cxx.parent.name}/{cxx.name}"),
        *("-isystem", str(Path(spec.origin).parent / "lib" / "include")),
        *("-idirafter", str(WRAPPERS)),
        *("-isystem", "/usr/include/x86_64-linux-gnu", "-isystem", "/usr/include"),
    ]
    flags = ["-x", "hip", "--offload-arch=gfx950", side, "-fsyntax-only", "-nogpulib", "-nogpuinc"]
    defines = ["-std=c++17", "-D__HIP_PLATFORM_AMD__", "-D__AMDGCN_WAVEFRONT_SIZE=64"]
    command = [sys.executable, "-m", "ziglang", "clang", *flags, *defines, *places, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


COLUMNS = '"ID","Kernel Name","Block Size","Grid Size","CC","gpu__time_duration.sum"'
FAKE_NCU = f"""#!/bin/sh
echo '==PROF== Connected to process 1'
echo '{COLUMNS},"dram__bytes_read.sum"'
echo '"","","","","","ns","Mbyte"'
echo '"0","pingpong8","(256, 1, 1)","(16, 1, 1)","9.0","20,000","12.5"'
"""
FAKE_NVCC = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
cat > "$2" <<END
#!/bin/sh
echo '{"max_error": ${ERROR:-0.01}}'
END
chmod +x "$2"
"""


def test_a_profile_becomes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("ncu", FAKE_NCU), ("nvcc", FAKE_NVCC)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    rows = tmp_path / "rows.csv"
    case = (*GEMM, "tile=128x128x64", "schedule=pingpong8", "--target", "sm_90")
    where = ("--rows", str(rows), "--machine", "h200", "--out", str(tmp_path / "out"))
    monkeypatch.setenv("ERROR", "1e30")
    assert call(monkeypatch, "native", "profile", *case, *where) == 2
    assert not rows.exists()  # nothing is kept of a wrong result
    monkeypatch.setenv("ERROR", "0.01")
    assert call(monkeypatch, "native", "profile", *case, *where) == 0
    found = {m.metric: m for m in read_measured(rows, "native")}
    assert found["time_us"].value == 20
    assert found["hbm_read_bytes"].value == 12.5e6
    assert found["time_us"].params["schedule"] == "pingpong8"
