"""The compute unit against traced loops, and what must always hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import pytest

from cdnasim.cu.model import ComputeUnit, CuResult
from cdnasim.cu.profile import CuProfile, cu_profile, resident_workgroups, run_steps
from cdnasim.errors import InputError
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


def lead(found: CuProfile) -> float:
    """The latency that delays no operand."""
    return min(t.lead_clk for t in found.tolerance)


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
    result = ComputeUnit(alone, alone.k_steps, lambda _: 0.0, keep_spans=True).run()
    first, second = (s.start for s in result.spans if not s.cause)
    assert second - first == clk


@pytest.mark.parametrize("name", KERNELS)
def test_a_k_step_takes_at_least_its_matrix_clocks(name: str) -> None:
    trace = kernel(name)
    assert cu_profile(trace).loop_clk[0] >= trace.matrix_clocks


@pytest.mark.parametrize("name", KERNELS)
def test_the_matrix_pipes_work_exactly_as_long_as_the_trace_says(name: str) -> None:
    trace = kernel(name)
    short, long = (run_steps(trace, steps).matrix_busy for steps in (6, 9))
    assert long - short == 3 * 4 * trace.matrix_clocks


def test_four_wave_loop_is_within_3_percent_of_the_traced_one() -> None:
    """MI355X hipBLASLt 256x256x64, 4 waves: 2099 clk (thread trace)."""
    assert cu_profile(kernel("interleave4")).loop_clk[0] == pytest.approx(2099, rel=0.03)


def test_ping_pong_of_gfx942_is_within_3_percent_of_the_traced_one() -> None:
    """MI325X 8-wave 256x256x64: median 4196 clk (thread trace)."""
    assert cu_profile(kernel("pingpong8 gfx942")).loop_clk[0] == pytest.approx(4196, rel=0.03)


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
    changed, usual = (cu_profile(t).loop_clk[0] for t in (edit(trace, conflicting), trace))
    assert changed > 1.2 * usual


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
    assert cu_profile(aligned).loop_clk[0] > 1.05 * cu_profile(trace).loop_clk[0]


def test_waiting_for_every_load_at_once_lowers_the_latency_that_is_tolerated() -> None:
    def impatient(i: TraceInstruction) -> list[TraceInstruction]:
        return [dataclasses.replace(i, vm=0) if i.vm > 0 else i]

    trace = kernel("pingpong8")
    patient, hasty = cu_profile(trace), cu_profile(edit(trace, impatient))
    assert lead(hasty) < lead(patient)


@pytest.mark.parametrize("name", KERNELS)
def test_a_late_load_costs_what_the_tolerance_says(name: str) -> None:
    """The chip model's k-step under latency against the replay of every instruction with it."""
    trace = kernel(name)
    found = cu_profile(trace)
    for latency in (0.5, 0.9, 1.3, 2.0):
        clk = latency * lead(found)
        replayed = ComputeUnit(trace, 20, lambda _, clk=clk: clk).run().iteration_clk()
        late = max(max(0.0, clk - t.lead_clk) / t.ahead for t in found.tolerance)
        assert found.loop_clk[0] + late == pytest.approx(replayed, rel=0.05)


def test_specialization_loses_to_ping_pong_on_the_same_tile() -> None:
    """Matrix utilisation of a k-step: producers take issue slots and registers, not MFMA work."""
    used = {
        name: kernel(name).matrix_clocks / cu_profile(kernel(name)).loop_clk[0]
        for name in ("pingpong8 192", "specialized 12", "specialized 8")
    }
    assert used["pingpong8 192"] > used["specialized 12"] > used["specialized 8"]


def test_a_third_stage_lets_producers_run_a_k_step_further_ahead() -> None:
    two, three = (
        cu_profile(gemm_trace(f"specialized:p=4,c=8,stages={n}", "gfx950", "bf16", (128, 256, 64)))
        for n in (2, 3)
    )
    assert three.loop_clk[0] == pytest.approx(two.loop_clk[0], rel=0.01)
    for early, earlier in zip(two.tolerance, three.tolerance, strict=True):
        assert earlier.lead_clk == pytest.approx(early.lead_clk + two.loop_clk[0], rel=0.02)


def test_the_same_trace_gives_the_same_result() -> None:
    def facts(result: CuResult) -> tuple[object, ...]:
        return result.waves, result.iteration_starts, result.instructions

    trace = kernel("pingpong8")
    assert facts(run_steps(trace, 6)) == facts(run_steps(trace, 6))


