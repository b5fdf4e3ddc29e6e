"""One case: a machine, a kernel and its parameters, checked and run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cdnasim.cu.memo import kept_profile
from cdnasim.cu.profile import CuProfile, resident_workgroups
from cdnasim.errors import InputError
from cdnasim.gpu.chip import Options, simulate
from cdnasim.gpu.gemm import (
    Gemm,
    gemm_launch,
    pipeline_stages,
    pipelined_profile,
    traced_profile,
)
from cdnasim.gpu.orders import GridOrder, parse_order
from cdnasim.gpu.profile import Launch, WorkgroupProfile
from cdnasim.gpu.result import Result
from cdnasim.machine.loader import load_machine
from cdnasim.machine.model import MATRIX_DTYPES, Machine
from cdnasim.trace.model import KernelTrace, fewest_k_steps

KERNELS = ("gemm",)
CACHES = ("warm", "cold")
REGISTERS = ("pinned", "compiler")
GEMM_KEYS = ("m", "n", "k", "dtype", "tile", "schedule", "order", "registers", "caches")
MAX_DIMENSION = 2**24


@dataclass(frozen=True)
class GemmCase:
    """A checked GEMM case, ready to run.

    machine_source: the name or file that the machine came from. params: all parameters in canonical
    form.
    """

    machine_source: str
    machine: Machine
    gemm: Gemm
    order: GridOrder
    warm: bool
    params: dict[str, Any]

    def launch(self) -> Launch:
        """The grid of workgroups; raises InputError if kernel, tile and machine do not match."""
        return gemm_launch(self.gemm, self.profile(), self.order, self.machine.compute.xcds)

    def profile(self) -> WorkgroupProfile:
        """What a workgroup does: from the kernel's trace, or of the generic pipeline."""
        stages = pipeline_stages(self.gemm.schedule)
        if stages:
            return pipelined_profile(self.gemm, self.machine, stages)
        gemm, machine = self.gemm, self.machine
        kernel = self.kernel
        rows, cols = gemm.grid
        try:
            trace = _trace(*kernel)
            fewest = fewest_k_steps(trace) * gemm.tile[2]
            if gemm.k < fewest:
                raise InputError(f"k={gemm.k} is too short for the kernel; allowed: from {fewest}")
            fit = resident_workgroups(trace, machine.compute.lds_bytes)
            residents = max(1, min(fit, math.ceil(rows * cols / machine.cus)))
            cu = _cu_profile(*kernel, residents)
        except InputError as error:  # which names the kernel's line, not the parameter
            raise InputError(f"tile={_text(gemm.tile)} schedule={gemm.schedule}: {error}") from None
        return traced_profile(gemm, trace, cu, machine)

    @property
    def kernel(self) -> tuple[str, str, str, tuple[int, int, int], str]:
        """What tells its kernel from others: schedule, target, dtype, tile, registers."""
        gemm = self.gemm
        registers = str(self.params["registers"])
        return gemm.schedule, self.machine.arch, gemm.dtype, gemm.tile, registers

    def trace(self) -> KernelTrace | None:
        """The kernel's trace; None for the generic pipeline."""
        return None if pipeline_stages(self.gemm.schedule) else _trace(*self.kernel)

    def run(self, seed: int = 0) -> Result:
        """Simulate the case."""
        return simulate(
            self.machine,
            self.launch(),
            kernel="gemm",
            params=self.params,
            options=Options(warm=self.warm, seed=seed),
        )


def parse_params(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping; raises InputError for anything else or a key given twice."""
    params: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise InputError(f"parameter '{pair}' must read key=value, such as m=8192")
        if key in params:
            raise InputError(f"parameter '{key}' is given twice")
        params[key] = value
    return params


def run_case(machine: str, kernel: str, params: Mapping[str, Any], *, seed: int = 0) -> Result:
    """Check and simulate one case; raises InputError for what cannot be expressed."""
    return check_case(machine, kernel, params).run(seed)


def check_case(machine: str, kernel: str, params: Mapping[str, Any]) -> GemmCase:
    """The case of `kernel` with `params` as on the command line (values as text or plain numbers).

    `order` may also be a Python callable (gpu/orders.py). Raises InputError naming the key and what
    is allowed.
    """
    if kernel not in KERNELS:
        raise InputError(f"kernel '{kernel}' is unknown; allowed: {', '.join(KERNELS)}")
    for key in params:
        if key not in GEMM_KEYS:
            raise InputError(f"gemm: unknown parameter '{key}'; allowed: {', '.join(GEMM_KEYS)}")
    described = load_machine(machine)
    m, n, k = (_dimension(params, key) for key in ("m", "n", "k"))
    on_sm90 = described.arch == "sm_90"
    tile = _tile(str(params.get("tile", "128x256x64" if on_sm90 else "256x256x64")))
    for key, size, step in (("m", m, tile[0]), ("n", n, tile[1]), ("k", k, tile[2])):
        if size % step:
            raise InputError(f"{key}={size} is not a multiple of {step} (tile {_text(tile)})")
    dtype = _choice(params, "dtype", MATRIX_DTYPES, "bf16")
    schedule = str(params.get("schedule", "pipelined:s=4" if on_sm90 else "pingpong8"))
    caches = _choice(params, "caches", CACHES, "warm")
    registers = _choice(params, "registers", REGISTERS, "pinned")
    spec: str | Callable[..., Any] = params.get("order", "row-major")
    order = parse_order(spec if callable(spec) else str(spec))
    canonical = {
        "m": m,
        "n": n,
        "k": k,
        "dtype": dtype,
        "tile": _text(tile),
        "schedule": schedule,
        "order": order.spec,
        "registers": registers,
        "caches": caches,
    }
    gemm = Gemm(m, n, k, dtype, tile, schedule)
    return GemmCase(machine, described, gemm, order, caches == "warm", canonical)


def _trace(
    schedule: str, arch: str, dtype: str, tile: tuple[int, int, int], registers: str
) -> KernelTrace:
    from hk_kernels.catalog import gemm_trace  # kernels are read only if one is asked for

    return gemm_trace(schedule, arch, dtype, tile, registers)


@cache
def _cu_profile(
    schedule: str,
    arch: str,
    dtype: str,
    tile: tuple[int, int, int],
    registers: str,
    residents: int,
) -> CuProfile:
    return kept_profile(_trace(schedule, arch, dtype, tile, registers), residents)


def _choice(params: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str) -> str:
    value = str(params.get(key, default))
    if value not in allowed:
        raise InputError(f"{key}={value} is unknown; allowed: {', '.join(allowed)}")
    return value


def _dimension(params: Mapping[str, Any], key: str) -> int:
    if key not in params:
        raise InputError(f"gemm: parameter '{key}' is missing; needed: m, n, k")
    value = _whole(str(params[key]))
    if value is None or not 1 <= value <= MAX_DIMENSION:
        raise InputError(f"{key}={params[key]} must be a whole number from 1 to {MAX_DIMENSION}")
    return value


def _tile(text: str) -> tuple[int, int, int]:
    sizes = [_whole(part) for part in text.split("x")]
    whole = [s for s in sizes if s is not None and 16 <= s <= 1024 and s % 16 == 0]
    if len(sizes) != 3 or len(whole) != 3:
        raise InputError(
            f"tile={text} must read <rows>x<columns>x<depth>, each a multiple of 16 up to 1024"
        )
    return whole[0], whole[1], whole[2]


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _text(tile: tuple[int, int, int]) -> str:
    return "x".join(str(size) for size in tile)
