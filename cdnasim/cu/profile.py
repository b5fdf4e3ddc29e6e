"""The steady k-step of a kernel: its clocks and how late its loads may come."""

from __future__ import annotations

from dataclasses import dataclass

from cdnasim.cu.model import ComputeUnit, CuResult
from cdnasim.errors import InputError
from cdnasim.trace.model import KernelTrace, TraceInstruction

MAX_STEPS = 64
STEADY = 0.005  # two runs' k-steps that differ by less are the steady one's


@dataclass(frozen=True)
class SteadyLoop:
    """A k-step of a workgroup whose loads all come in time.

    loop_clk: clocks of a k-step. lead_clk: per operand, the load latency that does not delay it.
    """

    loop_clk: float
    lead_clk: tuple[float, ...]


def steady_loop(trace: KernelTrace) -> SteadyLoop:
    """Simulate `trace` with loads that come at once until its k-step no longer changes.

    Raises InputError if it does not settle within MAX_STEPS k-steps.
    """
    steps = 6
    before = run_steps(trace, steps)
    while steps < MAX_STEPS:
        steps *= 2
        result = run_steps(trace, steps)
        if abs(result.iteration_clk() / before.iteration_clk() - 1) < STEADY:
            leads = tuple(result.slack.get(o, 0.0) for o in range(len(trace.operands)))
            return SteadyLoop(result.iteration_clk(), leads)
        before = result
    raise InputError(f"{trace.kernel}: the k-step does not settle within {MAX_STEPS} iterations")


def run_steps(trace: KernelTrace, steps: int, *, keep_spans: bool = False) -> CuResult:
    """One workgroup with `steps` k-steps in the loop, its loads at once."""

    def at_once(_: TraceInstruction) -> float:
        return 0.0

    return ComputeUnit(trace, steps, at_once, keep_spans=keep_spans).run()
