"""What a k-step of each schedule issues, counted in the traces, and conservation of the whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cdnasim.trace.model import (
    KernelTrace,
    TraceInstruction,
    TraceLoop,
    TraceNode,
    TraceRole,
    k_loops,
)
from hk_kernels import gemm
from hk_kernels.catalog import STEPS, gemm_trace
from hk_kernels.lower.trace import trace as read_trace
from hk_kernels.tile.dtypes import DTYPES
from hk_kernels.tile.expr import Expr
from hk_kernels.tile.language import Builder, Kernel, kernel, lower
from hk_kernels.tile.tiles import GlobalTensor

Step = Expr | int

CHUNK = 1024  # bytes of a 16 B load of 64 lanes


@dataclass(frozen=True)
class Case:
    """A kernel with the counts of a wave's k-step, where published or derived by hand."""

    schedule: str
    arch: str
    dtype: str
    tile: tuple[int, int, int]
    counts: dict[str, int] = field(default_factory=dict)
    producer: dict[str, int] = field(default_factory=dict)

    def trace(self) -> KernelTrace:
        return gemm_trace(self.schedule, self.arch, self.dtype, self.tile)

    def __str__(self) -> str:
        return f"{self.schedule}-{self.arch}-{self.dtype}-{'x'.join(map(str, self.tile))}"


MFMA_BF16, MFMA_FP8 = "v_mfma_f32_16x16x32_bf16", "v_mfma_f32_16x16x128_f8f6f4"
READ, LOAD = "ds_read_b128", "buffer_load_dwordx4"
# Published counts: HipKittens f09e968, the kernels that gemm.py names as its sources.
CASES = [
    Case(
        "pingpong8",
        "gfx950",
        "bf16",
        (256, 256, 64),
        {MFMA_BF16: 64, READ: 24, LOAD: 8, "s_barrier": 8, "s_setprio": 8},
    ),
    Case(
        "pingpong8",
        "gfx950",
        "fp8",
        (256, 256, 128),
        {MFMA_FP8: 32, READ: 24, LOAD: 8, "s_barrier": 8},
    ),
    # 192·256·64 / (16·16·32) / 8 waves; (96 + 64)·128 B; (192 + 256)·128 B / 8 waves
    Case(
        "pingpong8",
        "gfx950",
        "bf16",
        (192, 256, 64),
        {MFMA_BF16: 48, READ: 20, LOAD: 7, "s_barrier": 8},
    ),
    # a load of each half of A and B
    Case(
        "pingpong8",
        "gfx950",
        "bf16",
        (128, 128, 64),
        {MFMA_BF16: 16, READ: 12, LOAD: 4, "s_barrier": 8},
    ),
    Case(
        "pingpong8",
        "gfx942",
        "bf16",
        (256, 256, 64),
        {
            "v_mfma_f32_16x16x16_bf16": 128,
            "ds_read_b64": 48,
            "ds_write_b64": 16,
            LOAD: 8,
            "s_barrier": 8,
        },
    ),
    Case(
        "interleave4",
        "gfx950",
        "fp8",
        (256, 256, 128),
        {MFMA_FP8: 64, READ: 32, LOAD: 16, "s_barrier": 2},
    ),
    Case(
        "specialized:p=4,c=8",
        "gfx950",
        "bf16",
        (128, 256, 64),
        {MFMA_BF16: 32, READ: 16, LOAD: 0, "s_barrier": 1},
        {LOAD: 12, "s_barrier": 1, READ: 0, MFMA_BF16: 0},
    ),
    Case(
        "specialized:p=4,c=12",
        "gfx950",
        "bf16",
        (192, 256, 64),
        {MFMA_BF16: 32, READ: 16, LOAD: 0, "s_barrier": 1},
        {LOAD: 14, "s_barrier": 1, READ: 0, MFMA_BF16: 0},
    ),
]
MORE = [  # the relations hold for any tile
    Case("pingpong8", "gfx950", "bf16", (192, 128, 64)),
    Case("pingpong8", "gfx950", "bf16", (384, 128, 64)),
    Case("pingpong8", "gfx942", "fp16", (128, 64, 64)),
    Case("interleave4", "gfx950", "bf16", (256, 256, 64)),
    Case("specialized:p=2,c=4,stages=3", "gfx950", "fp8", (64, 128, 128)),
]
ALL = CASES + MORE


