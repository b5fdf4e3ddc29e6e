"""The timeline of a simulated launch: all workgroups, and one compute unit instruction by
instruction."""

from __future__ import annotations

from typing import Any

from cdnasim.cu.model import ComputeUnit, CuResult
from cdnasim.cu.timeline import Event, Stay, chrome_trace, wave_events, workgroup_events
from cdnasim.experiment.case import GemmCase
from cdnasim.gpu.result import Result
from cdnasim.trace.model import KernelTrace, TraceInstruction

SHOWN_STEPS = 4  # k-steps of the replayed workgroup beyond those that every kernel needs


def launch_timeline(case: GemmCase, result: Result) -> dict[str, Any]:
    """The Chrome trace of `result`: a track per CU, and the waves of the CU of workgroup 0.

    The waves are replayed for a few k-steps with the launch's mean load latencies; kernels without
    a trace have none.
    """
    events: list[Event] = workgroup_events(_stays(result))
    trace = case.trace()
    if trace:
        log = result.log
        replayed = replay_with_latency(trace, result)
        place = {"xcd": int(log.xcd[0]), "cu": int(log.cu[0])}
        events += wave_events(trace, replayed, **place, offset=float(log.start_clk[0]))
    return chrome_trace(events)


def replay_with_latency(trace: KernelTrace, result: Result) -> CuResult:
    """A short workgroup of `trace` whose loads take as long as they did in `result`."""
    latencies = list(result.load_latency_clk.values())

    def latency(i: TraceInstruction) -> float:
        return latencies[i.operand]

    return ComputeUnit(trace, trace.k_steps + SHOWN_STEPS, latency, keep_spans=True).run()


def _stays(result: Result) -> list[Stay]:
    log = result.log
    columns = (log.xcd, log.cu, log.start_clk, log.loop_start_clk, log.loop_end_clk, log.end_clk)
    return [
        Stay(
            workgroup=workgroup,
            xcd=xcd,
            cu=cu,
            start=start,
            end=end,
            phases=(("prologue", loop_start), ("k loop", loop_end), ("epilogue", end)),
        )
        for workgroup, (xcd, cu, start, loop_start, loop_end, end) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]
