"""The waves of a simulated workgroup as a Chrome trace, which Perfetto opens."""

from __future__ import annotations

from typing import Any

from cdnasim.cu.model import CuResult
from cdnasim.trace.model import SIMDS, KernelTrace, flat_instructions

CLK_PER_MICROSECOND = 1000  # a clk is drawn as a nanosecond: the viewer counts in microseconds


def chrome_trace(trace: KernelTrace, result: CuResult) -> dict[str, Any]:
    """Tracks SIMD > wave of a CU; slices are instructions and, before them, what held them.

    result: simulated with its spans kept. 1 ns of the viewer is 1 clk. Format: Chrome's trace event
    format, complete events ("X") with metadata ("M"). Numbers start at 1: Perfetto takes thread 0
    for the idle one.
    """
    instructions = flat_instructions(trace)
    simd_of = {w.wave: w.simd for w in result.waves}
    events: list[dict[str, Any]] = []
    for simd in range(SIMDS):
        events.append(_name("process_name", simd, 0, f"CU 0, SIMD {simd}"))
    for wave in result.waves:
        events.append(_name("thread_name", wave.simd, wave.wave, f"wave {wave.wave}"))
    for span in result.spans:
        instruction = instructions[span.key]
        args = {"line": trace.lines[instruction.line]}
        if span.cause:
            args["before"] = instruction.mnemonic
        events.append(
            {
                "ph": "X",
                "pid": simd_of[span.wave] + 1,
                "tid": span.wave + 1,
                "ts": span.start / CLK_PER_MICROSECOND,
                "dur": (span.end - span.start) / CLK_PER_MICROSECOND,
                "name": span.cause or instruction.mnemonic,
                "cat": "stall" if span.cause else instruction.unit,
                "args": args,
            }
        )
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _name(kind: str, simd: int, wave: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": simd + 1, "tid": wave + 1, "name": kind, "args": {"name": name}}
