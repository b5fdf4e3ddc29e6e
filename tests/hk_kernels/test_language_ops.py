"""Operations on tiles in registers: elementwise, reductions, products of transposed tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from cdnasim.isa.lds import LANES
from hk_kernels.lower.program import Instruction, walk
from hk_kernels.lower.reference import Workgroup, execute
from hk_kernels.tile.dtypes import bf16
from hk_kernels.tile.language import Builder, kernel, lower
from hk_kernels.tile.layouts import accumulator_elements
from hk_kernels.tile.tiles import Fragments, GlobalTensor, Rows

Matrix = NDArray[np.float32]
Tensor = GlobalTensor
DEPTH = 64


def score_tiles(k: Builder, A: Tensor, B: Tensor, rows: int, cols: int) -> Fragments:
    """Each wave's accumulators of `rows` rows of A · Bᵀ, all of B."""
    As = k.shared(A.dtype, rows * k.waves, DEPTH, buffers=(1,))[0]
    Bs = k.shared(B.dtype, cols, DEPTH, buffers=(1,))[0]
    k.load_async(As, A.tile(0, 0, rows * k.waves, DEPTH))
    k.load_async(Bs, B.tile(0, 0, cols, DEPTH))
    k.wait(vm=0)
    k.barrier()
    a, b = k.registers(A.dtype, rows, DEPTH), k.registers(B.dtype, cols, DEPTH)
    k.load(a, As.band(k.wave, rows))
    k.load(b, Bs)
    acc = k.accumulators(A.dtype, rows, cols)
    k.zero(acc)
    k.wait(lgkm=0)
    k.mma_ABt(acc, a, b)
    return acc


def matrix_of(group: Workgroup, tile: Fragments) -> Matrix:
    """The accumulators of all waves, wave below wave."""
    row, col = accumulator_elements(tile.mfma)
    result = np.zeros((len(group.waves), tile.rows, tile.cols), np.float32)
    for wave in group.waves:
        for i in range(tile.shape[0]):
            for j in range(tile.shape[1]):
                held = wave.registers[list(tile.fragment(i, j))].view(np.float32)
                result[wave.wave, i * tile.frag_rows + row, j * tile.frag_cols + col] = held.T
    return result.reshape(-1, tile.cols)


