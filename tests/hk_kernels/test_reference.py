"""The reference reading: right results, in any order of workgroups, and what it finds wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdnasim.errors import InputError
from cdnasim.gpu.orders import ORDER_HELP, parse_order
from hk_kernels import gemm
from hk_kernels.lower.program import Program
from hk_kernels.lower.reference import KernelError, Workgroup, execute
from hk_kernels.tile.dtypes import bf16
from hk_kernels.tile.language import Builder, Kernel, kernel, lower
from hk_kernels.tile.tiles import GlobalTensor

KERNELS = [  # kernel, arch, dtype, tile, options
    (gemm.pingpong8, "gfx950", "bf16", (256, 256, 64), {}),
    (gemm.pingpong8, "gfx950", "fp16", (192, 256, 64), {}),
    (gemm.pingpong8, "gfx950", "fp8", (256, 256, 128), {}),
    (gemm.pingpong8, "gfx950", "bf16", (128, 128, 64), {}),
    (gemm.pingpong8_registers, "gfx942", "bf16", (256, 256, 64), {}),
    (gemm.pingpong8_registers, "gfx942", "fp16", (64, 128, 64), {}),
    (gemm.interleave4, "gfx950", "fp8", (256, 256, 128), {}),
    (gemm.interleave4, "gfx950", "bf16", (256, 256, 64), {}),
    (gemm.specialized, "gfx950", "bf16", (128, 256, 64), {"p": 4, "c": 8}),
    (gemm.specialized, "gfx950", "bf16", (192, 256, 64), {"p": 4, "c": 12}),
    (gemm.specialized, "gfx950", "fp8", (128, 256, 128), {"p": 4, "c": 8, "stages": 3}),
]
# ulp of bf16 in the worst place is 2**-7 of the value; rounding gives half of it
HALF_ULP = 2.0**-8


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


@pytest.mark.parametrize(("definition", "arch", "dtype", "tile", "options"), KERNELS)
def test_a_workgroup_equals_numpy(
    definition: Kernel, arch: str, dtype: str, tile: tuple[int, int, int], options: dict[str, int]
) -> None:
    program = lowered(definition, arch, dtype, tile, options)
    rng = np.random.default_rng(7)
    ta, tb, tc = program.tensors
    a = rng.standard_normal((ta.rows, ta.cols), np.float32)
    b = rng.standard_normal((tb.rows, tb.cols), np.float32)
    rounded = [t.dtype.decode(t.dtype.encode(x)) for t, x in ((ta, a), (tb, b))]
    wanted = rounded[0].astype(np.float64) @ rounded[1].T.astype(np.float64)
    c = execute(program, a, b)
    assert c.shape == (tc.rows, tc.cols)
    assert (np.abs(c - wanted) <= HALF_ULP * np.abs(wanted) + 1e-4).all()
    assert np.array_equal(bf16.decode(bf16.encode(c)), c)  # C is bf16


NAMES = ["pingpong8", "pingpong8_whole", "pingpong8_registers", "interleave4", "specialized"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [3, 4, 5])
def test_whole_numbers_come_out_exactly(
    name: str,
    steps: int,
    small_program: Callable[..., Program],
    problem: Callable[[Program], Any],
) -> None:
    program = small_program(name, steps)
    data = problem(program)
    assert np.array_equal(execute(program, data.a, data.b), data.c)


@pytest.mark.parametrize("name", NAMES)
def test_a_grid_of_workgroups(
    name: str, small_program: Callable[..., Program], problem: Callable[[Program], Any]
) -> None:
    program = small_program(name, grid=(2, 3))
    assert program.grid == (2, 3)
    data = problem(program)
    assert np.array_equal(execute(program, data.a, data.b), data.c)


ORDERS = [
    "row-major",
    "col-major",
    "window:w=2",
    "xcd:w=2,c=2",
    "xcd-contiguous:w=1",
    "hilbert",
    "morton",
    "file",
]


@pytest.mark.parametrize("spec", ORDERS)
def test_every_grid_order_gives_the_same_c(
    spec: str,
    tmp_path: Path,
    small_program: Callable[..., Program],
    problem: Callable[[Program], Any],
) -> None:
    assert {order.partition(":")[0] for order in ORDERS} == set(ORDER_HELP)
    if spec == "file":
        path = tmp_path / "order.txt"
        path.write_text("5 0 3 2 4 1", encoding="utf-8")
        spec = f"file:{path}"
    program = small_program("pingpong8", 3, (2, 3))
    tiles = [(int(row), int(col)) for row, col in parse_order(spec).tiles(2, 3, 8)]
    assert sorted(tiles) == [(row, col) for row in range(2) for col in range(3)]
    data = problem(program)
    assert np.array_equal(execute(program, data.a, data.b, tiles), data.c)


def test_tiles_left_out_stay_unwritten(
    small_program: Callable[..., Program], problem: Callable[[Program], Any]
) -> None:
    program = small_program("specialized", grid=(2, 3))
    data = problem(program)
    c = execute(program, data.a, data.b, [(1, 2)])
    bm, bn, _ = program.tile
    assert np.array_equal(c[bm:, 2 * bn :], data.c[bm:, 2 * bn :])
    assert np.isnan(c[:bm]).all()
    assert np.isnan(c[bm:, : 2 * bn]).all()


# What it finds ------------------------------------------------------------------------------------


def run(define: Callable[..., None], waves: int = 1, arch: str = "gfx950") -> None:
    program = lower(kernel(waves=waves, waves_per_simd=1)(define), arch, 64, 64, 64)
    zeros = {name: np.zeros((64, 64), bf16.storage) for name in "ABC"}
    Workgroup(program, zeros, (0, 0)).run()


def mistake(define: Callable[..., None], waves: int = 1, arch: str = "gfx950") -> str:
    with pytest.raises(KernelError) as caught:
        run(define, waves, arch)
    message = str(caught.value)
    assert message.startswith("test_reference.py:")
    assert "\n" not in message
    return message


Tensor = GlobalTensor


def shared(k: Builder, A: Tensor, count: int = 1) -> Any:
    return k.shared(A.dtype, 64, 64, buffers=(count,))


def test_loads_need_a_wait_before_their_data_are_used() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        k.load_async(S, A.tile(0, 0, 64, 64))
        k.load(k.registers(A.dtype, 64, 64), S)

    message = mistake(define)
    assert "reads LDS without a wait after the write of wave 0" in message
    assert "k.load_async(S, A.tile(0, 0, 64, 64))" in message  # both places are named


def test_loads_of_another_wave_need_a_barrier_too() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        with k.only(k.wave.equals(0)):
            k.load_async(S, A.tile(0, 0, 64, 64), waves=(0, 1))
            k.wait(vm=0)
        with k.only(k.wave.equals(1)):
            k.load(k.registers(A.dtype, 64, 64), S)

    assert "without a wait and a barrier after the write of wave 0" in mistake(define, 2)


@pytest.mark.parametrize("reader", [0, 1])
def test_reads_must_be_over_before_another_wave_overwrites(reader: int) -> None:
    """Whichever of the two waves the reference happens to run first."""

    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        k.load_async(S, A.tile(0, 0, 64, 64))
        k.wait(vm=0)
        k.barrier()
        with k.only(k.wave.equals(reader)):
            k.load(k.registers(A.dtype, 64, 64), S)
            k.wait(lgkm=0)
        with k.only(k.wave.equals(1 - reader)):
            k.load_async(S, A.tile(0, 0, 64, 64), waves=(1 - reader, 1))

    assert "without a wait and a barrier after" in mistake(define, 2)


def test_a_read_under_way_is_no_finished_read() -> None:
    """The barrier alone does not tell the writer that the reader's data have come."""

    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        k.load_async(S, A.tile(0, 0, 64, 64))
        k.wait(vm=0)
        k.barrier()
        with k.only(k.wave.equals(0)):
            k.load(k.registers(A.dtype, 64, 64), S)
        k.barrier()
        with k.only(k.wave.equals(1)):
            k.load_async(S, A.tile(0, 0, 64, 64), waves=(1, 1))

    assert "overwrites LDS without a wait and a barrier after the read of wave 0" in mistake(
        define, 2
    )


