"""Clocks of the compute unit's parts, from timing.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from cdnasim.errors import InputError
from cdnasim.machine.loader import read_record, read_toml
from cdnasim.machine.model import Provenance, param


@dataclass(frozen=True)
class CuTiming:
    """One architecture's clocks; see timing.toml for what each rests on."""

    simd_registers: int = param("VGPRs and AGPRs/lane of a SIMD")
    simd_waves: int = param("waves")
    issue_clk: float = param("clk/instruction of a wave")
    branch_clk: float = param("clk after a taken branch")
    barrier_clk: float = param("clk from the last arrival to the release", may_be_zero=True)
    valu_clk: float = param("clk/instruction of a SIMD")
    transcendental_clk: float = param("clk/instruction of a SIMD")
    lds_queue: float = param("entries/CU")
    lds_latency_clk: float = param("clk from the end of its phases to the data")
    lds_pair_bytes_per_clk: float = param("B/clk/pair of SIMDs")
    vmem_clk: float = param("clk/instruction of a CU")
    vmem_start_clk: float = param("clk for the first after a barrier")
    vmem_return_bytes_per_clk: float = param("B/clk of a CU")
    scratch_clk: float = param("clk from the issue of a scratch load to its data")
    store_clk: float = param("clk/instruction of a CU")
    smem_latency_clk: float = param("clk of a scalar load that hits")
    smem_cold_clk: float = param("clk of a scalar load from memory")
    packed_drain_clk: float = param("clk after an MFMA until a packed operation", may_be_zero=True)
    end_clk: float = param("clk of the end of the program", may_be_zero=True)
    icache_line_bytes: int = param("B")
    icache_miss_clk: float = param("clk from the request for a line to its instructions")
    unknown_clk: float = param("clk/instruction of a SIMD")


@cache
def cu_timing(arch: str) -> tuple[CuTiming, tuple[Provenance, ...]]:
    """The timing of `arch` and where its numbers come from; InputError for an unknown one."""
    with resources.as_file(resources.files("cdnasim.cu") / "timing.toml") as path:
        tables = read_toml(path)
        if arch not in tables:
            raise InputError(f"no compute-unit timing for {arch}; allowed: {', '.join(tables)}")
        return read_record(path, arch, tables[arch], CuTiming)
