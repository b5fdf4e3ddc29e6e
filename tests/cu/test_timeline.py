"""The timeline: what Perfetto needs, and the same clocks as the result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cdnasim.cu.profile import run_steps
from cdnasim.cu.timeline import THREADS_PER_CU, Stay, chrome_trace, wave_events, workgroup_events
from cdnasim.trace.model import flat_instructions
from hk_kernels.catalog import gemm_trace

TRACE = gemm_trace("specialized:p=4,c=8", "gfx950", "bf16", (128, 256, 64))
RESULT = run_steps(TRACE, 10, keep_spans=True)
EVENTS = json.loads(json.dumps(chrome_trace(wave_events(TRACE, RESULT, xcd=3, cu=2))))[
    "traceEvents"
]
SLICES = [e for e in EVENTS if e["ph"] == "X"]


def thread(wave: int) -> int:
    return 2 * THREADS_PER_CU + 1 + wave + 1


def test_every_wave_has_a_named_track_in_its_xcd() -> None:
    names = {
        (e["name"], e["pid"], e["tid"], e["args"].get("name")) for e in EVENTS if e["ph"] == "M"
    }
    assert ("process_name", 4, 1, "XCD 3") in names
    for wave in RESULT.waves:
        track = f"CU 2 / SIMD {wave.simd} / wave {wave.wave}"
        assert ("thread_name", 4, thread(wave.wave), track) in names


def test_slices_of_a_wave_do_not_overlap_and_end_with_it() -> None:
    for wave in RESULT.waves:
        slices = [e for e in SLICES if (e["pid"], e["tid"]) == (4, thread(wave.wave))]
        end = 0.0
        for one in slices:
            assert abs(one["ts"] - end) < 1e-9
            end = one["ts"] + one["dur"]
        assert abs(1000 * end - wave.end) < 1e-6


def test_every_instruction_executed_is_one_slice() -> None:
    instructions = flat_instructions(TRACE)
    hits: dict[str, int] = {}
    for key, cost in RESULT.instructions.items():
        name = instructions[key].mnemonic
        hits[name] = hits.get(name, 0) + cost.hits
    slices: dict[str, int] = {}
    for one in SLICES:
        if one["cat"] != "stall":
            slices[one["name"]] = slices.get(one["name"], 0) + 1
    assert slices == hits


def test_slices_name_the_kernels_line() -> None:
    assert all(one["args"]["line"].startswith("gemm.py:") for one in SLICES)


def test_workgroups_hold_their_phases() -> None:
    phases = (("prologue", 15.0), ("k loop", 90.0), ("epilogue", 100.0))
    events = workgroup_events([Stay(7, 1, 2, 10.0, 100.0, phases)])
    whole, *parts = [e for e in events if e["ph"] == "X"]
    assert whole["name"] == "workgroup 7"
    assert sum(e["dur"] for e in parts) == pytest.approx(whole["dur"])
    assert [e["name"] for e in parts] == ["prologue", "k loop", "epilogue"]
    assert all(whole["ts"] <= e["ts"] for e in parts)
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"CU 2"}


@pytest.mark.skipif(
    not shutil.which("trace_processor_shell"), reason="needs Perfetto's trace_processor_shell"
)
def test_perfettos_trace_processor_finds_the_waves(tmp_path: Path) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(chrome_trace(wave_events(TRACE, RESULT))))
    config = TraceProcessorConfig(bin_path=shutil.which("trace_processor_shell"))
    with TraceProcessor(trace=str(path), config=config) as processor:
        found = processor.query("select count(*) as n from thread where name like '%wave%'")
        assert next(iter(found)).n == len(RESULT.waves)
