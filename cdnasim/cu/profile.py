"""A workgroup's clocks as the chip model needs them, from replays of its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cdnasim.cu.model import NEVER, PATTERN, ComputeUnit, CuResult
from cdnasim.cu.timing import cu_timing
from cdnasim.errors import InputError
from cdnasim.trace.model import SIMDS, KernelTrace, TraceInstruction

FIRST_STEPS = 4  # k-steps beyond the kernel's own of the first replay
MAX_STEPS = 64
STEADY = 0.005  # two replays' k-steps that differ by less are the steady one's
LATE_STEPS = 1000  # a latency of so many k-steps hides everything else that a k-step does


@dataclass(frozen=True)
class Tolerance:
    """How an operand's latency acts on the k-step: loop + max(0, latency - lead) / ahead.

    lead_clk: the latency that delays nothing. ahead: k-steps from the issue of a load to the wait
    for it, over which a later arrival is spread; 1.5 if of three k-steps two wait.
    """

    lead_clk: float
    ahead: float


@dataclass(frozen=True)
class CuProfile:
    """Core clocks of a workgroup whose loads all come at once.

    first_load_clk: from its start to its first load; prologue_clk: to its first k-step; loop_clk:
    of a steady k-step while the CU holds one workgroup, two, …; epilogue_clk: what its life is
    longer than prologue and k-steps. tolerance: of each operand.
    """

    first_load_clk: float
    prologue_clk: float
    loop_clk: tuple[float, ...]
    epilogue_clk: float
    tolerance: tuple[Tolerance, ...]


def cu_profile(trace: KernelTrace, residents: int = 1) -> CuProfile:
    """Replay `trace` until its k-step is steady, for up to `residents` workgroups on the CU.

    Then once for each operand with its loads far too late, for the tolerance. Raises InputError if
    a k-step does not settle within MAX_STEPS k-steps.
    """
    loop, steps, result = _steady(trace, 1)
    prologue = min(starts[0] for starts in result.iteration_starts)
    return CuProfile(
        first_load_clk=min(prologue, result.first_load),
        prologue_clk=prologue,
        loop_clk=(loop, *(_steady(trace, n)[0] for n in range(2, residents + 1))),
        epilogue_clk=max(0.0, result.end - prologue - steps * loop),
        tolerance=tuple(_tolerance(trace, o, loop) for o in range(len(trace.operands))),
    )


def _steady(trace: KernelTrace, workgroups: int) -> tuple[float, int, CuResult]:
    """The steady k-step of workgroups side by side (clk), and the last replay with its k-steps."""
    steps = trace.k_steps + FIRST_STEPS
    result = run_steps(trace, steps, workgroups=workgroups)
    loop, last = result.iteration_clk(), NEVER
    while abs(loop / last - 1) >= STEADY:
        before, last, steps = result, loop, steps + PATTERN
        if steps > MAX_STEPS:
            raise InputError(f"{trace.kernel}: no steady k-step within {MAX_STEPS} iterations")
        result = run_steps(trace, steps, workgroups=workgroups)
        # Workgroups side by side need not advance alike: what counts is what all of them need.
        loop = (result.end - before.end) / PATTERN
    return loop, steps, result


def resident_workgroups(trace: KernelTrace, lds_bytes: int) -> int:
    """How many workgroups of `trace` a CU with `lds_bytes` of LDS holds by LDS and registers.

    0 if not even one fits.
    """
    timing, _ = cu_timing(trace.arch)
    registers, waves = [0] * SIMDS, [0] * SIMDS
    for role in trace.roles:
        for wave in role.waves:
            registers[wave % SIMDS] += role.vgprs + role.agprs
            waves[wave % SIMDS] += 1
    return min(
        lds_bytes // max(1, trace.lds_bytes),
        timing.simd_registers // max(1, *registers),
        timing.simd_waves // max(waves),
    )


def _tolerance(trace: KernelTrace, operand: int, loop: float) -> Tolerance:
    """From one replay with the operand so late that the k-step is (latency + rest) / ahead.

    A kernel repeats itself within PATTERN k-steps, so `ahead` is a fraction of small numbers.
    """
    latency = LATE_STEPS * loop

    def late(i: TraceInstruction) -> float:
        return latency if i.operand == operand else 0.0

    step = ComputeUnit(trace, trace.k_steps + FIRST_STEPS, late).run().iteration_clk()
    ahead = float(Fraction(latency / step).limit_denominator(PATTERN))
    return Tolerance(max(0.0, latency - ahead * (step - loop)), ahead)


def run_steps(
    trace: KernelTrace,
    k_steps: int,
    *,
    workgroups: int = 1,
    keep_spans: bool = False,
    is_cold: bool = False,
    assume_unknown: bool = False,
) -> CuResult:
    """Workgroups of `k_steps` on one CU, their loads at once."""

    def at_once(_: TraceInstruction) -> float:
        return 0.0

    return ComputeUnit(
        trace,
        k_steps,
        at_once,
        workgroups=workgroups,
        keep_spans=keep_spans,
        is_cold=is_cold,
        assume_unknown=assume_unknown,
    ).run()
