"""The timeline: what Perfetto needs, and the same clocks as the result."""

from __future__ import annotations

import json

from cdnasim.cu.profile import run_steps
from cdnasim.cu.timeline import chrome_trace
from cdnasim.trace.model import flat_instructions
from hk_kernels.catalog import gemm_trace

TRACE = gemm_trace("specialized:p=4,c=8", "gfx950", "bf16", (128, 256, 64))
RESULT = run_steps(TRACE, 6, keep_spans=True)
EVENTS = json.loads(json.dumps(chrome_trace(TRACE, RESULT)))["traceEvents"]
SLICES = [e for e in EVENTS if e["ph"] == "X"]


def test_every_simd_and_wave_has_a_named_track() -> None:
    names = {(e["name"], e["pid"], e["tid"]) for e in EVENTS if e["ph"] == "M"}
    for wave in RESULT.waves:
        assert ("thread_name", wave.simd + 1, wave.wave + 1) in names
        assert any(kind == "process_name" and pid == wave.simd + 1 for kind, pid, _ in names)


def test_slices_of_a_wave_do_not_overlap_and_end_with_it() -> None:
    for wave in RESULT.waves:
        slices = [e for e in SLICES if (e["pid"], e["tid"]) == (wave.simd + 1, wave.wave + 1)]
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
