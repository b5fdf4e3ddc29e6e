"""Simulated waves and workgroups as a Chrome trace, which Perfetto opens.

Tracks: a process is an XCD; its threads are named `CU 3` (its workgroups) and `CU 3 / SIMD 1 /
wave 5` (the instructions of a wave). Format: Chrome's trace event format, complete events ("X") and
metadata ("M"). 1 ns of the viewer is 1 clk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cdnasim.cu.model import CuResult
from cdnasim.trace.model import KernelTrace, flat_instructions

CLK_PER_MICROSECOND = 1000  # a clk is drawn as a nanosecond: the viewer counts in microseconds
THREADS_PER_CU = 64  # more than a CU has waves
Event = dict[str, Any]


@dataclass(frozen=True)
class Stay:
    """A workgroup on a CU: where, from when to when (clk), and its phases by name and end (clk)."""

    workgroup: int
    xcd: int
    cu: int
    start: float
    end: float
    phases: tuple[tuple[str, float], ...]


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """The file's contents."""
    return {"displayTimeUnit": "ns", "traceEvents": list(events)}


def wave_events(
    trace: KernelTrace, result: CuResult, *, xcd: int = 0, cu: int = 0, offset: float = 0.0
) -> list[Event]:
    """The waves of one CU: slices are instructions and, before them, what held them.

    result: simulated with its spans kept; its clk 0 is drawn at `offset` (clk).
    """
    instructions = flat_instructions(trace)
    events = [_name("process_name", xcd, 0, f"XCD {xcd}")]
    thread_of = {}
    for wave in result.waves:
        thread_of[wave.wave] = thread = cu * THREADS_PER_CU + 1 + wave.wave
        events.append(
            _name("thread_name", xcd, thread, f"CU {cu} / SIMD {wave.simd} / wave {wave.wave}")
        )
        events.append(_order(xcd, thread, cu * THREADS_PER_CU + 1 + wave.simd))
    for span in result.spans:
        instruction = instructions[span.key]
        args = {"line": trace.lines[instruction.line]}
        if span.cause:
            args["before"] = instruction.mnemonic
        name = span.cause or instruction.mnemonic
        category = "stall" if span.cause else instruction.unit
        start, end = offset + span.start, offset + span.end
        events.append(_slice(xcd, thread_of[span.wave], start, end, name, category, args))
    return events


def workgroup_events(stays: Iterable[Stay]) -> list[Event]:
    """The CUs' workgroups with their phases inside."""
    stays = list(stays)
    events = [_name("process_name", xcd, 0, f"XCD {xcd}") for xcd in sorted({s.xcd for s in stays})]
    for xcd, cu in sorted({(s.xcd, s.cu) for s in stays}):
        thread = cu * THREADS_PER_CU
        events += [_name("thread_name", xcd, thread, f"CU {cu}"), _order(xcd, thread, thread)]
    for stay in stays:
        place = stay.xcd, stay.cu * THREADS_PER_CU
        name = f"workgroup {stay.workgroup}"
        events.append(_slice(*place, stay.start, stay.end, name, "workgroup", {}))
        start = stay.start
        for phase, end in stay.phases:
            events.append(_slice(*place, start, end, phase, "phase", {}))
            start = end
    return events


def _slice(
    xcd: int, thread: int, start: float, end: float, name: str, category: str, args: Event
) -> Event:
    # Numbers start at 1: Perfetto takes thread 0 for the idle one.
    return {
        "ph": "X",
        "pid": xcd + 1,
        "tid": thread + 1,
        "ts": start / CLK_PER_MICROSECOND,
        "dur": (end - start) / CLK_PER_MICROSECOND,
        "name": name,
        "cat": category,
        "args": args,
    }


def _name(kind: str, xcd: int, thread: int, name: str) -> Event:
    return _metadata(kind, xcd, thread, {"name": name})


def _order(xcd: int, thread: int, place: int) -> Event:
    return _metadata("thread_sort_index", xcd, thread, {"sort_index": place})


def _metadata(kind: str, xcd: int, thread: int, args: Event) -> Event:
    return {"ph": "M", "pid": xcd + 1, "tid": thread + 1, "name": kind, "args": args}