def instructions(body: list[TraceNode], *, times: bool) -> Iterator[TraceInstruction]:
    """All instructions; with `times`, those of loops as often as they run."""
    for node in body:
        if isinstance(node, TraceLoop):
            for _ in range(node.count if times else 1):
                yield from instructions(node.body, times=times)
        else:
            yield node


def k_loop(role: TraceRole) -> TraceLoop:
    loops = [n for n in role.body if isinstance(n, TraceLoop) and n.is_k_loop]
    assert len(loops) == 1
    return loops[0]


def flops(mnemonic: str) -> int:
    shape = re.match(r"v_mfma_f32_(\d+)x(\d+)x(\d+)_", mnemonic)
    assert shape
    m, n, k = map(int, shape.groups())
    return 2 * m * n * k


@pytest.mark.parametrize("case", CASES, ids=str)
def test_instructions_of_a_k_step(case: Case) -> None:
    roles = case.trace().roles  # producers first
    wanted = [case.producer, case.counts] if case.producer else [case.counts] * len(roles)
    for role, counts in zip(roles, wanted, strict=True):
        found = Counter(i.mnemonic for i in k_loops(role.body)[0].body)
        assert {name: found.get(name, 0) for name in counts} == counts


@pytest.mark.parametrize("case", ALL, ids=str)
def test_flops_of_a_k_step_and_of_the_whole(case: Case) -> None:
    trace = case.trace()
    bm, bn, bk = case.tile
    step, whole, clocks = 0, 0, 0
    for role in trace.roles:
        waves = len(role.waves)
        for i in instructions(k_loop(role).body, times=False):
            if i.unit == "mfma":
                step += waves * flops(i.mnemonic)
                clocks += waves * i.clocks
        whole += waves * sum(
            flops(i.mnemonic) for i in instructions(role.body, times=True) if i.unit == "mfma"
        )
    assert step == 2 * bm * bn * bk
    assert whole == 2 * bm * bn * bk * STEPS
    assert trace.matrix_clocks == clocks // 4


@pytest.mark.parametrize("case", ALL, ids=str)
def test_bytes_loaded_and_stored(case: Case) -> None:
    trace = case.trace()
    bm, bn, bk = case.tile
    element = DTYPES[case.dtype].bytes
    step, whole, stored = [0, 0], [0, 0], 0
    for role in trace.roles:
        waves = len(role.waves)
        for i in instructions(k_loop(role).body, times=False):
            if i.operand >= 0:
                assert i.bytes == CHUNK
                step[i.operand] += waves * i.bytes
        for i in instructions(role.body, times=True):
            if i.operand >= 0:
                whole[i.operand] += waves * i.bytes
            elif i.unit == "vmem":
                stored += waves * i.bytes
    assert [o.tensor for o in trace.operands] == ["A", "B"]
    assert [o.axis for o in trace.operands] == ["row", "column"]
    assert step == [o.slab_bytes for o in trace.operands] == [bm * bk * element, bn * bk * element]
    assert whole == [STEPS * slab for slab in step]  # nothing is loaded twice or in vain
    assert [o.piece_bytes for o in trace.operands] == [bk * element] * 2
    assert stored == trace.store_bytes == bm * bn * 2


