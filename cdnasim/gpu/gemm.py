"""GEMM launches: C[m,n] = A[m,k] · B[n,k]ᵀ in tiles, from shape, tile, schedule and grid order.

The profile is computed from the tile, the matrix rate and the traced loop overheads of the
schedule.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import get_type_hints

from cdnasim.errors import InputError
from cdnasim.gpu.orders import GridOrder
from cdnasim.gpu.profile import Launch, OperandStream, WorkgroupProfile
from cdnasim.machine.loader import check_keys, provenance_entry, read_toml
from cdnasim.machine.model import ELEMENT_BYTES, Machine, Provenance, param

MAX_WORKGROUP_STEPS = (
    200_000_000  # above it a run takes many minutes: more likely a slip than a wish
)
SCHEDULE_NAMES = ("pingpong8", "pipelined")
SCHEDULE_HELP = "pingpong8, pipelined:s=<stages>"


@dataclass(frozen=True)
class Schedule:
    """Clocks of a wave schedule; see gemm_schedules.toml for sources."""

    waves: int = param("waves")
    lds_stages: int = param("k-steps in LDS")
    clusters: int = param("matrix clusters/k-step and wave")
    handoff_clk: float = param("clk/cluster")
    efficiency: float = param("fraction of the matrix rate")
    a_lead: float = param("k-steps of matrix time")
    b_lead: float = param("k-steps of matrix time")
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
def schedules() -> tuple[dict[str, Schedule], tuple[Provenance, ...]]:
    """All schedules by name, and where their numbers come from."""
    found: dict[str, Schedule] = {}
    provenance: list[Provenance] = []
    types = get_type_hints(Schedule)
    fields = dataclasses.fields(Schedule)
    with resources.as_file(resources.files("cdnasim.gpu") / "gemm_schedules.toml") as path:
        for name, table in read_toml(path).items():
            check_keys(f"{path}: [{name}]", table, tuple(f.name for f in fields))
            entries = [
                provenance_entry(path, f"{name}.{f.name}", table[f.name], f.metadata["unit"])
                for f in fields
            ]
            values = {f.name: types[f.name](e.value) for f, e in zip(fields, entries, strict=True)}
            found[name] = Schedule(**values)
            provenance += entries
    return found, tuple(provenance)


def parse_schedule(text: str, arch: str) -> Schedule:
    """The schedule `pingpong8`, or `pipelined:s=4` with any number of stages from 2 to 16.

    A table `name@arch` of the data file takes precedence over `name`. Raises InputError for
    anything else.
    """
    known = schedules()[0]
    name, colon, options = text.partition(":")
    if name not in SCHEDULE_NAMES:
        raise InputError(f"schedule '{text}': '{name}' is unknown; allowed: {SCHEDULE_HELP}")
    schedule = known.get(f"{name}@{arch}", known[name])
    if name != "pipelined":
        if colon:
            raise InputError(f"schedule '{text}': {name} takes no options; use {name}")
        return schedule
    key, _, value = options.partition("=")
    if key != "s" or not re.fullmatch("[0-9]{1,2}", value) or not 2 <= int(value) <= 16:
        raise InputError(f"schedule '{text}': needs s=<stages>, a whole number from 2 to 16")
    stages = int(value)
    return dataclasses.replace(
        schedule, lds_stages=stages, a_lead=stages - 1.0, b_lead=stages - 1.0
    )


def gemm_profile(gemm: Gemm, machine: Machine) -> WorkgroupProfile:
    """The profile of one workgroup; raises InputError if the tile does not fit the LDS."""
    schedule = parse_schedule(gemm.schedule, machine.arch)
    bm, bn, bk = gemm.tile
    element = ELEMENT_BYTES[gemm.dtype]
    lds = schedule.lds_stages * (bm + bn) * bk * element
    if lds > machine.compute.lds_bytes:
        raise InputError(
            f"tile={bm}x{bn}x{bk}: {schedule.lds_stages} stages need {lds} B of LDS, "
            f"{machine.name} has {machine.compute.lds_bytes} B per CU"
        )
    matrix_clk = 2.0 * bm * bn * bk / machine.matrix_rate(gemm.dtype)
    loop_clk = matrix_clk / schedule.efficiency + schedule.clusters * schedule.handoff_clk
    busy_clk = matrix_clk / schedule.efficiency
    piece = bk * element
    return WorkgroupProfile(
        name=f"gemm {gemm.schedule} {bm}x{bn}x{bk} {gemm.dtype}",
        prologue_clk=schedule.prologue_clk,
        loop_clk=loop_clk,
        epilogue_clk=schedule.epilogue_clk * bm * bn / 256**2,
        iterations=gemm.k // bk,
        matrix_clk=matrix_clk,
        operands=(
            OperandStream("A", bm * piece, piece, schedule.a_lead * busy_clk),
            OperandStream("B", bn * piece, piece, schedule.b_lead * busy_clk),
        ),
        store_bytes=bm * bn * ELEMENT_BYTES["bf16"],  # C leaves as bf16 in all published kernels
    )


def gemm_launch(gemm: Gemm, machine: Machine, order: GridOrder) -> Launch:
    """The launch of `gemm` in `order`; raises InputError if tile or grid are too large."""
    rows, cols = gemm.grid
    profile = gemm_profile(gemm, machine)
    steps = rows * cols * profile.iterations
    if steps > MAX_WORKGROUP_STEPS:
        raise InputError(
            f"m={gemm.m} n={gemm.n} k={gemm.k}: {steps} workgroup k-steps; "
            f"allowed: at most {MAX_WORKGROUP_STEPS}"
        )
    return Launch(
        profile=profile,
        blocks=order.tiles(rows, cols, machine.compute.xcds),
        block_counts=(rows, cols),
        flops=gemm.flops,
        dtype=gemm.dtype,
    )