def alone(trace: KernelTrace, body: list[TraceNode], waves: list[int]) -> KernelTrace:
    """The trace with one role that does `body` only."""
    role = dataclasses.replace(trace.roles[0], waves=waves, body=body)
    return dataclasses.replace(trace, roles=[role], waves=len(waves))


def valu(mnemonic: str, unit: str = "valu") -> TraceInstruction:
    return TraceInstruction(mnemonic, unit, 0, [], [])


def one_run(trace: KernelTrace, **options: bool) -> CuResult:
    return ComputeUnit(trace, trace.k_steps, lambda _: 0.0, keep_spans=True, **options).run()


def issues(result: CuResult) -> list[float]:
    return [s.start for s in result.spans if not s.cause]


def test_a_matrix_instruction_hides_three_vector_operations_and_no_more() -> None:
    """MI308X (PyHIP): three fit under a 16 clk MFMA, a fourth adds 4 clk."""
    trace = kernel("pingpong8 gfx942")
    matrix = next(i for i in flat_instructions(trace) if i.unit == "mfma")
    assert matrix.clocks == 16
    for between, clk in ((3, 16), (4, 20)):
        body: list[TraceNode] = [matrix, *[valu("v_add_f32")] * between, matrix]
        found = issues(one_run(alone(trace, body, [0])))
        assert found[-1] - found[0] == clk


@pytest.mark.parametrize(("arch", "clk"), [("pingpong8 gfx942", 20), ("pingpong8", 16)])
def test_a_transcendental_runs_beside_a_matrix_instruction(arch: str, clk: int) -> None:
    """MI308X (PyHIP): MFMA and v_exp_f32 (16 clk) take 20 clk; gfx950's takes half: 4 + 8 < 16."""
    trace = kernel(arch)
    matrix = next(i for i in flat_instructions(trace) if i.unit == "mfma")
    found = issues(one_run(alone(trace, [matrix, valu("v_exp_f32"), matrix], [0])))
    assert found[-1] - found[0] == clk


def test_a_packed_operation_waits_for_the_matrix_pipe() -> None:
    """MI308X (PyHIP): 12 clk more behind a 16 clk MFMA."""
    trace = kernel("pingpong8 gfx942")
    matrix = next(i for i in flat_instructions(trace) if i.unit == "mfma")
    found = issues(one_run(alone(trace, [matrix, valu("v_pk_fma_f32"), matrix], [0])))
    assert found[-1] - found[0] == 16 + 12


def test_scalar_loads_take_the_traced_clocks() -> None:
    """MI355X elementwise trace: 40-44 clk warm, 740-896 cold."""
    trace = kernel("pingpong8")
    entry = trace.roles[0].body[:2]
    assert [n.unit for n in entry if isinstance(n, TraceInstruction)] == ["smem", "wait"]
    warm, cold = (one_run(alone(trace, entry, [0]), is_cold=c).end for c in (False, True))
    assert 40 <= warm - 4 <= 44
    assert 740 <= cold - 4 - 305 <= 896  # the first instructions come from the L2


def test_a_barrier_costs_the_traced_clocks() -> None:
    """MI325X timeline: both waves go on 8 clk after the last one's barrier; MI355X 11-15 on mean
    for four waves, which reach it up to 4 clk apart."""
    trace = kernel("pingpong8")
    barrier = TraceInstruction("s_barrier", "barrier", 0, [], [])
    after = valu("v_mov_b32")
    result = one_run(alone(trace, [barrier, after], [0, 1, 2, 3]))
    starts = [s.start for s in result.spans if not s.cause]
    first, last = starts[:4], starts[4:]
    assert all(8 <= end - begin <= 15 for begin, end in zip(first, last, strict=True))


def test_with_cold_caches_each_line_is_fetched_once() -> None:
    trace = kernel("pingpong8")
    warm, cold = (run_steps(trace, 12, is_cold=c) for c in (False, True))
    assert cold.end > warm.end
    fetches = sum(w.stalls.get("instruction fetch", 0.0) for w in cold.waves)
    assert fetches > 0
    # The loop is in the cache after its first turn.
    assert cold.iteration_clk() == pytest.approx(warm.iteration_clk(), rel=0.01)


