"""What limits a launch, in a sentence: the largest loss, and what stands behind it."""

from __future__ import annotations

from cdnasim.cu.profile import run_steps
from cdnasim.experiment.case import GemmCase
from cdnasim.gpu.result import Result
from cdnasim.trace.model import KernelTrace, TraceLoop, TraceNode

SHOWN_LOSS = 0.05  # a second loss is named from this share on
REPLAY_STEPS = 4  # k-steps beyond the kernel's own of the replay that names the stalls


def limit(case: GemmCase, result: Result) -> str:
    """One or two clauses on what keeps `result` from the machine's peak.

    Losses: time in which a CU slot does no matrix work, by cause, and the clock below its maximum.
    """
    top = case.machine.compute.clock_max_ghz * 1e3
    losses = {name: part for name, part in result.stalls.items() if name != "busy"}
    losses["clock"] = 1.0 - result.clock_mhz / top
    ranked = sorted(losses, key=lambda name: -losses[name])
    first, *rest = [name for name in ranked if losses[name] >= SHOWN_LOSS][:2] or ranked[:1]
    text = f"limited by {_reason(first, losses[first], case, result)}"
    return text + "".join(f"; then {_reason(name, losses[name], case, result)}" for name in rest)


def _reason(name: str, loss: float, case: GemmCase, result: Result) -> str:
    share = f"{100 * loss:.0f} %"
    if name == "clock":
        top = case.machine.compute.clock_max_ghz * 1e3
        return (
            f"power: matrix pipes busy {100 * result.mfma_utilisation:.0f} % hold the clock at "
            f"{result.clock_mhz:.0f} of {top:.0f} MHz"
        )
    if name in ("hbm", "llc"):
        return f"loads from {name.upper()} that come too late ({share}): {_latencies(case, result)}"
    if name == "prologue_epilogue":
        return f"filling the pipeline and storing the tile ({share})"
    if name == "no_workgroup":
        return f"CU slots without a workgroup ({share}): the grid does not fill whole rounds"
    return f"the k-step itself ({share}): {_k_step(case)}"


def _latencies(case: GemmCase, result: Result) -> str:
    """The operand whose loads come latest, against what its kernel tolerates."""
    pairs = zip(case.profile().operands, result.load_latency_clk.values(), strict=True)
    operand, clk = max(pairs, key=lambda pair: pair[1] - pair[0].lead_clk)
    late = f"{operand.name} comes {clk:.0f} clk after its request on the mean"
    return f"{late}, and what comes later than {operand.lead_clk:.0f} clk costs time"


def _k_step(case: GemmCase) -> str:
    profile, trace = case.profile(), case.trace()
    text = f"{profile.loop_clk:.0f} clk for {profile.matrix_clk:.0f} of matrix work"
    return f"{text}, {_stalls(trace)}" if trace else text


def _stalls(trace: KernelTrace) -> str:
    """What the waves that multiply wait for, matrix pipe aside."""
    result = run_steps(trace, trace.k_steps + REPLAY_STEPS)
    computing = {w for role in trace.roles if _multiplies(role.body) for w in role.waves}
    stalls: dict[str, float] = {}
    for wave in result.waves:
        if wave.wave in computing:
            for cause, clk in wave.stalls.items():
                stalls[cause] = stalls.get(cause, 0.0) + clk
    stalls.pop("mfma busy", None)
    cause = max(stalls, key=lambda name: stalls[name])
    return f"its waves wait most for {CAUSES.get(cause, cause)}"


def _multiplies(body: list[TraceNode]) -> bool:
    return any(_multiplies(n.body) if isinstance(n, TraceLoop) else n.unit == "mfma" for n in body)


CAUSES = {
    "lgkmcnt": "LDS reads (lgkmcnt)",
    "vmcnt": "loads (vmcnt)",
    "barrier": "the other waves at barriers",
    "lds queue": "a place in the LDS queue",
    "vmem queue": "the address path of global loads and stores",
    "issue": "an issue slot",
}