def test_wait_and_barrier_in_this_order_make_it_right() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        k.load_async(S, A.tile(0, 0, 64, 64))
        k.wait(vm=0)
        k.barrier()
        k.load(k.registers(A.dtype, 64, 64), S)
        k.wait(lgkm=0)
        k.barrier()
        k.load_async(S, A.tile(0, 0, 64, 64))

    run(define, 2)


def test_a_barrier_before_the_wait_does_not_order() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        k.load_async(S, A.tile(0, 0, 64, 64))
        k.barrier()
        k.wait(vm=0)
        k.load(k.registers(A.dtype, 64, 64), S)

    assert "without a wait and a barrier after the write of wave" in mistake(define, 2)


def test_a_wait_completes_the_oldest_first() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A, 2)
        k.load_async(S[0], A.tile(0, 0, 64, 64))
        k.load_async(S[1], A.tile(0, 0, 64, 64))
        k.wait(vm=k.loads(S[1]))
        k.load(k.registers(A.dtype, 64, 64), S[0])
        k.load(k.registers(A.dtype, 64, 64), S[1])

    message = mistake(define)
    assert "k.load_async(S[1]" in message.split("after the write")[1]


def test_registers_are_checked_like_lds() -> None:
    def too_early(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        staging = k.staging(S)
        k.load_global(staging, S, A.tile(0, 0, 64, 64))
        k.store_shared(S, staging)

    assert "uses a register before a wait for the load at" in mistake(too_early, arch="gfx942")

    def never(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        acc = k.accumulators(A.dtype, 64, 64)
        k.add(acc, acc, acc)

    assert "reads a register never written" in mistake(never)

    def twice(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        staging = k.staging(S)
        k.load_global(staging, S, A.tile(0, 0, 64, 64))
        k.load_global(staging, S, A.tile(0, 0, 64, 64))

    assert "loads into a register that the load at" in mistake(twice, arch="gfx942")

    def overwritten(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        S = shared(k, A)[0]
        k.load_async(S, A.tile(0, 0, 64, 64))
        k.wait(vm=0)
        tile = k.registers(A.dtype, 64, 64)
        k.load(tile, S)
        k.zero(tile)

    assert "overwrites a register that the load at" in mistake(overwritten)


@pytest.mark.parametrize("missing", [0, 1])
def test_barriers_that_not_all_reach(missing: int) -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.barrier()
        with k.only(k.wave.equals(1 - missing)):
            k.barrier()

    wanted = f"barrier 2 is never reached by wave {missing}, which has ended"
    assert wanted in mistake(define, 2)


def test_roles_may_meet_at_different_lines() -> None:
    def define(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        with k.only(k.wave < 1):
            k.barrier()
        with k.only(k.wave >= 1):
            k.barrier()

    run(define, 2)


def test_addresses_stay_inside() -> None:
    def below(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.load_async(shared(k, A)[0], A.tile(-1, 0, 64, 64))

    assert "touches byte -128 of A, which has 8192" in mistake(below)

    def beyond(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.load_async(shared(k, A)[0], A.tile(0, 8, 64, 64))

    assert "of A, which has 8192" in mistake(beyond)

    def lds(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.load_async(shared(k, A)[k.wave + 1], A.tile(0, 0, 64, 64))

    assert "touches LDS bytes outside the 8192 allocated" in mistake(lds)


def test_an_element_written_twice_or_never() -> None:
    def twice(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        acc = k.accumulators(A.dtype, 64, 64)
        k.zero(acc)
        k.store(C.tile(0, 0, 64, 64), acc)
        k.store(C.tile(0, 0, 64, 64), acc)

    assert "writes an element twice" in mistake(twice)

    @kernel(waves=1, waves_per_simd=1)
    def half(k: Builder, A: Tensor, B: Tensor, C: Tensor) -> None:
        k.output_tile(C, 64, 64, 64)
        acc = k.accumulators(A.dtype, 32, 64)
        k.zero(acc)
        k.store(C.tile(0, 0, 32, 64), acc)

    zeros = np.zeros((64, 64), np.float32)
    with pytest.raises(KernelError, match=r"half: tile \(0, 0\) of C is not written exactly once"):
        execute(lower(half, "gfx950", 64, 64, 64), zeros, zeros)


# Any parameters -----------------------------------------------------------------------------------

SIZES = st.sampled_from([64, 128, 128, 192, 256, 96, 48])


@st.composite
def anything(draw: st.DrawFn) -> tuple[Kernel, str, str, tuple[int, int, int], dict[str, int], int]:
    """A kernel, a target and parameters that may or may not go together.

    Left out are those that lower() is known to accept wrongly: test_definitions.py lists them.
    """
    definition, arch = draw(
        st.sampled_from(
            [
                (gemm.pingpong8, "gfx950"),
                (gemm.pingpong8_registers, "gfx942"),
                (gemm.interleave4, "gfx950"),
                (gemm.specialized, "gfx950"),
                (gemm.pingpong8, "gfx942"),
            ]
        )
    )
    dtype = draw(st.sampled_from(["bf16", "bf16", "fp16", "fp8", "fp8_e5m2"]))
    bm, bn = draw(SIZES), draw(SIZES)
    bk = draw(st.sampled_from([64, 128, 32] if dtype != "fp8" else [128, 64]))
    options = {}
    if definition is gemm.specialized:
        c = draw(st.sampled_from([4, 8, 12]))
        bm, bn = draw(st.integers(1, 3)) * 4 * c, draw(st.sampled_from([64, 128]))
        options = {"p": draw(st.integers(1, 4)), "c": c, "stages": draw(st.integers(2, 3))}
    return definition, arch, dtype, (bm, bn, bk), options, draw(st.integers(2, 5))


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=anything())
def test_any_parameters_give_the_right_result_or_one_line(
    chosen: tuple[Kernel, str, str, tuple[int, int, int], dict[str, int], int],
    problem: Callable[[Program], Any],
) -> None:
    definition, arch, dtype, tile, options, steps = chosen
    try:
        program = lowered(definition, arch, dtype, tile, options, steps)
    except InputError as error:
        assert "\n" not in str(error)
        return
    data = problem(program)
    assert np.array_equal(execute(program, data.a, data.b), data.c)
