"""The compute unit against traced loops, and what must always hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import pytest

from cdnasim.cu.model import ComputeUnit, CuResult
from cdnasim.cu.profile import run_steps, steady_loop
from cdnasim.trace.model import (
    KernelTrace,
    TraceInstruction,
    TraceLoop,
    TraceNode,
    flat_instructions,
)
from hk_kernels.catalog import gemm_trace

KERNELS = {
    "pingpong8": ("pingpong8", "gfx950", "bf16", (256, 256, 64)),
    "pingpong8 192": ("pingpong8", "gfx950", "bf16", (192, 256, 64)),
    "pingpong8 fp8": ("pingpong8", "gfx950", "fp8", (256, 256, 128)),
    "pingpong8 gfx942": ("pingpong8", "gfx942", "bf16", (256, 256, 64)),
    "interleave4": ("interleave4", "gfx950", "bf16", (256, 256, 64)),
    "interleave4 fp8": ("interleave4", "gfx950", "fp8", (256, 256, 128)),
    "specialized 8": ("specialized:p=4,c=8", "gfx950", "bf16", (128, 256, 64)),
    "specialized 12": ("specialized:p=4,c=12", "gfx950", "bf16", (192, 256, 64)),
}


def kernel(name: str) -> KernelTrace:
    return gemm_trace(*KERNELS[name])


def edit(
    trace: KernelTrace, change: Callable[[TraceInstruction], list[TraceInstruction]]
) -> KernelTrace:
    """The trace with every instruction replaced by what `change` makes of it."""

    def body(nodes: list[TraceNode]) -> list[TraceNode]:
        changed: list[TraceNode] = []
        for node in nodes:
            if isinstance(node, TraceLoop):
                changed.append(dataclasses.replace(node, body=body(node.body)))
            else:
                changed += change(node)
        return changed

    roles = [dataclasses.replace(role, body=body(role.body)) for role in trace.roles]
    return dataclasses.replace(trace, roles=roles)


@pytest.mark.parametrize("name", KERNELS)
def test_every_wave_accounts_for_its_whole_life(name: str) -> None:
    result = run_steps(kernel(name), 6)
    assert len(result.waves) == kernel(name).waves
    for wave in result.waves:
        assert wave.busy + sum(wave.stalls.values()) == pytest.approx(wave.end - wave.start)


@pytest.mark.parametrize("name", KERNELS)
def test_instructions_account_for_all_issue_and_stall_time(name: str) -> None:
    result = run_steps(kernel(name), 6)
    costs = result.instructions.values()
    issued = sum(i.issue for i in costs)
    assert issued == pytest.approx(sum(w.busy for w in result.waves))
    assert sum(i.hits for i in costs) * 4 == issued
    for cause in {cause for wave in result.waves for cause in wave.stalls}:
        by_instruction = sum(i.stalls.get(cause, 0.0) for i in costs)
        assert by_instruction == pytest.approx(
            sum(w.stalls.get(cause, 0.0) for w in result.waves)
        ), cause


@pytest.mark.parametrize("name", KERNELS)
def test_the_spans_of_a_wave_tile_its_life(name: str) -> None:
    result = run_steps(kernel(name), 4, keep_spans=True)
    for wave in result.waves:
        spans = [s for s in result.spans if s.wave == wave.wave]
        assert spans[0].start == wave.start
        assert spans[-1].end == wave.end
        assert all(earlier.end == later.start for earlier, later in pairwise(spans))
        assert sum(s.end - s.start for s in spans if not s.cause) == wave.busy


@pytest.mark.parametrize(
    ("name", "clk"),
    [("pingpong8", 36), ("pingpong8 gfx942", 32)],
)
def test_a_result_is_read_after_the_published_wait_states(name: str, clk: int) -> None:
    """gfx950 16x16x32 bf16: 8 wait states, 36 clk. gfx942 16x16x16: 7, 32 clk."""
    trace = kernel(name)
    flat = flat_instructions(trace)
    matrix = next(i for i in flat if i.unit == "mfma")
    reader = TraceInstruction("v_mov_b32", "valu", matrix.line, [], matrix.dst[:1])
    role = dataclasses.replace(trace.roles[0], waves=[0], body=[matrix, reader])
    alone = dataclasses.replace(trace, roles=[role], waves=1)
    result = ComputeUnit(alone, 1, lambda _: 0.0, keep_spans=True).run()
    first, second = (s.start for s in result.spans if not s.cause)
    assert second - first == clk


@pytest.mark.parametrize("name", KERNELS)
def test_a_k_step_takes_at_least_its_matrix_clocks(name: str) -> None:
    trace = kernel(name)
    assert steady_loop(trace).loop_clk >= trace.matrix_clocks


@pytest.mark.parametrize("name", KERNELS)
def test_the_matrix_pipes_work_exactly_as_long_as_the_trace_says(name: str) -> None:
    trace = kernel(name)
    short, long = (run_steps(trace, steps).matrix_busy for steps in (6, 9))
    assert long - short == 3 * 4 * trace.matrix_clocks


def test_four_wave_loop_is_within_3_percent_of_the_traced_one() -> None:
    """MI355X hipBLASLt 256x256x64, 4 waves: 2099 clk (thread trace)."""
    assert steady_loop(kernel("interleave4")).loop_clk == pytest.approx(2099, rel=0.03)


def test_ping_pong_of_gfx942_is_within_3_percent_of_the_traced_one() -> None:
    """MI325X 8-wave 256x256x64: median 4196 clk (thread trace)."""
    assert steady_loop(kernel("pingpong8 gfx942")).loop_clk == pytest.approx(4196, rel=0.03)


def test_ping_pong_hands_the_matrix_pipe_over_in_the_traced_time() -> None:
    """MI325X: 8-14 clk without matrix work between the clusters of a SIMD's two waves."""
    trace = kernel("pingpong8 gfx942")
    result = run_steps(trace, 8, keep_spans=True)
    clocks = {}
    offset = 0
    for role in trace.roles:
        for node in _flat(role.body):
            clocks[offset] = node.clocks if node.unit == "mfma" else 0
            offset += 1
    first = result.iteration_starts[0][4]
    issues = [
        s
        for s in result.spans
        if s.wave % 4 == 0 and not s.cause and clocks[s.key] and s.start > first
    ]
    issues.sort(key=lambda s: s.start)
    gaps = [
        later.start - earlier.start - clocks[earlier.key]
        for earlier, later in pairwise(issues)
        if earlier.wave != later.wave
    ]
    gaps = gaps[:-4]  # the last ones belong to the peeled steps
    assert gaps
    assert 8 <= sorted(gaps)[len(gaps) // 2] <= 14 + 4  # a SIMD is considered every 4 clk


def test_lds_reads_of_gfx942_reach_128_bytes_a_clock() -> None:
    """MI325X: four waves read a b64 each in 16 clk."""
    trace = only_reads(kernel("pingpong8 gfx942"))
    result = ComputeUnit(trace, 40, lambda _: 0.0).run()
    reads = sum(
        i.hits
        for key, i in result.instructions.items()
        if flat_instructions(trace)[key].unit == "lds"
    )
    spent = result.end
    assert reads * 512 / spent == pytest.approx(128, rel=0.1)


def only_reads(trace: KernelTrace) -> KernelTrace:
    """The trace with nothing but its LDS reads in the k-loop, one role, and nothing around it."""
    role = trace.roles[0]
    loop = next(n for n in role.body if isinstance(n, TraceLoop) and n.is_k_loop)
    reads: list[TraceNode] = [
        n for n in loop.body if isinstance(n, TraceInstruction) and n.unit == "lds" and n.dst
    ]
    body: list[TraceNode] = [TraceLoop(1, True, reads)]
    kept = dataclasses.replace(role, waves=[0, 1, 2, 3], body=body)
    return dataclasses.replace(trace, roles=[kept], waves=4)


def _flat(body: list[TraceNode]) -> list[TraceInstruction]:
    nodes: list[TraceInstruction] = []
    for node in body:
        nodes += _flat(node.body) if isinstance(node, TraceLoop) else [node]
    return nodes


def test_bank_conflicts_cost_time() -> None:
    def conflicting(i: TraceInstruction) -> list[TraceInstruction]:
        is_read = i.unit == "lds" and i.dst
        return [dataclasses.replace(i, conflict_clocks=7 * i.clocks) if is_read else i]

    trace = kernel("pingpong8")
    assert steady_loop(edit(trace, conflicting)).loop_clk > 1.2 * steady_loop(trace).loop_clk


def test_without_the_stagger_the_waves_of_a_simd_no_longer_take_turns() -> None:
    """Without the extra barriers both waves compute and both load at the same time."""
    trace = kernel("pingpong8")
    extra = {
        node.line
        for node in flat_instructions(trace)
        if node.unit == "barrier" and trace.lines[node.line].endswith("one barrier behind")
    }
    roles = []
    for role in trace.roles:
        barriers = [n for n in _flat(role.body) if n.unit == "barrier"]
        ends = {id(barriers[-1])} if 0 in role.waves else set()
        body = [
            n
            for n in role.body
            if isinstance(n, TraceLoop) or not (n.line in extra or id(n) in ends)
        ]
        roles.append(dataclasses.replace(role, body=body))
    aligned = dataclasses.replace(trace, roles=roles)
    assert steady_loop(aligned).loop_clk > 1.05 * steady_loop(trace).loop_clk


def test_waiting_for_every_load_at_once_lowers_the_latency_that_is_tolerated() -> None:
    def impatient(i: TraceInstruction) -> list[TraceInstruction]:
        return [dataclasses.replace(i, vm=0) if i.vm > 0 else i]

    trace = kernel("pingpong8")
    patient, hasty = steady_loop(trace), steady_loop(edit(trace, impatient))
    assert min(hasty.lead_clk) < min(patient.lead_clk)


@pytest.mark.parametrize("name", ["pingpong8", "interleave4", "specialized 12"])
def test_latency_within_the_lead_is_free_and_beyond_it_is_not(name: str) -> None:
    trace = kernel(name)
    steady = steady_loop(trace)

    def k_step(latency: float) -> float:
        return ComputeUnit(trace, 16, lambda _: latency).run().iteration_clk()

    lead = min(steady.lead_clk)
    assert k_step(0.9 * lead) == pytest.approx(steady.loop_clk, rel=0.02)
    assert k_step(lead + 600) > steady.loop_clk + 300


def test_specialization_loses_to_ping_pong_on_the_same_tile() -> None:
    """Matrix utilisation of a k-step: producers take issue slots and registers, not MFMA work."""
    used = {
        name: kernel(name).matrix_clocks / steady_loop(kernel(name)).loop_clk
        for name in ("pingpong8 192", "specialized 12", "specialized 8")
    }
    assert used["pingpong8 192"] > used["specialized 12"] > used["specialized 8"]


def test_the_same_trace_gives_the_same_result() -> None:
    def facts(result: CuResult) -> tuple[object, ...]:
        return result.waves, result.iteration_starts, result.slack

    trace = kernel("pingpong8")
    assert facts(run_steps(trace, 6)) == facts(run_steps(trace, 6))
