"""Kernels by schedule name, as the command line calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cdnasim.errors import InputError
from cdnasim.trace.model import KernelTrace
from hk_kernels import gemm
from hk_kernels.lower.program import Program
from hk_kernels.lower.trace import trace
from hk_kernels.tile.language import Kernel, lower


@dataclass(frozen=True)
class Entry:
    """A schedule: its kernel on each target, and its options with defaults."""

    kernels: Mapping[str, Kernel]
    options: Mapping[str, int]
    note: str


GEMM_SCHEDULES: dict[str, Entry] = {
    "pingpong8": Entry(
        {
            "gfx950": gemm.pingpong8,
            "gfx942": gemm.pingpong8_registers,
            "sm_90": gemm.pingpong8,
        },
        {"stagger": 1, "setprio": 1, "swizzle": 1, "inflight": 3},
        "8 waves, two a SIMD take turns at MFMA and memory",
    ),
    "kslices8": Entry(
        {"gfx950": gemm.kslices8},
        {"mfma": 32},
        "8 waves ping-pong over halves of the k-step, loads all at its beginning",
    ),
    "interleave4": Entry(
        {"gfx950": gemm.interleave4, "sm_90": gemm.interleave4},
        {},
        "4 waves, loads and LDS reads woven between the MFMAs",
    ),
    "specialized": Entry(
        {"gfx950": gemm.specialized, "sm_90": gemm.specialized},
        {"p": 4, "c": 8, "stages": 2},
        "p producer waves load, c consumer waves compute",
    ),
}
STEPS = 8  # k-steps of the problem that stands for all: enough for every prologue and epilogue


def schedule_names() -> str:
    """The schedules and their options, for messages."""
    names = []
    for name, entry in GEMM_SCHEDULES.items():
        options = ",".join(f"{key}={value}" for key, value in entry.options.items())
        names.append(f"{name}:{options}" if options else name)
    return ", ".join(names)


def parse_schedule(text: str) -> tuple[Entry, dict[str, int]]:
    """The entry and options of `name` or `name:key=value,…`; raises InputError."""
    name, colon, rest = text.partition(":")
    if name not in GEMM_SCHEDULES:
        allowed = f"{schedule_names()}, pipelined:s=<stages>"
        raise InputError(f"schedule '{text}' is unknown; allowed: {allowed}")
    entry = GEMM_SCHEDULES[name]
    options = dict(entry.options)
    given: set[str] = set()
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key not in options or not re.fullmatch("[0-9]{1,3}", value):
            allowed = ", ".join(f"{k}=<number>" for k in options) or "no options"
            raise InputError(f"schedule '{text}': '{part}' is not one of: {allowed}")
        if key in given:
            raise InputError(f"schedule '{text}': {key} is given twice")
        given.add(key)
        options[key] = int(value)
    return entry, options


def gemm_program(
    schedule: str,
    arch: str,
    dtype: str,
    tile: tuple[int, int, int],
    grid: tuple[int, int] = (1, 1),
    *,
    steps: int = 0,
    allow_spills: bool = False,
) -> Program:
    """The lowered program of a GEMM of grid x tile and k-steps; raises InputError.

    steps: STEPS, or what the schedule's stages need, if 0.
    """
    entry, options = parse_schedule(schedule)
    if arch not in entry.kernels:
        raise InputError(
            f"schedule '{schedule}' has no kernel for {arch}: {', '.join(entry.kernels)}"
        )
    bm, bn, bk = tile
    kernel = entry.kernels[arch]
    known = kernel.parameters()
    for key in options.keys() - known:
        if options[key] != entry.options[key]:
            raise InputError(f"schedule '{schedule}': the kernel for {arch} has no {key}")
    chosen = {key: value for key, value in options.items() if key in known}
    parameters: dict[str, Any] = {"bm": bm, "bn": bn, "bk": bk, **chosen}
    steps = steps or max(STEPS, options.get("stages", 0) + 2)
    m, n, k = grid[0] * bm, grid[1] * bn, steps * bk
    return lower(kernel, arch, m, n, k, dtype, allow_spills=allow_spills, **parameters)


@cache
def gemm_trace(
    schedule: str,
    arch: str,
    dtype: str,
    tile: tuple[int, int, int],
    registers: str = "pinned",
) -> KernelTrace:
    """The trace of a GEMM kernel; raises InputError for what the kernel or target do not allow.

    registers: `pinned`, or `compiler` with its spills and moves in place of a refusal.
    """
    is_compiled = registers == "compiler"
    return trace(gemm_program(schedule, arch, dtype, tile, allow_spills=is_compiled), registers)