def test_an_unknown_instruction_is_refused_or_taken_at_its_worst_and_named() -> None:
    trace = kernel("pingpong8")
    strange = alone(trace, [valu("v_strange_f32"), valu("v_mov_b32")], [0])
    with pytest.raises(InputError, match=r"'v_strange_f32' is unknown .*--assume-unknown takes 64"):
        one_run(strange)
    result = one_run(strange, assume_unknown=True)
    assert result.assumed == {"v_strange_f32": 64}
    assert issues(result) == [0, 64]
    scalar = alone(trace, [valu("s_strange", "salu"), valu("s_mov_b32", "salu")], [0])
    assert issues(one_run(scalar, assume_unknown=True)) == [0, 64]


@pytest.mark.parametrize("name", ["specialized 8", "pingpong8"])
def test_two_workgroups_share_the_units(name: str) -> None:
    trace = kernel(name)
    single, double = (run_steps(trace, 12, workgroups=n) for n in (1, 2))
    assert len(double.waves) == 2 * len(single.waves)
    assert double.matrix_busy == 2 * single.matrix_busy
    assert single.iteration_clk() < double.iteration_clk() <= 2.05 * single.iteration_clk()
    for wave in double.waves:
        assert wave.busy + sum(wave.stalls.values()) == pytest.approx(wave.end - wave.start)


def test_workgroups_side_by_side_hide_each_others_waits() -> None:
    """Two need less than twice the time of one, and no less than their matrix work."""
    trace = gemm_trace("pingpong8", "gfx950", "bf16", (128, 128, 64))
    one, two = cu_profile(trace, 2).loop_clk
    assert 2 * trace.matrix_clocks <= two < 2 * one


def test_lds_and_registers_limit_the_workgroups_of_a_cu() -> None:
    small = gemm_trace("pingpong8", "gfx950", "bf16", (128, 128, 64))
    assert small.lds_bytes == 65536
    assert resident_workgroups(small, 163840) == 2
    assert resident_workgroups(small, 65536) == 1
    assert resident_workgroups(small, 65535) == 0
    assert resident_workgroups(kernel("pingpong8"), 2**30) == 1  # two waves of 256 registers


def test_priority_keeps_the_matrix_pipe_fed_when_the_other_wave_has_vector_work() -> None:
    """s_setprio around the MFMAs: what it is for. The memory wave's VALU work must stand back."""
    trace = kernel("pingpong8")
    matrix = next(i for i in flat_instructions(trace) if i.unit == "mfma")
    raise_it = dataclasses.replace(valu("s_setprio", "salu"), value=1)
    vector: list[TraceNode] = [valu("v_exp_f32")] * 60
    matrices: list[TraceNode] = [matrix] * 32

    def matrix_time(first: list[TraceNode]) -> float:
        roles = [
            dataclasses.replace(trace.roles[0], waves=[0], body=vector),
            dataclasses.replace(trace.roles[0], waves=[4], body=[*first, *matrices]),
        ]
        result = one_run(dataclasses.replace(trace, roles=roles, waves=8))
        return max(w.end for w in result.waves if w.wave == 4)

    assert matrix_time([raise_it]) < matrix_time([])


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_what_the_schedule_options_do(arch: str) -> None:
    """Published directions: no stagger and no swizzle cost time."""

    def k_step(options: str) -> float:
        trace = gemm_trace(f"pingpong8{options}", arch, "bf16", (256, 256, 64))
        return run_steps(trace, 12).iteration_clk()

    usual = k_step("")
    assert k_step(":stagger=0") > 1.2 * usual
    assert k_step(":swizzle=0") > 1.1 * usual


def test_a_wait_that_leaves_fewer_loads_in_flight_tolerates_less_latency() -> None:
    leads = [
        lead(cu_profile(gemm_trace(f"pingpong8:inflight={n}", "gfx950", "bf16", (256, 256, 64))))
        for n in (3, 2, 1, 0)
    ]
    assert leads == sorted(leads, reverse=True)
    assert leads[-1] < 0.2 * leads[0]


def test_spills_cost_time() -> None:
    trace = gemm_trace("specialized:p=4,c=8", "gfx950", "bf16", (256, 256, 64), "compiler")
    scratch = [i for i in flat_instructions(trace) if i.mnemonic.startswith("scratch")]
    assert scratch
    clean = edit(trace, lambda i: [] if i in scratch else [i])
    assert run_steps(trace, 12).iteration_clk() > 1.5 * run_steps(clean, 12).iteration_clk()


@pytest.mark.parametrize("name", KERNELS)
def test_the_compiler_adds_nothing_where_the_registers_fit(name: str) -> None:
    schedule, arch, dtype, tile = KERNELS[name]
    assert gemm_trace(schedule, arch, dtype, tile, "compiler") == kernel(name)
