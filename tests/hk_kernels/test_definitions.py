"""What a definition may not do: refused in one line that names its line. Gaps are listed last."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from cdnasim.errors import InputError
from hk_kernels import gemm
from hk_kernels.lower.program import Instruction, Loop, walk
from hk_kernels.lower.reference import KernelError, execute
from hk_kernels.tile.dtypes import DTYPES, bf16
from hk_kernels.tile.language import Builder, kernel, lower
from hk_kernels.tile.tiles import GlobalTensor

Tensor = GlobalTensor
Definition = Callable[[Builder, Tensor, Tensor, Tensor], None]
SIZE = 128  # of A, B and C


def lowered(
    define: Definition, arch: str = "gfx950", dtype: str = "bf16", waves: int = 1, per_simd: int = 1
) -> Any:
    return lower(
        kernel(waves=waves, waves_per_simd=per_simd)(define), arch, SIZE, SIZE, SIZE, dtype
    )


# Refused ------------------------------------------------------------------------------------------
# The last statement of each is the one that the message must name.


def lds_too_large(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.shared(A.dtype, 128, 64, buffers=(2,))
    k.shared(A.dtype, 256, 64, buffers=(1, 5))


def wide_load_to_lds(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 64, 64, buffers=(1,))[0]
    k.load_async(tile, A.tile(0, 0, 64, 64))


def shared_rows(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.shared(A.dtype, 40, 64, buffers=(1,))


def shared_columns(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.shared(A.dtype, 64, 48, buffers=(1,))


def shared_fp32(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.shared(DTYPES["fp32"], 64, 64, buffers=(1,))


def shared_fp4(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.shared(DTYPES["fp4"], 64, 64, buffers=(1,))


def load_of_other_shape(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 64, 64, buffers=(1,))[0]
    k.load_async(tile, A.tile(0, 0, 64, 32))


def load_of_other_dtype(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(DTYPES["fp8"], 64, 128, buffers=(1,))[0]
    k.load_async(tile, A.tile(0, 0, 64, 128))


def load_that_waves_cannot_share(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 64, 64, buffers=(1,))[0]
    k.load_async(tile, A.tile(0, 0, 64, 64), waves=(0, 3))


def count_of_loads(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 16, 32, buffers=(1,))[0]
    k.loads(tile)


def staged_rows(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 64, 64, buffers=(1,))[0]
    staging = k.staging(tile)
    k.load_global(staging, tile, A.tile(0, 0, 32, 64))


def read_of_other_rows(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 64, 64, buffers=(1,))[0]
    registers = k.registers(A.dtype, 32, 64)
    k.load(registers, tile)


def read_of_other_columns(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 64, 64, buffers=(1,))[0]
    registers = k.registers(A.dtype, 64, 64)
    k.load(registers, tile.columns(0, 32))


def read_of_other_dtype(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    tile = k.shared(A.dtype, 64, 64, buffers=(1,))[0]
    registers = k.registers(DTYPES["fp16"], 64, 64)
    k.load(registers, tile)


def operand_rows(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.registers(A.dtype, 24, 64)


def operand_depth(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.registers(A.dtype, 32, 48)


def accumulator_columns(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.accumulators(A.dtype, 64, 48, (32, 32))


def product_of_other_depth(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    a, b = k.registers(A.dtype, 32, 64), k.registers(A.dtype, 32, 32)
    acc = k.accumulators(A.dtype, 32, 32)
    k.mma_ABt(acc, a, b)


def product_of_other_rows(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    a, b = k.registers(A.dtype, 32, 64), k.registers(A.dtype, 64, 64)
    acc = k.accumulators(A.dtype, 32, 32)
    k.mma_ABt(acc, a, b)


def product_of_two_instructions(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    a, b = k.registers(A.dtype, 32, 64), k.registers(A.dtype, 32, 64, (32, 32))
    acc = k.accumulators(A.dtype, 32, 32)
    k.mma_ABt(acc, a, b)


def product_of_a_transposed_tile(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    a, b = k.registers(A.dtype, 32, 64), k.registers(A.dtype, 32, 64)
    acc = k.accumulators(A.dtype, 32, 32)
    k.mma_ABt(acc, a, b.T)


def product_of_an_untransposed_tile(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    a, b = k.registers(A.dtype, 32, 64), k.registers(A.dtype, 32, 64)
    acc = k.accumulators(A.dtype, 32, 32)
    k.mma_AtB(acc, a, b.T)


def store_of_other_shape(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    acc = k.accumulators(A.dtype, 32, 32)
    k.store(C.tile(0, 0, 32, 64), acc)


def sum_of_other_shapes(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    x, y = k.accumulators(A.dtype, 32, 32), k.accumulators(A.dtype, 32, 64)
    k.add(x, x, y)


def sum_of_other_layouts(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    x, y = k.accumulators(A.dtype, 32, 32), k.accumulators(A.dtype, 32, 32, (32, 32))
    k.add(x, x, y)


def reduction_of_wide_results(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    x = k.accumulators(A.dtype, 32, 32, (32, 32))
    rows = k.rows(x)
    k.row_max(rows, x)


def vm_too_large(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.wait(vm=64)


def vm_below_zero(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.wait(vm=-1)


def lgkm_too_large(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.wait(vm=0, lgkm=16)


def wait_for_nothing(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.wait()


def priority_too_high(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.priority(4)


def tile_that_does_not_divide(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.output_tile(C, 96, 64, 64)


def role_of_lanes(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    with k.only(k.lane < 32):
        k.barrier()


def role_of_a_loop(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    for t in k.loop(2):
        with k.only(k.wave < t):
            k.barrier()


def loop_that_does_not_divide(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    for _ in k.loop(7, unroll=2):
        k.barrier()


def loop_below_zero(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    for _ in k.loop(-1):
        k.barrier()


REFUSED = [  # definition, the text of the line to blame, what the message says
    (lds_too_large, "k.shared(A.dtype, 256", "196608 B of LDS needed, gfx950 has 163840 B"),
    (shared_rows, "k.shared", "40x64 bf16 does not divide into 16x32"),
    (shared_columns, "k.shared", "64x48 bf16 does not divide into 16x32"),
    (shared_fp32, "k.shared", "no shared tiles of fp32 on gfx950; allowed: 2 B on gfx950"),
    (shared_fp4, "k.shared", "no shared tiles of fp4 on gfx950"),
    (load_of_other_shape, "k.load_async", "64x64 filled from 64x32"),
    (load_of_other_dtype, "k.load_async", "fp8 filled from bf16"),
    (load_that_waves_cannot_share, "k.load_async", "1024 B by 3 waves"),
    (staged_rows, "k.load_global", "64x64 filled from 32x64"),
    (read_of_other_rows, "k.load(", "32x64 bf16 cannot be loaded from a shared tile of 64x64"),
    (read_of_other_columns, "k.load(", "cannot be loaded from a shared tile of 64x32 bf16"),
    (read_of_other_dtype, "k.load(", "64x64 fp16 cannot be loaded"),
    (operand_rows, "k.registers", "24x64 does not divide into MFMA operands of 16x32"),
    (operand_depth, "k.registers", "32x48 does not divide into MFMA operands of 16x32"),
    (accumulator_columns, "k.accumulators", "64x48 does not divide into MFMA results of 32x32"),
    (product_of_other_depth, "k.mma_ABt", "a product of 32x64 and 32x32"),
    (product_of_other_rows, "k.mma_ABt", "does not give 32x32"),
    (product_of_two_instructions, "k.mma_ABt", "v_mfma_f32_32x32x16_bf16"),
    (product_of_a_transposed_tile, "k.mma_ABt", "a tile as loaded for b"),
    (product_of_an_untransposed_tile, "k.mma_AtB", "a tile.T for a"),
    (store_of_other_shape, "k.store", "a 32x32 tile stored to 32x64"),
    (sum_of_other_shapes, "k.add", "differ in shape or layout"),
    (sum_of_other_layouts, "k.add", "differ in shape or layout"),
    (reduction_of_wide_results, "k.row_max", "16-column accumulator layout"),
    (vm_too_large, "k.wait(vm=64)", "wait(vm=64) must be from 0 to 63"),
    (vm_below_zero, "k.wait(vm=-1)", "wait(vm=-1) must be from 0 to 63"),
    (lgkm_too_large, "k.wait(vm=0, lgkm=16)", "wait(lgkm=16) must be from 0 to 15"),
    (wait_for_nothing, "k.wait()", "needs vm= or lgkm="),
    (priority_too_high, "k.priority(4)", "must be from 0 to 3"),
    (tile_that_does_not_divide, "k.output_tile", "a 96x64 tile does not divide C of 128x128"),
    (role_of_lanes, "with k.only(k.lane < 32):", "a role may depend on the wave only"),
    (role_of_a_loop, "with k.only(k.wave < t):", "a role may depend on the wave only"),
    (loop_that_does_not_divide, "for _ in k.loop(7", "7 does not divide by unroll=2"),
    (loop_below_zero, "for _ in k.loop(-1", "-1"),
]


def named_line(message: str, define: Definition) -> str:
    """The text of the line that a message blames; it must be one of the definition."""
    file, number, rest = message.split(":", 2)
    assert file == "test_definitions.py"
    first = define.__code__.co_firstlineno
    assert first < int(number) < first + 8
    return rest.strip()


@pytest.mark.parametrize(
    ("define", "line", "why"), REFUSED, ids=lambda v: getattr(v, "__name__", "")
)
def test_refused(define: Definition, line: str, why: str, refusal: Callable[..., str]) -> None:
    message = refusal(lowered, define)
    assert named_line(message, define).startswith(line)
    assert why in message


def test_refused_for_the_number_of_waves(refusal: Callable[..., str]) -> None:
    message = refusal(lowered, count_of_loads, waves=8, per_simd=2)
    assert named_line(message, count_of_loads).startswith("k.loads(tile)")
    assert "1024 B by 8 waves" in message


def test_gfx942_has_less_lds_and_no_wide_loads_to_it(refusal: Callable[..., str]) -> None:
    message = refusal(lowered, lds_too_large, "gfx942")
    assert named_line(message, lds_too_large).startswith("k.shared(A.dtype, 256")
    assert "196608 B of LDS needed, gfx942 has 65536 B" in message
    message = refusal(lowered, wide_load_to_lds, "gfx942")
    assert named_line(message, wide_load_to_lds).startswith("k.load_async")
    assert "gfx942 cannot load 16 B a lane to LDS; allowed: 4 B" in message
    assert lowered(wide_load_to_lds)  # gfx950 can


def test_published_kernels_that_a_target_cannot_run(refusal: Callable[..., str]) -> None:
    for definition in (gemm.pingpong8, gemm.interleave4, gemm.specialized):
        message = refusal(lower, definition, "gfx942", 256, 256, 256, bm=128, bn=128, bk=64)
        assert message.startswith("gemm.py:")
        assert "cannot load 16 B a lane to LDS" in message or "B of LDS needed" in message


@pytest.mark.parametrize("option", [{"c": 2}, {"c": 6}, {"stages": 1}], ids=str)
def test_options_that_a_kernel_does_not_have(
    option: dict[str, int], refusal: Callable[..., str]
) -> None:
    message = refusal(lower, gemm.specialized, "gfx950", 128, 256, 512, **option)
    ((key, value),) = option.items()
    assert re.match(rf"gemm.py:\d+: k.require\(.*: {key}={value}: ", message)


def test_names_that_are_not_known(refusal: Callable[..., str]) -> None:
    message = refusal(lower, gemm.pingpong8, "gfx950", 256, 256, 256, depth=64)
    assert message.startswith("pingpong8: unknown parameter 'depth'; allowed: bm, bn, bk, stagger")
    message = refusal(lower, gemm.pingpong8, "gfx950", 256, 256, 256, "int8")
    assert message.startswith("dtype 'int8' is unknown; allowed: fp32, bf16")
    message = refusal(lower, gemm.pingpong8, "gfx90a", 256, 256, 256)
    assert message == "target 'gfx90a' is unknown; allowed: gfx950, gfx942, sm_90"


def matrix_instruction(shape: tuple[int, int] | None) -> Definition:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.registers(A.dtype, 64, 64, shape)

    return define


def unknown_swizzle(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
    k.shared(A.dtype, 64, 64, buffers=(1,), swizzle="zigzag")


def test_matrix_instructions_and_swizzles_that_do_not_exist(refusal: Callable[..., str]) -> None:
    message = refusal(lowered, matrix_instruction((4, 4)))
    assert "gfx950 has no 4x4 matrix instruction for bf16; allowed: bf16 16x16x32" in message
    message = refusal(lowered, matrix_instruction(None), "gfx942", "fp8")
    assert "gfx942 has no matrix instruction for fp8; allowed: bf16 16x16x16" in message
    message = refusal(lowered, unknown_swizzle)
    assert "swizzle 'zigzag' is unknown; allowed: none, " in message


# What the builder makes of control ----------------------------------------------------------------


def test_a_loop_is_kept_and_unrolled_inside() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        tiles = k.shared(A.dtype, 64, 64, buffers=(2,))
        for t in k.loop(6, unroll=2):
            k.load_async(tiles[t % 2], A.tile(0, 0, 64, 64))

    program = lowered(define)
    (loop,) = [node for node in program.body if isinstance(node, Loop)]
    assert loop.count == 3
    loads = [i for i in loop.body if isinstance(i, Instruction) and i.loads_lds]
    places = [i.lds.evaluate({"wave": 0}) for i in loads if i.lds is not None]
    # one wave, chunk after chunk; the stage needs no loop variable
    assert places == list(range(0, 2 * 8192, 1024))
    assert [i.mnemonic for i in loop.body if isinstance(i, Instruction)][-3:] == [
        "s_add_u32",
        "s_cmp_lt_u32",
        "s_cbranch_scc1",
    ]


def test_a_loop_of_no_turns_leaves_nothing() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        for _ in k.loop(0):
            k.barrier()

    assert lowered(define).body == []


def test_roles_are_the_waves_that_do_the_same() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        with k.only(k.wave < 6):
            with k.only(k.wave // 2 % 2):
                k.priority(1)
            k.priority(0)

    program = lowered(define, waves=8, per_simd=2)
    assert program.roles() == [(0, 1, 4, 5), (2, 3), (6, 7)]
    assert [len(program.of_wave(wave)) for wave in range(8)] == [1, 1, 2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("main", "others"), [(4, (2,)), (2, (5,)), (3, (1, 2)), (5, ()), (1, (3,))]
)
def test_interleaving_keeps_all_and_their_order(main: int, others: tuple[int, ...]) -> None:
    def part(k: Builder, first: int, count: int) -> Callable[[], None]:
        def waits() -> None:
            for i in range(count):
                k.wait(vm=first + i)

        return waits

    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        starts = [10 * (i + 1) for i in range(len(others))]
        parts = [part(k, start, count) for start, count in zip(starts, others, strict=True)]
        k.interleave(part(k, 0, main), *parts)

    found = [i.vm for i in walk(lowered(define).body) if isinstance(i, Instruction)]
    woven = [10 * (i + 1) + j for i, count in enumerate(others) for j in range(count)]
    assert [vm for vm in found if vm < 10] == list(range(main))
    assert [vm for vm in found if vm >= 10] == woven
    # evenly: after each of the main part, as many of the others as are due, to the nearest
    for i in range(main):
        before = found.index(i)
        assert abs((before - i) - i * len(woven) / main) <= 0.5


def test_reads_and_loads_count_what_is_emitted() -> None:
    counted = {}

    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        tile = k.shared(A.dtype, 64, 128, buffers=(1,))[0]
        registers = k.registers(A.dtype, 64, 128)
        k.load_async(tile, A.tile(0, 0, 64, 128))
        k.load(registers, tile)
        counted.update(reads=k.reads(registers), loads=k.loads(tile))

    for dtype in ("bf16", "fp8"):
        program = lowered(define, "gfx950", dtype, waves=4)
        body = [i for i in program.body if isinstance(i, Instruction)]
        assert counted["reads"] == sum(i.unit == "lds" for i in body)
        assert counted["loads"] == sum(i.unit == "vmem" for i in body)


# Known gaps: accepted, or refused with another exception ------------------------------------------


def test_other_exceptions() -> None:
    with pytest.raises(InputError):
        lower(gemm.specialized, "gfx950", 256, 256, 256, p=0)


@pytest.mark.parametrize(
    ("definition", "mnk", "parameters"),
    [
        # 128 rows in three parts of 48: consumers read and write beyond their tile
        (gemm.specialized, (128, 256, 256), {"c": 12}),
        # 24 columns a wave, rounded up to 32
        (gemm.specialized, (128, 96, 256), {"bn": 96, "p": 1, "c": 4}),
        # the rest of k is left out
        (gemm.pingpong8, (256, 256, 352), {}),
    ],
)
def test_accepted(
    definition: Any, mnk: tuple[int, int, int], parameters: dict[str, int], problem: Any
) -> None:
    try:
        program = lower(definition, "gfx950", *mnk, **parameters)
    except InputError:
        return
    data = problem(program)
    try:
        c = execute(program, data.a, data.b)
    except KernelError as error:
        pytest.fail(str(error))
    assert (c == data.c).all()


@pytest.mark.parametrize("what", ["band", "columns", "buffer", "exp2", "swizzle", "waves"])
def test_unchecked_definitions(what: str) -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        tiles = k.shared(A.dtype, 64, 64, buffers=(2,))
        if what == "band":
            k.load(k.registers(A.dtype, 32, 64), tiles[0].band(2, 32))
        elif what == "columns":
            k.load(k.registers(A.dtype, 64, 64), tiles[0].columns(32, 64))
        elif what == "buffer":
            k.load(k.registers(A.dtype, 64, 64), tiles[2])
        elif what == "exp2":
            k.exp2(k.accumulators(A.dtype, 32, 64), k.accumulators(A.dtype, 64, 64))
        elif what == "swizzle":  # it splits the 16 B that a lane loads and reads
            k.shared(A.dtype, 64, 64, buffers=(1,), swizzle="st_16x16_swizzled")

    with pytest.raises(InputError):
        # a workgroup has at most 1024 lanes
        lowered(define, waves=20 if what == "waves" else 1, per_simd=5 if what == "waves" else 1)


def test_bf16_is_what_kernels_store() -> None:
    assert lower(gemm.pingpong8, "gfx950", 256, 256, 512, "fp16").tensors[2].dtype is bf16
