"""GEMM launches: C[m,n] = A[m,k] · B[n,k]ᵀ in tiles, from shape, tile, kernel and grid order.

Geometry and leads of a kernel with a trace come from the trace; the generic pipeline has its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cdnasim.cu.profile import CuProfile
from cdnasim.errors import InputError
from cdnasim.gpu.orders import GridOrder
from cdnasim.gpu.profile import Launch, OperandStream, WorkgroupProfile
from cdnasim.machine.loader import read_record, read_toml
from cdnasim.machine.model import ELEMENT_BYTES, Machine, Provenance, param
from cdnasim.trace.model import KernelTrace

MAX_WORKGROUP_STEPS = 200_000_000  # above it a run takes many minutes: more likely a slip


@dataclass(frozen=True)
class PipelinedClocks:
    """The generic software pipeline; see gemm_schedules.toml for sources."""

    efficiency: float = param("fraction of the matrix rate")
    prologue_clk: float = param("clk")
    epilogue_clk: float = param("clk for a 256x256 tile")


@dataclass(frozen=True)
class Gemm:
    """One GEMM problem: sizes in elements, tile = (rows of C, columns of C, depth of a k-step)."""

    m: int
    n: int
    k: int
    dtype: str
    tile: tuple[int, int, int]
    schedule: str

    @property
    def grid(self) -> tuple[int, int]:
        """Output tiles (rows, columns)."""
        return self.m // self.tile[0], self.n // self.tile[1]

    @property
    def flops(self) -> float:
        """2·m·n·k."""
        return 2.0 * self.m * self.n * self.k


@cache
def pipelined_clocks() -> tuple[PipelinedClocks, tuple[Provenance, ...]]:
    """The clocks of gemm_schedules.toml and where they come from."""
    with resources.as_file(resources.files("cdnasim.gpu") / "gemm_schedules.toml") as path:
        return read_record(path, "pipelined", read_toml(path)["pipelined"], PipelinedClocks)


def pipeline_stages(schedule: str) -> int | None:
    """The stages of `pipelined:s=4`; None if the schedule is a kernel's.

    Raises InputError for other options or stages outside 2 to 16.
    """
    name, _, options = schedule.partition(":")
    if name != "pipelined":
        return None
    match = re.fullmatch("s=([0-9]{1,2})", options)
    if not match or not 2 <= int(match[1]) <= 16:
        raise InputError(f"schedule '{schedule}': needs s=<stages>, a whole number from 2 to 16")
    return int(match[1])


def traced_profile(
    gemm: Gemm, trace: KernelTrace, cu: CuProfile, machine: Machine
) -> WorkgroupProfile:
    """The profile of a workgroup of the kernel that `trace` describes.

    Raises InputError if the machine's LDS or matrix rate does not go with the trace.
    """
    bm, bn, bk = gemm.tile
    if trace.lds_bytes > machine.compute.lds_bytes:
        raise InputError(
            f"tile={bm}x{bn}x{bk}: {gemm.schedule} needs {trace.lds_bytes} B of LDS, "
            f"{machine.name} has {machine.compute.lds_bytes} B per CU"
        )
    rate = 2.0 * bm * bn * bk / trace.matrix_clocks
    if rate > machine.matrix_rate(gemm.dtype):
        raise InputError(
            f"{machine.name}: {gemm.dtype}_flops_per_clk is {machine.matrix_rate(gemm.dtype):g}, "
            f"the matrix instructions of {trace.arch} in {gemm.schedule} make {rate:g}"
        )
    a, b = (
        OperandStream(o.tensor, o.slab_bytes, o.piece_bytes, t.lead_clk, t.ahead)
        for o, t in zip(trace.operands, cu.tolerance, strict=True)
    )
    return WorkgroupProfile(
        name=f"gemm {gemm.schedule} {bm}x{bn}x{bk} {gemm.dtype}",
        first_load_clk=cu.first_load_clk,
        fill_clk=cu.prologue_clk - cu.first_load_clk,
        prologue_clk=cu.prologue_clk,
        loop_clk=cu.loop_clk[0],
        epilogue_clk=cu.epilogue_clk,
        iterations=gemm.k // bk,
        matrix_clk=trace.matrix_clocks,
        operands=(a, b),
        store_bytes=trace.store_bytes,
        shared_loop_clk=cu.loop_clk[1:],
    )


def pipelined_profile(gemm: Gemm, machine: Machine, stages: int) -> WorkgroupProfile:
    """The profile of the generic pipeline; raises InputError if the stages do not fit the LDS."""
    clocks, _ = pipelined_clocks()
    bm, bn, bk = gemm.tile
    piece = bk * ELEMENT_BYTES[gemm.dtype]
    lds = stages * (bm + bn) * piece
    if lds > machine.compute.lds_bytes:
        raise InputError(
            f"tile={bm}x{bn}x{bk}: {stages} stages need {lds} B of LDS, "
            f"{machine.name} has {machine.compute.lds_bytes} B per CU"
        )
    matrix_clk = 2.0 * bm * bn * bk / machine.matrix_rate(gemm.dtype)
    loop_clk = matrix_clk / clocks.efficiency
    ahead = stages - 1
    lead = ahead * loop_clk
    return WorkgroupProfile(
        name=f"gemm {gemm.schedule} {bm}x{bn}x{bk} {gemm.dtype}",
        first_load_clk=0.0,  # the calibrated prologue holds the first loads' latency
        fill_clk=0.0,
        prologue_clk=clocks.prologue_clk,
        loop_clk=loop_clk,
        epilogue_clk=clocks.epilogue_clk * bm * bn / 256**2,
        iterations=gemm.k // bk,
        matrix_clk=matrix_clk,
        operands=(
            OperandStream("A", bm * piece, piece, lead, ahead),
            OperandStream("B", bn * piece, piece, lead, ahead),
        ),
        store_bytes=bm * bn * ELEMENT_BYTES["bf16"],  # C leaves as bf16 in all these kernels
    )


def gemm_launch(gemm: Gemm, profile: WorkgroupProfile, order: GridOrder, xcds: int) -> Launch:
    """The launch of `gemm` in `order`; raises InputError if the grid is too large to simulate."""
    rows, cols = gemm.grid
    steps = rows * cols * profile.iterations
    if steps > MAX_WORKGROUP_STEPS:
        raise InputError(
            f"m={gemm.m} n={gemm.n} k={gemm.k}: {steps} workgroup k-steps; "
            f"allowed: at most {MAX_WORKGROUP_STEPS}"
        )
    return Launch(
        profile=profile,
        blocks=order.tiles(rows, cols, xcds),
        block_counts=(rows, cols),
        flops=gemm.flops,
    )
