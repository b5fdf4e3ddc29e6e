"""Register maps of the matrix instructions, and tiles on their way through LDS, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cdnasim.isa.lds import LANES, conflict
from cdnasim.isa.swizzle import Swizzle, swizzle_named
from cdnasim.trace.model import TraceInstruction, TraceLoop, TraceNode
from hk_kernels import gemm
from hk_kernels.lower.program import Instruction, Program, walk
from hk_kernels.lower.reference import Workgroup, execute
from hk_kernels.lower.target import MFMA_SHAPES, target_named
from hk_kernels.lower.trace import trace
from hk_kernels.tile import language
from hk_kernels.tile.dtypes import DTYPES, bf16
from hk_kernels.tile.language import SWIZZLE_16X64, Builder, Kernel, kernel, lower
from hk_kernels.tile.layouts import Mfma, accumulator_elements, operand_elements
from hk_kernels.tile.tiles import Fragments, GlobalTensor

OFFERED = [(arch, dtype, mnk) for (arch, dtype), shapes in MFMA_SHAPES.items() for mnk in shapes]
LANE = np.arange(LANES)


def offered(arch: str, dtype: str, mnk: tuple[int, int, int]) -> Mfma:
    return target_named(arch).mfma(DTYPES[dtype], mnk[:2])


# Register maps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "dtype", "mnk"), OFFERED)
def test_maps_hold_each_element_once(arch: str, dtype: str, mnk: tuple[int, int, int]) -> None:
    mfma = offered(arch, dtype, mnk)
    assert (mfma.m, mfma.n, mfma.k) == mnk
    row, k = operand_elements(mfma)
    assert row.shape == (mfma.lanes, mfma.operand_vgprs * 32 // mfma.dtype.bits)
    assert sorted((row * mfma.k + k).ravel()) == list(range(mfma.m * mfma.k))
    row, col = accumulator_elements(mfma)
    assert row.shape == (mfma.lanes, mfma.accumulator_vgprs)
    assert sorted((row * mfma.n + col).ravel()) == list(range(mfma.m * mfma.n))


@pytest.mark.parametrize(("arch", "dtype", "mnk"), [o for o in OFFERED if o[0] != "sm_90"])
def test_maps_say_which_lane_holds_an_element(
    arch: str, dtype: str, mnk: tuple[int, int, int]
) -> None:
    """The same maps the other way round, as AMD's matrix instruction calculator gives them."""
    mfma = offered(arch, dtype, mnk)
    row, k = operand_elements(mfma)
    width = mfma.contiguous
    span = width * LANES // mfma.m  # elements of k that all lanes of a row hold in one piece
    slot = np.arange(row.shape[1])[None, :]
    assert (row + mfma.m * (k % span // width) == LANE[:, None]).all()
    assert (k // span * width + k % width == slot).all()

    row, col = accumulator_elements(mfma)
    register = np.arange(row.shape[1])[None, :]
    groups = LANES // mfma.n
    assert (col + mfma.n * (row // 4 % groups) == LANE[:, None]).all()
    assert (row // (4 * groups) * 4 + row % 4 == register).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_maps_of_sm_90_are_those_of_mma_sync(dtype: str) -> None:
    """PTX ISA, mma.m16n8k16: group g = lane / 4 and t = lane % 4 hold rows g, g + 8 of A and C."""
    mfma = offered("sm_90", dtype, (16, 16, 16))
    lane = np.arange(32)
    row, k = operand_elements(mfma)
    assert (row[:, [0, 1, 4, 5]] == (lane // 4)[:, None]).all()
    assert (row[:, [2, 3, 6, 7]] == (lane // 4 + 8)[:, None]).all()
    assert (k[:, 0] == 2 * (lane % 4)).all() and (k[:, 7] == 2 * (lane % 4) + 9).all()
    row, col = accumulator_elements(mfma)
    assert (row[:, :2] == (lane // 4)[:, None]).all()
    assert (row[:, 2:4] == (lane // 4 + 8)[:, None]).all()
    assert (col[:, :4] < 8).all() and (col[:, 4:] >= 8).all()


# Kernels that only move a tile --------------------------------------------------------------------


def copy_kernel(
    rows: int, cols: int, waves: int, shape: tuple[int, int] | None = None, *, staged: bool
) -> tuple[Kernel, list[Fragments]]:
    """Tile (1, 1) of A to LDS and from there to the registers of each wave."""
    read: list[Fragments] = []

    @kernel(waves=waves, waves_per_simd=1)
    def copy(k: Builder, A: GlobalTensor, B: GlobalTensor, C: GlobalTensor) -> None:
        k.shared(A.dtype, rows, cols, buffers=(1,))  # so that the tile does not begin at byte 0
        shared = k.shared(A.dtype, rows, cols, buffers=(1,))[0]
        source = A.tile(rows, cols, rows, cols)
        if staged:
            staging = k.staging(shared)
            k.load_global(staging, shared, source)
            k.wait(vm=0)
            k.store_shared(shared, staging)
            k.wait(lgkm=0)
        else:
            k.load_async(shared, source)
            k.wait(vm=0)
        k.barrier()
        tile = k.registers(A.dtype, rows, cols, shape)
        k.load(tile, shared)
        k.wait(lgkm=0)
        read.append(tile)

    return copy, read


TILES = [  # arch, dtype, rows, cols, waves
    ("gfx950", "bf16", 16, 32, 1),
    ("gfx950", "bf16", 64, 64, 8),
    ("gfx950", "bf16", 128, 64, 8),
    ("gfx950", "bf16", 32, 128, 4),
    ("gfx950", "bf16", 192, 32, 4),
    ("gfx950", "fp16", 96, 64, 4),
    ("gfx950", "fp8", 32, 128, 4),
    ("gfx950", "fp8", 128, 128, 8),
    ("gfx950", "fp8", 64, 256, 8),
    ("gfx942", "bf16", 16, 64, 1),
    ("gfx942", "bf16", 128, 64, 8),
    ("gfx942", "bf16", 64, 128, 8),
    ("gfx942", "fp16", 192, 64, 4),
]


def lowered_copy(
    arch: str, dtype: str, rows: int, cols: int, waves: int, shape: tuple[int, int] | None = None
) -> tuple[Program, list[Fragments]]:
    copy, read = copy_kernel(rows, cols, waves, shape, staged=arch == "gfx942")
    return lower(copy, arch, 2 * rows, 16, 2 * cols, dtype), read


def touched(program: Program, select: Callable[[Instruction], bool]) -> NDArray[np.int64]:
    """LDS bytes that the chosen instructions of all waves touch, each as often as it is touched."""
    found = []
    for i in walk(program.body):
        if isinstance(i, Instruction) and i.lds is not None and select(i):
            for wave in range(program.waves):
                first = np.asarray(i.lds.evaluate({"wave": wave, "lane": LANE}))
                first = first + (LANE * i.width if i.loads_lds else 0)
                found.append((first[:, None] + np.arange(i.width)).ravel())
    return np.sort(np.concatenate(found))


@pytest.mark.parametrize(("arch", "dtype", "rows", "cols", "waves"), TILES)
def test_a_tile_fills_its_lds_bytes_once(
    arch: str, dtype: str, rows: int, cols: int, waves: int
) -> None:
    program, _ = lowered_copy(arch, dtype, rows, cols, waves)
    size = rows * cols * DTYPES[dtype].bytes
    assert program.lds_bytes == 2 * size
    tile = np.arange(size, 2 * size)
    assert np.array_equal(touched(program, lambda i: not i.dst), tile)
    # each wave reads the whole tile
    assert np.array_equal(touched(program, lambda i: bool(i.dst)), np.repeat(tile, waves))


@pytest.mark.parametrize(("arch", "dtype", "rows", "cols", "waves"), TILES)
def test_a_tile_comes_from_its_place_in_the_tensor(
    arch: str, dtype: str, rows: int, cols: int, waves: int
) -> None:
    program, _ = lowered_copy(arch, dtype, rows, cols, waves)
    places = []
    for i in walk(program.body):
        if isinstance(i, Instruction) and i.memory:
            for wave in range(waves):
                first = i.memory.offset.evaluate({"wave": wave, "lane": LANE})
                places.append((first[:, None] + np.arange(i.width)).ravel())
    width = cols * DTYPES[dtype].bytes
    row, byte = np.divmod(np.arange(rows * width), width)
    wanted = (rows + row) * 2 * width + width + byte
    assert np.array_equal(np.sort(np.concatenate(places)), wanted)


SHAPES = [(*tile, None) for tile in TILES] + [
    ("gfx950", "bf16", 128, 64, 8, (32, 32)),
    ("gfx950", "fp8", 64, 128, 8, (32, 32)),
    ("gfx942", "bf16", 64, 64, 8, (32, 32)),
]


@pytest.mark.parametrize(("arch", "dtype", "rows", "cols", "waves", "shape"), SHAPES)
def test_registers_get_the_bits_of_the_tensor(
    arch: str, dtype: str, rows: int, cols: int, waves: int, shape: tuple[int, int] | None
) -> None:
    program, read = lowered_copy(arch, dtype, rows, cols, waves, shape)
    bits = {1: np.uint8, 2: np.uint16}[DTYPES[dtype].bytes]
    rng = np.random.default_rng(rows + cols)
    a: NDArray[Any] = rng.integers(0, 2 ** (8 * bits().itemsize), (2 * rows, 2 * cols), bits)
    group = Workgroup(program, {"A": a}, (0, 0))
    group.run()
    (tile,) = read
    row, k = operand_elements(tile.mfma)
    for wave in group.waves:
        for i in range(tile.shape[0]):
            for j in range(tile.shape[1]):
                held = wave.registers[list(tile.fragment(i, j))]  # (registers, lanes)
                elements = np.ascontiguousarray(held.T).view(bits)
                wanted = a[rows + i * tile.mfma.m + row, cols + j * tile.mfma.k + k]
                assert np.array_equal(elements, wanted)


# Products -----------------------------------------------------------------------------------------


def product_kernel(arch: str, rows: int, depth: int, shape: tuple[int, int]) -> Kernel:
    """C = A · Bᵀ of one rows x rows tile by one wave, of instructions of one shape."""

    @kernel(waves=1, waves_per_simd=1)
    def product(k: Builder, A: GlobalTensor, B: GlobalTensor, C: GlobalTensor) -> None:
        k.output_tile(C, rows, rows, depth)
        operands = []
        for tensor in (A, B):
            shared = k.shared(tensor.dtype, rows, depth, buffers=(1,))[0]
            if arch == "gfx942":
                staging = k.staging(shared)
                k.load_global(staging, shared, tensor.tile(0, 0, rows, depth))
                k.wait(vm=0)
                k.store_shared(shared, staging)
            else:
                k.load_async(shared, tensor.tile(0, 0, rows, depth))
            k.wait(vm=0, lgkm=0)
            operands.append(k.registers(tensor.dtype, rows, depth, shape))
            k.load(operands[-1], shared)
        acc = k.accumulators(A.dtype, rows, rows, shape)
        k.zero(acc)
        k.wait(lgkm=0)
        k.mma_ABt(acc, *operands)
        k.store(C.tile(0, 0, rows, rows), acc)

    return product


@pytest.mark.parametrize(("arch", "dtype", "mnk"), OFFERED)
def test_a_product_of_every_matrix_instruction(
    arch: str, dtype: str, mnk: tuple[int, int, int]
) -> None:
    rows, depth = (32, 64) if arch == "sm_90" else (64, 128)  # what a wave's registers hold
    product = product_kernel(arch, rows, depth, mnk[:2])
    program = lower(product, arch, rows, rows, depth, dtype)
    used = {i.mnemonic for i in walk(program.body) if isinstance(i, Instruction) and i.mfma}
    assert used == {offered(arch, dtype, mnk).mnemonic}
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, depth)).astype(np.float32) for _ in range(2))
    assert np.array_equal(execute(program, a, b), bf16.decode(bf16.encode(a @ b.T)))


# Bank conflicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [0, 16, 32, 48])
def test_the_gfx942_swizzle_has_no_read_conflicts(column: int) -> None:
    """16 rows of 128 B; each 16 lanes read 8 B of a row, the next 16 lanes the next 8 B."""
    offsets = LANE % 16 * 128 + LANE // 16 * 8 + 2 * column
    swizzled = SWIZZLE_16X64.apply(offsets)
    assert conflict(swizzled, "ds_read_b64", "gfx942").conflict_clocks == 0
    assert conflict(offsets, "ds_read_b64", "gfx942").conflict_clocks > 0


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("half", [0, 8])
def test_the_gfx942_swizzle_has_no_write_conflicts(chunk: int, half: int) -> None:
    """A lane writes the two halves of the 16 B that it loaded."""
    swizzled = SWIZZLE_16X64.apply(1024 * chunk + 16 * LANE + half)
    assert conflict(swizzled, "ds_write_b64", "gfx942").conflict_clocks == 0
    assert SWIZZLE_16X64.is_bijective(2048)
    assert SWIZZLE_16X64.keeps_whole(8, 2048)


GEMMS = [  # kernel, arch, dtype, tile, options
    (gemm.pingpong8, "gfx950", "bf16", (256, 256, 64), {}),
    (gemm.pingpong8, "gfx950", "fp16", (192, 256, 64), {}),
    (gemm.pingpong8, "gfx950", "fp8", (256, 256, 128), {}),
    (gemm.pingpong8, "gfx950", "bf16", (128, 128, 64), {}),
    (gemm.pingpong8_registers, "gfx942", "bf16", (256, 256, 64), {}),
    (gemm.pingpong8_registers, "gfx942", "fp16", (128, 64, 64), {}),
    (gemm.interleave4, "gfx950", "fp8", (256, 256, 128), {}),
    (gemm.interleave4, "gfx950", "bf16", (256, 256, 64), {}),
    (gemm.specialized, "gfx950", "bf16", (128, 256, 64), {"p": 4, "c": 8}),
    (gemm.specialized, "gfx950", "bf16", (192, 256, 64), {"p": 4, "c": 12}),
    (gemm.specialized, "gfx950", "fp8", (128, 256, 128), {"p": 4, "c": 8}),
]


def lowered(
    definition: Kernel,
    arch: str,
    dtype: str,
    tile: tuple[int, int, int],
    options: dict[str, int],
    steps: int = 4,
) -> Program:
    bm, bn, bk = tile
    return lower(definition, arch, bm, bn, steps * bk, dtype, bm=bm, bn=bn, bk=bk, **options)


@pytest.mark.parametrize(("definition", "arch", "dtype", "tile", "options"), GEMMS)
def test_no_lds_instruction_of_a_kernel_has_conflicts(
    definition: Kernel, arch: str, dtype: str, tile: tuple[int, int, int], options: dict[str, int]
) -> None:
    """In no wave that executes it; the trace lists those of a role's first wave."""
    program = lowered(definition, arch, dtype, tile, options)
    seen = set()
    for wave in range(program.waves):
        for i in walk(program.of_wave(wave)):
            if isinstance(i, Instruction) and i.unit == "lds" and i.lds is not None:
                env = {"lane": LANE, "wave": wave, "t0": 1, "t1": 1}
                addresses = i.lds.evaluate(env)
                key = (i.mnemonic, (addresses - addresses.min()).tobytes())
                if key not in seen:  # all tiles begin at a multiple of all banks
                    seen.add(key)
                    assert conflict(addresses, i.mnemonic, arch).conflict_clocks == 0, str(i.line)
    assert seen
    assert conflict_clocks(program) == 0


def conflict_clocks(program: Program) -> int:
    def of(body: list[TraceNode]) -> int:
        clocks = 0
        for node in body:
            if isinstance(node, TraceLoop):
                clocks += of(node.body)
            elif isinstance(node, TraceInstruction):
                clocks += node.conflict_clocks
        return clocks

    return sum(of(role.body) for role in trace(program).roles)


@pytest.mark.parametrize(
    ("definition", "arch", "dtype", "tile"),
    [
        (gemm.pingpong8, "gfx950", "bf16", (128, 128, 64)),
        (gemm.pingpong8_registers, "gfx942", "bf16", (64, 64, 64)),
        (gemm.interleave4, "gfx950", "fp8", (64, 64, 128)),
        (gemm.specialized, "gfx950", "bf16", (64, 64, 64)),
    ],
)
def test_without_swizzle_conflicts_appear_and_results_stay_right(
    definition: Kernel,
    arch: str,
    dtype: str,
    tile: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
    problem: Callable[[Program], Any],
) -> None:
    plain = {
        key: (rows, cols, Swizzle("none")) for key, (rows, cols, _) in language.SUBTILES.items()
    }
    monkeypatch.setattr(language, "SUBTILES", plain)
    program = lowered(definition, arch, dtype, tile, {})
    assert conflict_clocks(program) > 0
    data = problem(program)
    assert np.array_equal(execute(program, data.a, data.b), data.c)


@pytest.mark.parametrize("name", ["st_8x32", "st_16x32", "st_32x16", "st_32x32", "st_16x128"])
def test_any_swizzle_of_whole_pieces_gives_the_same_result(name: str) -> None:
    """The swizzle is undone by the global address of the load, whichever it is."""
    rows, cols = 64, 64
    assert swizzle_named(name).keeps_whole(16, 1024)

    @kernel(waves=1, waves_per_simd=1)
    def copy(k: Builder, A: GlobalTensor, B: GlobalTensor, C: GlobalTensor) -> None:
        k.output_tile(C, rows, rows, cols)
        As = k.shared(A.dtype, rows, cols, buffers=(1,), swizzle=name)[0]
        Bs = k.shared(B.dtype, rows, cols, buffers=(1,), swizzle=name)[0]
        k.load_async(As, A.tile(0, 0, rows, cols))
        k.load_async(Bs, B.tile(0, 0, rows, cols))
        k.wait(vm=0)
        a, b = k.registers(A.dtype, rows, cols), k.registers(B.dtype, rows, cols)
        k.load(a, As)
        k.load(b, Bs)
        acc = k.accumulators(A.dtype, rows, rows)
        k.zero(acc)
        k.wait(lgkm=0)
        k.mma_ABt(acc, a, b)
        k.store(C.tile(0, 0, rows, rows), acc)

    program = lower(copy, "gfx950", rows, rows, cols)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (rows, cols)).astype(np.float32) for _ in range(2))
    assert np.array_equal(execute(program, a, b), bf16.decode(bf16.encode(a @ b.T)))
    reads = [i for i in walk(program.body) if isinstance(i, Instruction) and i.unit == "lds"]
    clocks = sum(
        conflict(i.lds.evaluate({"lane": LANE}), i.mnemonic, "gfx950").conflict_clocks
        for i in reads
        if i.lds is not None
    )
    if name in ("st_8x32", "st_16x32"):  # none, and the one for this access
        assert (clocks > 0) == (name == "st_8x32")
