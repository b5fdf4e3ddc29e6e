"""What the `native` commands do: print a case's program, compile it, compare it, run it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdnasim.commands import write_text
from cdnasim.errors import InputError
from cdnasim.experiment.case import GemmCase, check_case, parse_params
from cdnasim.gpu.gemm import pipeline_stages
from cdnasim.machine.loader import load_machine
from cdnasim.terminal import print_table, progress_bar
from cdnasim.validation.importers import read_ncu, read_rocprof, to_measured, write_measured
from cdnasim.validation.measured import METRICS, Measurement, read_measured
from cdnasim.validation.suites import load_suites, read_suite, validation_root
from hk_kernels.catalog import GEMM_SCHEDULES, gemm_program
from hk_kernels.lower.hip import AMD, hip_source
from hk_kernels.lower.program import Program
from hk_kernels.native.compare import compare_isa
from hk_kernels.native.compile import compile_assembly, compile_object, find_compiler
from hk_kernels.native.program import MAX_ERROR, program_source

MACHINES = {"gfx950": "mi355x", "gfx942": "mi325x", "sm_90": "h200"}  # to check a case with
ROCPROF_PASSES = (
    "SQ_VALU_MFMA_BUSY_CYCLES SQ_INSTS_MFMA SQ_LDS_BANK_CONFLICT SQ_LDS_IDX_ACTIVE GRBM_GUI_ACTIVE",
    "TCC_HIT_sum TCC_MISS_sum TCC_EA0_RDREQ_sum GRBM_GUI_ACTIVE",
)
NCU_METRICS = (
    "gpu__time_duration.sum,sm__cycles_elapsed.max,dram__bytes_read.sum,dram__bytes_write.sum,"
    "lts__t_sectors_srcunit_tex_op_read.sum,lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum"
)
ROTATIONS = 4  # cold caches: inputs take turns until they fill L2 and LLC so many times
PROFILED_RUNS = ("--warmup", "2", "--runs", "5")


@dataclass(frozen=True)
class NativeCase:
    """A GEMM case and the target that it is built for."""

    case: GemmCase
    target: str

    @property
    def name(self) -> str:
        """Of its files."""
        gemm = self.case.gemm
        parts = [gemm.schedule, gemm.dtype, *gemm.tile, gemm.m, gemm.n, gemm.k]
        return re.sub("[^A-Za-z0-9=_.]", "-", "_".join(map(str, [*parts, self.order, self.target])))

    @property
    def order(self) -> str:
        """Of its workgroups, as on the command line."""
        return self.case.order.spec

    def program(self) -> Program:
        """Its lowered program; raises InputError if the kernel does not allow it."""
        gemm = self.case.gemm
        if pipeline_stages(gemm.schedule):
            allowed = ", ".join(n for n, s in GEMM_SCHEDULES.items() if self.target in s.kernels)
            raise InputError(
                f"schedule={gemm.schedule} is no kernel of this project; allowed for "
                f"{self.target}: {allowed}"
            )
        kernel = gemm.schedule, self.target, gemm.dtype, gemm.tile
        return gemm_program(*kernel, gemm.grid, steps=gemm.k // gemm.tile[2])

    def tiles(self) -> bytes:
        """The grid order as the program reads it: a row-major tile index (u32) per workgroup."""
        machine, (rows, cols) = self.case.machine, self.case.gemm.grid
        tiles = self.case.order.tiles(rows, cols, machine.compute.xcds).astype("<u4")
        return np.ascontiguousarray(tiles[:, 0] * np.uint32(cols) + tiles[:, 1]).tobytes()


def check_target(target: str) -> None:
    """Raises InputError for a target that no program is made for."""
    if target not in MACHINES:
        raise InputError(f"--target {target}: allowed: {', '.join(MACHINES)}")


def native_case(kernel: str, pairs: Sequence[str], target: str) -> NativeCase:
    """The case of the command line; raises InputError for an unknown target or parameter."""
    check_target(target)
    return NativeCase(check_case(MACHINES[target], kernel, parse_params(pairs)), target)


def build(native: NativeCase, out: Path) -> Path | None:
    """Write source and grid order into `out` and compile what the machine's compilers can.

    Returns the program if one was made: with hipcc or nvcc, not with a clang for device code.
    """
    program = native.program()
    is_amd = native.target in AMD
    source = out / f"{native.name}.{'hip' if is_amd else 'cu'}"
    write_text(source, program_source(program))
    order = out / f"{native.name}.order"
    try:
        order.write_bytes(native.tiles())
    except OSError as error:
        raise InputError(f"{order}: cannot be written: {error.strerror or error}") from None
    print(f"Source: {source}\nGrid order: {order}")
    compiler = find_compiler() if is_amd else None
    if compiler and not compiler.is_hipcc:
        device = hip_source(program)
        write_text(out / f"{native.name}.s", compile_assembly(device, native.target))
        compile_object(device, native.target, out / f"{native.name}.co")
        print(f"Assembly and code object: {out / native.name}.s, .co (device code: no hipcc here)")
        return None
    made = out / native.name
    if compiler:
        command = [*compiler.command, "-O3", "-std=c++17", f"--offload-arch={native.target}"]
    else:
        command = [_tool("nvcc", "CUDA"), "-O3", "-std=c++17", f"-arch={native.target}"]
    _call([*command, "-o", str(made), str(source)])
    print(f"Program: {made} (run it with --order {order.name} beside it)")
    return made


def run(native: NativeCase, out: Path, options: Sequence[str]) -> None:
    """Build and run the program; print what it says of itself."""
    record = run_program(native, out, options)
    print_table(native.name, ("", "value"), [[key, str(value)] for key, value in record.items()])


def run_program(native: NativeCase, out: Path, options: Sequence[str]) -> dict[str, Any]:
    """Build and run the program; its line of JSON.

    Raises InputError if it fails or its result is wrong.
    """
    made = _built(native, out)
    order = str(out / f"{native.name}.order")
    text = _call([str(made), "--order", order, *options], may_fail=True)
    try:
        record = dict(json.loads(text))
        error = float(record["max_error"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{native.name}: printed no line of JSON: {text.strip():.60}") from None
    if not error <= MAX_ERROR:
        raise InputError(f"{native.name}: wrong result, error {error:g} of C's root mean square")
    return record


def machine_of(target: str, machine: str | None) -> str:
    """The machine that rows of `target` belong to; raises InputError if it is of another kind."""
    chosen = machine or MACHINES[target]
    arch = load_machine(chosen).arch
    if arch != target:
        raise InputError(f"--machine {chosen}: is {arch}, not {target} as --target says")
    return chosen


def profile(native: NativeCase, out: Path, rows: Path, machine: str | None, source: str) -> None:
    """Run the program under rocprofv3 or Nsight Compute; write measured rows."""
    machine = machine_of(native.target, machine)
    run_program(native, out, ["--warmup", "0", "--runs", "1"])  # no counters of wrong results
    made = out / native.name
    command = [str(made), "--order", str(out / f"{native.name}.order"), *PROFILED_RUNS]
    folder = out / f"{native.name}.profile"
    kernel = native.program().name
    if native.target in AMD:
        tool = _tool("rocprofv3", "ROCm")
        for number, counters in enumerate(("", *ROCPROF_PASSES)):
            what = ["--pmc", *counters.split()] if counters else ["--kernel-trace"]
            place = ["-f", "csv", "-d", str(folder), "-o", f"pass{number}"]
            _call([tool, *what, *place, "--", *command])
        launches = read_rocprof([folder], kernel)
    else:
        text = _call(
            [_tool("ncu", "CUDA"), "--csv", "--page", "raw", "--metrics", NCU_METRICS, *command]
        )
        write_text(folder / "ncu.csv", text)
        launches = read_ncu(folder / "ncu.csv", kernel)
    params = {k: str(v) for k, v in native.case.params.items() if k != "registers"}
    params["caches"] = "cold"  # profilers flush or serialise: the caches are not a loop's
    found: list[Measurement] = to_measured(
        launches, suite="native", machine=machine, kernel="gemm", params=params, source=source
    )
    write_measured(rows, found)
    cells = [[m.metric, f"{m.value:.6g}", m.unit] for m in found]
    print_table(native.name, ("metric", "median", "unit"), cells)
    print(f"\nRows: {rows}; compare with: cdnasim validate --measured {rows}")


def sweep(suite: str, target: str, out: Path, rows: Path, machine: str | None, source: str) -> None:
    """Run all cases of a validation suite that `target` has kernels for; keep a row after each.

    A case whose rows are in the file `rows` is not run again, so a sweep that was stopped goes on.
    Raises InputError if no case can be expressed.
    """
    check_target(target)
    machine = machine_of(target, machine)
    suites = load_suites(validation_root())
    if suite not in suites:
        raise InputError(f"suite '{suite}' is unknown; allowed: {', '.join(suites)}")
    params = {m.params_text: m.params for m in read_suite(suites[suite])}
    cases = [p for p in params.values() if _is_expressed(p, target)]
    if not cases:
        raise InputError(f"suite '{suite}': none of its {len(params)} cases is one of {target}")
    found = read_measured(rows, suite) if rows.exists() else []
    known = {m.params_text for m in found}
    missing = [p for p in cases if _text(p) not in known]
    with progress_bar(suite) as progress:
        for number, case in enumerate(missing, 1):
            native = native_case("gemm", _pairs(case), target)
            record = run_program(native, out, _options(native.case))
            for metric, value in (("time_us", record["median_us"]), ("tflops", record["tflops"])):
                where = f"{rows}:{len(found) + 2}"
                unit = METRICS[metric].unit
                facts = suite, machine, "gemm", case, metric, float(value), unit, source
                found.append(Measurement(*facts, where=where))
            write_measured(rows, found)
            if progress:
                progress(number, len(missing))
    print(f"{len(cases)} cases, {len(missing)} of them new")
    if len(cases) < len(params):
        print(f"{len(params) - len(cases)} cases left out: no kernel of {target}")
    print(f"Rows: {rows}; compare with: cdnasim validate --measured {rows}")


def _is_expressed(params: dict[str, str], target: str) -> bool:
    """Whether the project has a kernel of `target` for a case."""
    try:
        native_case("gemm", _pairs(params), target).program()
    except InputError:
        return False
    return True


def _pairs(params: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in params.items()]


def _text(params: dict[str, str]) -> str:
    return ";".join(_pairs(params))


def _options(case: GemmCase) -> list[str]:
    caches = case.machine.l2.bytes + case.machine.llc.bytes
    rotated = 0 if case.warm else ROTATIONS * caches
    return ["--rotate", str(rotated)]


def compare(native: NativeCase) -> int:
    """Print the compiled k-steps beside the traced ones; exit code 1 if they differ."""
    if native.target not in AMD:
        raise InputError(f"--target {native.target}: allowed: {', '.join(AMD)}")
    program = native.program()
    comparison = compare_isa(program, compile_assembly(hip_source(program), native.target))
    for line in comparison.report():
        print(line)
    return 0 if comparison.is_equal else 1


def _built(native: NativeCase, out: Path) -> Path:
    made = build(native, out)
    if made is None:
        raise InputError("no hipcc: the program can be compiled here, but not linked and run")
    return made


def _tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if not found:
        raise InputError(f"no {name} in PATH: install {package}")
    return found


def _call(command: Sequence[str], *, may_fail: bool = False) -> str:
    """What a command prints; InputError with its last line if it fails and prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"{command[0]}: {error.strerror or error}") from None
    if done.returncode and not (may_fail and done.stdout.strip()):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise InputError(f"{Path(command[0]).name} failed: {' '.join(last) or done.returncode}")
    return done.stdout
