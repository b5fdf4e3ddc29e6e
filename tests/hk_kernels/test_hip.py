"""The HIP reading: every schedule compiles to the instructions that were traced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from cdnasim.errors import InputError
from hk_kernels.catalog import GEMM_SCHEDULES, gemm_program
from hk_kernels.lower.addresses import Space, bounds, simplify, split
from hk_kernels.lower.hip import AMD, accesses, hip_source
from hk_kernels.lower.program import Instruction, Loop, Only, Program, walk
from hk_kernels.lower.registers import steady_loop
from hk_kernels.lower.target import MFMA_SHAPES
from hk_kernels.native.compare import IsaComparison, compare_isa, traced_family
from hk_kernels.native.compile import compile_assembly
from hk_kernels.tile.expr import Constant, Expr, Symbol
from hk_kernels.tile.language import Builder, kernel, lower
from hk_kernels.tile.tiles import GlobalTensor

TILES = {"specialized": (128, 256)}  # others: 256 x 256
DEPTH = {"bf16": 64, "fp16": 64, "fp8": 128}  # elements of 128 B
Case = tuple[str, str, str, tuple[int, int, int]]
DEFAULT: list[Case] = [
    (name, arch, dtype, (*TILES.get(name, (256, 256)), DEPTH[dtype]))
    for name, entry in GEMM_SCHEDULES.items()
    for arch in entry.kernels
    if arch in AMD
    for a, dtype in MFMA_SHAPES
    if a == arch
]
VARIANTS: list[Case] = [
    ("pingpong8", "gfx950", "bf16", (192, 256, 64)),
    ("pingpong8", "gfx950", "bf16", (128, 128, 64)),
    ("pingpong8:stagger=0,setprio=0,swizzle=0,inflight=0", "gfx950", "bf16", (256, 256, 64)),
    ("kslices8:mfma=16", "gfx950", "bf16", (256, 256, 64)),
    ("specialized:p=4,c=12", "gfx950", "bf16", (192, 256, 64)),
    ("specialized:p=2,c=4,stages=3", "gfx950", "fp8", (64, 128, 128)),
]
every_case = pytest.mark.parametrize(
    "case", DEFAULT + VARIANTS, ids=lambda c: "-".join(map(str, c))
)


@cache
def program_of(case: Case) -> Program:
    return gemm_program(*case, grid=(3, 5))


@cache
def source_of(case: Case) -> str:
    return hip_source(program_of(case))


@cache
def compared(case: Case) -> IsaComparison:
    return compare_isa(program_of(case), compile_assembly(source_of(case), case[1]))


@every_case
def test_compiled_k_steps_are_as_traced(case: Case) -> None:
    found = compared(case)
    assert found.differences() == []
    assert found.is_equal
    assert [role.waves for role in found.roles] == program_of(case).roles()
    for role in found.roles:
        traced = steady_loop(program_of(case).of_wave(role.waves[0])).body
        counts = Counter(traced_family(i) for i in traced if isinstance(i, Instruction))
        assert role.compiled == {family: counts[family] for family in role.compiled}
        assert role.compiled["barrier"] == counts["barrier"] > 0
        assert not {"accvgpr", "scratch", "wait", "smem", "other"} & role.extras.keys()


@every_case
def test_nothing_spills_and_the_registers_are_about_those_predicted(case: Case) -> None:
    found = compared(case)
    r = found.resources
    assert (r.vgpr_spills, r.sgpr_spills, r.scratch_bytes) == (0, 0, 0)
    assert r.lds_bytes == program_of(case).lds_bytes
    needed = found.vgprs + found.agprs
    # a compiler takes registers beside those alive; kslices8:mfma=16 has most of them
    assert needed - 8 < r.vgprs + r.agprs <= needed + 64
    assert bool(r.agprs) == bool(found.agprs)


@pytest.mark.parametrize(
    "case", [("pingpong8", "gfx942", "bf16", (256, 256, 64)), VARIANTS[1]], ids=lambda c: c[1]
)
def test_intrinsics_give_the_same_for_compilers_without_the_builtins(case: Case) -> None:
    source = "#define BUFFER_INTRINSICS\n" + source_of(case)
    found = compare_isa(program_of(case), compile_assembly(source, case[1]))
    assert found.differences() == []
    assert found.resources.scratch_bytes == 0


def test_what_is_predicted_to_spill_does() -> None:
    case = ("specialized", "gfx950", "bf16", (256, 256, 64))
    with pytest.raises(InputError, match=r"10 of 128 accumulator registers .* would spill"):
        gemm_program(*case)
    program = gemm_program(*case, allow_spills=True)
    found = compare_isa(program, compile_assembly(hip_source(program), "gfx950"))
    assert found.is_equal  # what was traced is there all the same
    assert found.resources.vgprs == 168  # of 512 for three waves
    assert found.resources.vgpr_spills >= 10
    producer, consumer = found.roles
    assert "scratch" not in producer.extras
    assert consumer.extras["scratch"] > 0


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        (r"hold\(acc.*", "not in the traced order"),
        (r"(?:hold\(acc.*|arrived\([ab].*|fence\(\);)", "before its registers are read from LDS"),
    ],
)
def test_what_keeps_the_order_is_needed(left_out: str, message: str) -> None:
    """Without these statements, which are no instructions, the comparison shows why they exist."""
    case = next(case for case in DEFAULT if case[0] == "interleave4" and case[2] == "fp8")
    source = re.sub(rf"^ +{left_out}\n", "", source_of(case), flags=re.MULTILINE)
    assert source != source_of(case)
    found = compare_isa(program_of(case), compile_assembly(source, case[1]))
    assert any(message in line for line in found.differences())


@every_case
def test_each_traced_instruction_is_one_statement(case: Case) -> None:
    source = source_of(case)
    body = source[source.index('extern "C"') :]
    statements = Counter(re.findall(r"^\s+(?:\S+ = )?(\w+)(?:<.*?>)?\(", body, re.MULTILINE))
    traced = [i for i in walk(program_of(case).body) if isinstance(i, Instruction)]
    units = Counter(i.unit for i in traced)
    assert sum(n for name, n in statements.items() if name.startswith("mfma_")) == units["mfma"]
    assert sum(n for name, n in statements.items() if name.startswith("ds_")) == units["lds"]
    names = ("load_to_lds", "load", "store_low", "store_high")
    assert sum(statements[name] for name in names) == units["vmem"]
    assert statements["wait"] == units["wait"]
    assert statements["barrier"] == units["barrier"]
    loops = sum(isinstance(node, Loop) for node in walk(program_of(case).body))
    assert body.count("#pragma clang loop unroll(disable)") == body.count("for (") == loops


def test_source_names_the_lines_of_the_definition() -> None:
    case = DEFAULT[0]
    comments = re.findall(r"// (gemm\.py:\d+: .*)", source_of(case))
    nodes = list(walk(program_of(case).body))
    units = ("mfma", "lds", "vmem", "wait", "barrier", "valu")
    printed = [n for n in nodes if not isinstance(n, Instruction) or n.unit in units]
    assert {str(node.line) for node in printed} <= set(comments)
    assert all(a != b for a, b in pairwise(comments))


def test_lane_addresses_are_made_before_the_loop() -> None:
    for case in DEFAULT:
        source = source_of(case)
        for loop in re.findall(r"for \(u32 t\d.*?\n    (?:    )?}", source, re.DOTALL):
            assert not re.search(r"\blane\b", loop)


@pytest.mark.parametrize("case", DEFAULT, ids=lambda c: "-".join(map(str, c)))
def test_addresses_split_without_a_change(case: Case) -> None:
    """For all lanes, waves and values of the loop variables and tiles."""
    program = program_of(case)
    loops = {n.variable: (0, n.count - 1) for n in walk(program.body) if isinstance(n, Loop)}
    ranges = {"tile_row": (0, 2), "tile_col": (0, 4), **loops}
    waves_of = {}
    for role in program.roles():
        for node in walk(program.of_wave(role[0])):
            waves_of.setdefault(id(node), []).extend(role)
    for i in walk(program.body):
        if isinstance(i, Instruction):
            waves = tuple(sorted(waves_of.get(id(i), ())))
            for expr in accesses(i):
                check_split(expr, Space(waves, ranges))


def check_split(expr: Expr, space: Space) -> None:
    address = split(expr, space)
    assert address is not None
    assert address.lane.symbols() <= {"lane", "wave"}
    assert not address.uniform.symbols() & {"lane", "wave"}
    moving = sorted(expr.symbols() - {"lane", "wave"})
    grids = np.meshgrid(
        np.arange(64), space.waves, *(np.arange(space.ranges[n][1] + 1) for n in moving)
    )
    env = dict(zip(["lane", "wave", *moving], grids, strict=True))
    parts = address.lane.evaluate(env) + address.uniform.evaluate(env) + address.constant
    assert (parts == expr.evaluate(env)).all()


LANE, WAVE, T = Symbol("lane"), Symbol("wave"), Symbol("t0")
EXPRESSIONS: list[Expr] = [
    (LANE * 16 + 2048) // 64,
    (LANE * 16 + WAVE * 1024 + 4096) % 2048,
    (LANE * 16) ^ (((LANE * 16) % 1024 >> 9) << 5),
    ((T + 1) % 2 * 32768 + LANE) // 4 % 8,
    (WAVE + 8) // 4 * 16 + (WAVE + 8) % 4,
    (WAVE - 4) // 4 + (WAVE - 4) % 4 * 16,
    (LANE < 32) + WAVE.equals(5) * 4,
    (LANE & 7) * 3 - LANE % 8,
    LANE * WAVE + (LANE << 3) * 2,
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=lambda e: e.cpp())
def test_simplified_expressions_are_equal_and_within_bounds(expr: Expr) -> None:
    ranges = {"lane": (0, 63), "wave": (4, 11), "t0": (0, 5)}
    lane, wave, t = np.meshgrid(np.arange(64), np.arange(4, 12), np.arange(6))
    env = {"lane": lane, "wave": wave, "t0": t}
    wanted = np.broadcast_to(expr.evaluate(env), lane.shape)
    short = simplify(expr, ranges)
    assert (np.asarray(short.evaluate(env)) == wanted).all()
    least, most = bounds(short, ranges)
    assert least <= wanted.min() <= wanted.max() <= most
    at = simplify(expr, ranges, {"t0": 3, "wave": 6})
    assert at.symbols() <= {"lane"}
    chosen = (t == 3) & (wave == 6)
    found = np.broadcast_to(np.asarray(at.evaluate({"lane": lane})), lane.shape)
    assert (found[chosen] == wanted[chosen]).all()


def test_simplified_expressions_are_short() -> None:
    ranges = {"lane": (0, 63), "wave": (0, 7)}
    assert simplify((LANE % 16 // 16 + WAVE * 4) * 16 + 3 - 3, ranges).cpp() == "wave * 64"
    assert simplify((WAVE * 64 + LANE) // 64, ranges).cpp() == "wave"
    assert isinstance(simplify(LANE // 64, ranges), Constant)


def test_addresses_that_do_not_separate_are_left_whole() -> None:
    space = Space((0, 1), {"t0": (0, 5)})
    assert split((LANE + T) % 64, space) is None
    assert split(LANE * 4 + T * 8 + 12, space) is not None


def test_tensors_beyond_a_buffer_are_refused() -> None:
    program = program_of(DEFAULT[0])
    first, *rest = program.tensors
    large = replace(program, tensors=(replace(first, rows=1 << 26), *rest))
    with pytest.raises(InputError, match=r"^pingpong8: tensor A has \d+ B, a buffer at most 4294"):
        hip_source(large)


def test_other_targets_are_refused() -> None:
    program = replace(program_of(DEFAULT[0]), arch="gfx1100")
    with pytest.raises(InputError, match=r"^gfx1100 has no HIP reading; allowed: gfx950, gfx942"):
        hip_source(program)


def test_instructions_without_a_reading_name_their_line() -> None:
    program = program_of(DEFAULT[0])
    strange = next(i for i in walk(program.body) if isinstance(i, Instruction))
    body = [replace(strange, mnemonic="v_sin_f32"), *program.body]
    with pytest.raises(InputError, match=r"^gemm\.py:\d+: .*: v_sin_f32 has no HIP reading$"):
        hip_source(replace(program, body=body))


@kernel(waves=4, waves_per_simd=1)
def vector_operations(k: Builder, A: GlobalTensor, B: GlobalTensor, C: GlobalTensor) -> None:
    """Every elementwise operation, an inner loop and a role inside a loop."""
    row, col = k.output_tile(C, 64, 64, 32)
    As, Bs = (k.shared(x.dtype, 64, 32, buffers=(2,)) for x in (A, B))
    a, b = k.registers(A.dtype, 64, 32), k.registers(B.dtype, 64, 32)
    acc = k.accumulators(A.dtype, 64, 64)
    most, total = k.rows(acc), k.rows(acc)
    k.zero(acc)
    for t in k.loop(A.cols // 32):
        with k.only(k.wave < 2):
            k.load_async(As[t % 2], A.tile(row * 64, t * 32, 64, 32), waves=(0, 2))
        with k.only(k.wave >= 2):
            k.load_async(Bs[t % 2], B.tile(col * 64, t * 32, 64, 32), waves=(2, 2))
        k.wait(vm=0)
        k.barrier()
        k.load(a, As[t % 2])
        k.load(b, Bs[t % 2])
        k.wait(lgkm=0)
        k.mma_ABt(acc, a, b)
        k.barrier()
    k.row_max(most, acc)
    k.sub(acc, acc, most)
    k.exp2(acc, acc)
    k.row_sum(total, acc)
    k.reciprocal(total, total)
    k.mul(acc, acc, total)
    k.add(acc, acc, acc)
    k.max(acc, acc, acc)
    k.store(C.tile(row * 64, col * 64, 64, 64), acc)


def test_vector_operations_compile() -> None:
    program = lower(vector_operations, "gfx950", 64, 64, 256)
    assert any(isinstance(node, Only) for node in walk(program.body))
    assembly = compile_assembly(hip_source(program), "gfx950")
    for mnemonic in ("v_exp_f32", "v_rcp_f32", "v_max_f32", "row_ror:8", "v_cvt_pk_bf16_f32"):
        assert mnemonic in assembly
    assert assembly.count("buffer_load_dwordx4") == 4


def test_small_programs_compile_as_traced(small_program: Callable[..., Any]) -> None:
    for name, steps in product(("pingpong8_whole", "interleave4", "pingpong8_registers"), (8,)):
        program = small_program(name, steps)
        assembly = compile_assembly(hip_source(program), program.arch)
        assert compare_isa(program, assembly).differences() == []