def executed(
    operate: Callable[[Builder, Fragments], None],
    a: Matrix,
    b: Matrix,
    waves: int = 1,
    rows: int = 32,
) -> tuple[Workgroup, Matrix]:
    """The workgroup after `operate` on the tiles of A · Bᵀ, and A · Bᵀ."""

    @kernel(waves=waves, waves_per_simd=-(-waves // 4))
    def operation(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        operate(k, score_tiles(k, A, B, rows, b.shape[0]))

    program = lower(operation, "gfx950", a.shape[0], b.shape[0], DEPTH)
    arrays = {"A": bf16.encode(a), "B": bf16.encode(b)}
    group = Workgroup(program, arrays, (0, 0))
    group.run()
    rounded = [bf16.decode(arrays[name]) for name in "AB"]
    return group, rounded[0] @ rounded[1].T


def whole_numbers(rows: int, cols: int, seed: int = 0) -> Matrix:
    return np.random.default_rng(seed).integers(-4, 5, (rows, cols)).astype(np.float32)


# Elementwise --------------------------------------------------------------------------------------

OPERATIONS = [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("max", np.maximum)]


@pytest.mark.parametrize(("name", "function"), OPERATIONS)
@pytest.mark.parametrize("is_row", [False, True])
def test_elementwise(name: str, function: Callable[..., Matrix], is_row: bool) -> None:
    results = []

    def operate(k: Builder, acc: Fragments) -> None:
        other: Fragments | Rows
        if is_row:
            other = k.rows(acc)
            k.row_max(other, acc)
        else:
            other = k.accumulators(bf16, acc.rows, acc.cols)
            k.add(other, acc, acc)
        result = k.accumulators(bf16, acc.rows, acc.cols)
        getattr(k, name)(result, acc, other)
        results.append(result)

    group, s = executed(operate, whole_numbers(32, DEPTH), whole_numbers(48, DEPTH, 1))
    other = s.max(axis=1, keepdims=True) if is_row else s + s
    assert np.array_equal(matrix_of(group, results[0]), function(s, other))


def test_in_place_and_exp2() -> None:
    kept = []

    def operate(k: Builder, acc: Fragments) -> None:
        k.exp2(acc, acc)
        kept.append(acc)

    a = whole_numbers(32, DEPTH) / 16
    group, s = executed(operate, a, whole_numbers(32, DEPTH, 1))
    assert np.array_equal(matrix_of(group, kept[0]), np.exp2(s))


# Reductions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cols", [16, 64])
def test_row_reductions_are_in_all_lanes_of_the_row(cols: int) -> None:
    kept: list[Rows] = []

    def operate(k: Builder, acc: Fragments) -> None:
        for reduce in (k.row_max, k.row_sum):
            rows = k.rows(acc)
            reduce(rows, acc)
            kept.append(rows)

    group, s = executed(operate, whole_numbers(32, DEPTH), whole_numbers(cols, DEPTH, 1))
    row, _ = accumulator_elements(kept[0].tile.mfma)
    for rows, wanted in zip(kept, (s.max(axis=1), s.sum(axis=1)), strict=True):
        for i in range(2):
            held = group.waves[0].registers[list(rows.fragment(i))].view(np.float32)
            assert held.shape == (4, LANES)
            assert np.array_equal(held.T, wanted[16 * i + row])


@pytest.mark.parametrize("waves", [1, 8])
def test_numerator_of_a_softmax(waves: int) -> None:
    """exp2(s - max) and its row sums, as an attention kernel computes them."""
    kept: list[tuple[Fragments, Rows, Fragments]] = []

    def operate(k: Builder, s: Fragments) -> None:
        largest, total = k.rows(s), k.rows(s)
        k.row_max(largest, s)
        k.sub(s, s, largest)
        k.exp2(s, s)
        k.row_sum(total, s)
        scaled = k.accumulators(bf16, s.rows, s.cols)
        k.mul(scaled, s, total)
        kept.append((s, total, scaled))

    rng = np.random.default_rng(3)
    a = rng.standard_normal((32 * waves, DEPTH), np.float32) / 8
    b = rng.standard_normal((64, DEPTH), np.float32)
    group, s = executed(operate, a, b, waves)
    p = np.exp2(s - s.max(axis=1, keepdims=True))
    tile, _, scaled = kept[0]
    assert np.allclose(matrix_of(group, tile), p, rtol=1e-5)
    assert np.allclose(matrix_of(group, scaled), p * p.sum(axis=1, keepdims=True), rtol=1e-5)
    assert matrix_of(group, tile).max() == 1


# Products of transposed tiles ---------------------------------------------------------------------

PRODUCTS = {
    "mma_ABt": (False, False),
    "mma_AB": (False, True),
    "mma_AtB": (True, True),
    "mma_AtBt": (True, False),
}


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_products_of_transposed_tiles(name: str) -> None:
    """`tile.T` names the transpose of what was loaded, so all four are products of the same k."""
    is_a_transposed, is_b_transposed = PRODUCTS[name]

    @kernel(waves=1, waves_per_simd=1)
    def product(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.output_tile(C, 32, 48, DEPTH)
        tiles = []
        for tensor in (A, B):
            shared = k.shared(tensor.dtype, tensor.rows, DEPTH, buffers=(1,))[0]
            k.load_async(shared, tensor.tile(0, 0, tensor.rows, DEPTH))
            k.wait(vm=0)
            tiles.append(k.registers(tensor.dtype, tensor.rows, DEPTH))
            k.load(tiles[-1], shared)
        acc = k.accumulators(A.dtype, 32, 48)
        k.zero(acc)
        k.wait(lgkm=0)
        a, b = tiles
        getattr(k, name)(acc, a.T if is_a_transposed else a, b.T if is_b_transposed else b)
        k.store(C.tile(0, 0, 32, 48), acc)

    program = lower(product, "gfx950", 32, 48, DEPTH)
    a, b = whole_numbers(32, DEPTH), whole_numbers(48, DEPTH, 1)
    assert np.array_equal(execute(program, a, b), bf16.decode(bf16.encode(a @ b.T)))


def test_transposing_twice_is_the_tile_itself() -> None:
    tiles: list[Fragments] = []

    @kernel(waves=1, waves_per_simd=1)
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        tiles.append(k.registers(A.dtype, 32, DEPTH))

    lower(define, "gfx950", 32, 32, DEPTH)
    (tile,) = tiles
    assert tile != tile.T
    assert tile == tile.T.T
    assert tile.T.registers == tile.registers


def test_products_accumulate_k_innermost() -> None:
    """Both matrix depths of a tile follow each other on one accumulator, as published."""

    def operate(k: Builder, acc: Fragments) -> None:
        pass

    group, s = executed(operate, whole_numbers(32, DEPTH), whole_numbers(32, DEPTH, 1))
    products = [
        i for i in walk(group.program.body) if isinstance(i, Instruction) and i.unit == "mfma"
    ]
    accumulators = [i.dst for i in products]
    assert accumulators[0::2] == accumulators[1::2]
    assert len(set(accumulators)) == len(products) / 2 == 4
    tile = next(r for r in group.program.registers if r.name == "accumulator")
    assert tile.count * LANES == s.size


# Stores -------------------------------------------------------------------------------------------


def test_stores_round_to_bf16_to_nearest_even() -> None:
    @kernel(waves=1, waves_per_simd=1)
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.output_tile(C, 32, 32, DEPTH)
        k.store(C.tile(0, 0, 32, 32), score_tiles(k, A, B, 32, 32))

    # A picks single elements of B, so C is B's columns, times 1 + 2**-8: half-way cases and others
    a = np.zeros((32, DEPTH), np.float32)
    a[:, 0], a[:, 1] = 1, 2.0**-8
    b = np.zeros((32, DEPTH), np.float32)
    b[:, 0] = b[:, 1] = np.arange(32) + 128
    program = lower(define, "gfx950", 32, 32, DEPTH)
    c = execute(program, a, b)
    exact = np.broadcast_to(b[:, 0] * np.float32(1 + 2.0**-8), (32, 32))
    assert np.array_equal(c, bf16.decode(bf16.encode(exact)))
    assert c[0, 0] == 128  # 128.5 lies half-way to 129, and 128 is even
    assert c[0, 1] == 130  # 129 + 129/256 lies above half-way