@pytest.mark.parametrize("case", ALL, ids=str)
def test_lds_reads_are_the_wave_tiles_of_both_operands(case: Case) -> None:
    """Every wave reads its rows of A and its columns of B once a k-step, and no more."""
    trace = case.trace()
    bm, bn, bk = case.tile
    down, across = (2, 2) if case.schedule == "interleave4" else (2, 4)
    if case.schedule.startswith("specialized"):
        down = int(case.schedule.split("c=")[1].split(",")[0]) // 4
    wanted = (bm // down + bn // across) * bk * DTYPES[case.dtype].bytes
    for role in trace.roles:
        body = list(instructions(k_loop(role).body, times=False))
        read = sum(i.bytes for i in body if i.unit == "lds" and i.dst)
        assert read == (wanted if any(i.unit == "mfma" for i in body) else 0)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_all_waves_pass_the_same_number_of_barriers(case: Case) -> None:
    trace = case.trace()
    assert sorted(w for role in trace.roles for w in role.waves) == list(range(trace.waves))
    counts = {
        sum(i.unit == "barrier" for i in instructions(role.body, times=True))
        for role in trace.roles
    }
    assert len(counts) == 1


@pytest.mark.parametrize("case", ALL, ids=str)
def test_each_line_is_a_line_of_the_definition(case: Case) -> None:
    trace = case.trace()
    assert all(line.startswith("gemm.py:") for line in trace.lines)
    used = {i.line for role in trace.roles for i in instructions(role.body, times=False)}
    assert used == set(range(len(trace.lines)))
    loads = {
        trace.lines[i.line]
        for role in trace.roles
        for i in instructions(role.body, times=False)
        if i.operand >= 0
    }
    assert all("k.load_" in line for line in loads)


def leads(schedule: str, arch: str, dtype: str, tile: tuple[int, int, int]) -> list[float]:
    return [o.lead for o in gemm_trace(schedule, arch, dtype, tile).operands]


def test_leads_of_the_published_waits() -> None:
    # A1 of the next step is loaded in the first of four clusters and waited for in the last; the
    # second half of B is loaded just before that wait, which the next step's covers.
    assert leads("pingpong8", "gfx950", "bf16", (256, 256, 64)) == [0.75, 1.0]
    assert leads("pingpong8", "gfx950", "fp8", (256, 256, 128)) == [0.75, 1.0]
    # A as a whole is loaded where the second half of B is
    assert leads("pingpong8", "gfx950", "bf16", (192, 256, 64)) == [1.0, 1.0]
    # loaded in the first of four clusters, waited for before the last
    assert leads("pingpong8", "gfx942", "bf16", (256, 256, 64)) == [0.75, 0.75]
    # the youngest load ends its cluster; the same place of the next step waits for it
    assert leads("interleave4", "gfx950", "fp8", (256, 256, 128)) == [1.0, 1.0]
    # producers wait for all they load in the k-step
    assert leads("specialized:p=4,c=8", "gfx950", "bf16", (128, 256, 64)) == [1.0, 1.0]


def ahead(steps: int) -> KernelTrace:
    """A kernel that loads both operands `steps` k-steps ahead, just before the wait."""

    @kernel(waves=4, waves_per_simd=1)
    def pipeline(k: Builder, A: GlobalTensor, B: GlobalTensor, C: GlobalTensor) -> None:
        k.output_tile(C, 32, 32, 64)
        As, Bs = (k.shared(x.dtype, 32, 64, buffers=(steps + 1,)) for x in (A, B))
        a, b = k.registers(A.dtype, 32, 64), k.registers(B.dtype, 32, 64)
        acc = k.accumulators(A.dtype, 32, 32)

        def fetch(t: Step) -> None:
            k.load_async(As[t % (steps + 1)], A.tile(0, t * 64, 32, 64))
            k.load_async(Bs[t % (steps + 1)], B.tile(0, t * 64, 32, 64))

        k.zero(acc)
        for t in range(steps):
            fetch(t)
        for t in k.loop(A.cols // 64 - steps):
            fetch(t + steps)
            k.wait(vm=steps * (k.loads(As[0]) + k.loads(Bs[0])))
            k.barrier()
            k.load(a, As[t % (steps + 1)])
            k.load(b, Bs[t % (steps + 1)])
            k.wait(lgkm=0)
            k.mma_ABt(acc, a, b)
            k.barrier()

    return read_trace(lower(pipeline, "gfx950", 32, 32, 64 * 12))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_leads_of_a_pipeline_are_its_depth(steps: int) -> None:
    assert [o.lead for o in ahead(steps).operands] == [steps, steps]


def test_clusters_of_a_simd() -> None:
    """Runs of MFMA between barriers of the two waves, one wave, or two consumers of a SIMD."""
    found = {str(case): case.trace().clusters for case in CASES}
    assert found["pingpong8-gfx950-bf16-256x256x64"] == 8
    assert found["interleave4-gfx950-fp8-256x256x128"] == 2
    assert found["specialized:p=4,c=8-gfx950-bf16-128x256x64"] == 2
    assert found["specialized:p=4,c=12-gfx950-bf16-192x256x64"] == 3


def test_both_readings_of_parameters(small_program: Any) -> None:
    """A trace keeps what was asked for; the kernel's own defaults fill in the rest."""
    trace = gemm_trace("specialized:c=8", "gfx950", "bf16", (128, 256, 64))
    wanted = {"bm": 128, "bn": 256, "bk": 64, "p": 4, "c": 8, "stages": 2}
    assert trace.parameters == wanted
    program = small_program("specialized")
    assert program.parameters == wanted | {"bn": 64, "bm": 64}
    assert isinstance(gemm.specialized, Kernel)
    assert gemm.specialized.parameters() == wanted
