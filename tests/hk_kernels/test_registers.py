"""Liveness, the static split of a SIMD's registers, and what is refused because it would spill."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdnasim.errors import InputError
from hk_kernels import gemm
from hk_kernels.lower.program import Instruction, Line, Loop, Node, Program, RegisterTile
from hk_kernels.lower.reference import execute
from hk_kernels.lower.registers import REGISTER_BYTES, RegisterNeed, register_needs
from hk_kernels.lower.trace import trace
from hk_kernels.tile.language import lower

LINE = Line("hand.py", 1, "")


def by_hand(body: list[Node], registers: int = 8) -> Program:
    """A program of one wave around a body."""
    tile = RegisterTile("operand", 0, registers, LINE)
    return Program("hand", "gfx950", {}, 1, 1, body, (), (tile,), 0, 64, (1, 1), (1, 1, 1))


def valu(dst: list[int], src: list[int]) -> Instruction:
    return Instruction("v_add_f32", "valu", LINE, dst=tuple(dst), src=tuple(src))


def live(body: list[Node]) -> int:
    (need,) = register_needs(by_hand(body))
    return need.live


def unrolled(body: list[Node]) -> Iterator[Instruction]:
    for node in body:
        if isinstance(node, Loop):
            for _ in range(node.count):
                yield from unrolled(node.body)
        elif isinstance(node, Instruction):
            yield node


def most_live(body: list[Node]) -> int:
    """The exact answer: liveness of the straight line that a wave executes."""
    alive: set[int] = set()
    most = 0
    for i in reversed(list(unrolled(body))):
        most = max(most, len(alive | set(i.dst)))
        alive = (alive - set(i.dst)) | set(i.src) | (set(i.dst) if i.mfma else set())
        most = max(most, len(alive))
    return most


# Liveness -----------------------------------------------------------------------------------------


def test_a_value_lives_from_its_write_to_its_last_use() -> None:
    chain: list[Node] = [valu([0], []), valu([1], [0]), valu([2], [1]), valu([3], [2])]
    assert live(chain) == 1  # a result may take the place of the last operand
    assert live([*chain, valu([4], [0])]) == 2


def test_a_register_reused_is_not_alive_in_between() -> None:
    body: list[Node] = [
        valu([0], []),
        valu([1], [0]),
        valu([2], [1, 1]),
        valu([0], []),
        valu([], [0, 2]),
    ]
    assert live(body) == 2


def test_a_value_carried_round_a_loop_lives_through_all_of_it() -> None:
    # register 0 is read at the top and written at the bottom, for the next turn
    inside: list[Node] = [valu([1], [0]), valu([2], []), valu([3], [2]), valu([0], [3])]
    assert live([valu([0], []), Loop("t0", 4, LINE, inside)]) == 1
    # read at the top, written before the loop only: alive in all turns
    inside = [valu([1], [0]), valu([2], []), valu([3], [2])]
    assert live([valu([0], []), Loop("t0", 4, LINE, inside)]) == 2


def test_a_value_used_after_a_loop_lives_through_it() -> None:
    inside: list[Node] = [valu([1], []), valu([2], [1])]
    assert live([valu([0], []), Loop("t0", 4, LINE, inside), valu([], [0])]) == 2


def test_an_accumulator_is_read_by_its_matrix_instruction(
    small_program: Callable[..., Program],
) -> None:
    """It lives from the zeroing to the store, though instructions name it as dst alone."""
    for name in ("pingpong8", "interleave4", "specialized", "pingpong8_registers"):
        program = small_program(name)
        total = sum(t.count for t in program.registers if t.name == "accumulator")
        assert max(need.live for need in register_needs(program)) > total


REGISTERS = st.lists(st.integers(0, 5), max_size=2, unique=True)
INSTRUCTIONS = st.builds(valu, REGISTERS, REGISTERS)
BODIES = st.recursive(
    st.lists(INSTRUCTIONS, min_size=1, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            INSTRUCTIONS, st.builds(Loop, st.just("t"), st.integers(1, 3), st.just(LINE), inner)
        ),
        min_size=1,
        max_size=4,
    ),
    max_leaves=6,
)


@given(body=BODIES)
def test_no_value_alive_is_missed(body: list[Node]) -> None:
    """Against the unrolled program; loops may make it a little careful, never too low."""
    assert live(body) >= most_live(body)


@pytest.mark.parametrize(
    ("definition", "arch", "dtype", "bk"),
    [
        (gemm.pingpong8, "gfx950", "bf16", 64),
        (gemm.pingpong8_registers, "gfx942", "bf16", 64),
        (gemm.interleave4, "gfx950", "fp8", 128),
        (gemm.specialized, "gfx950", "bf16", 64),
    ],
)
def test_liveness_of_the_kernels_is_exact(definition: Any, arch: str, dtype: str, bk: int) -> None:
    program = lower(definition, arch, 256, 256, 5 * bk, dtype, bk=bk)
    for need in register_needs(program):
        assert need.live == most_live(program.of_wave(need.waves[0]))


# What the kernels need ----------------------------------------------------------------------------


def needs(definition: Any, arch: str, dtype: str = "bf16", **parameters: int) -> list[RegisterNeed]:
    bm, bn, bk = (parameters.get(key, 256) for key in ("bm", "bn", "bk"))
    return register_needs(lower(definition, arch, bm, bn, 6 * bk, dtype, **parameters))


def test_pingpong8_fits_256_registers_with_128_accumulators() -> None:
    program = lower(gemm.pingpong8, "gfx950", 256, 256, 384)
    assert sum(t.count for t in program.registers if t.name == "accumulator") == 128
    for need in register_needs(program):
        # 128 accumulators, one half of A (64x64), two of B (32x64): 4 bytes a lane each
        assert need.live == 128 + 32 + 2 * 16
        assert need.budget == 256
        assert (need.agprs, need.spills, need.report()) == (0, (), "")
        assert need.need <= need.vgprs <= need.budget
        assert need.occupancy == 2


def test_interleave4_needs_accumulation_registers() -> None:
    (need,) = needs(gemm.interleave4, "gfx950", "fp8", bm=256, bn=256, bk=128)
    assert need.live == 256 + 4 * 32  # 256 accumulators, two halves each of A and B
    assert need.budget == 512
    assert need.vgprs == 256
    assert 0 < need.agprs <= 256
    assert need.vgprs + need.agprs >= need.need
    assert need.occupancy == 1


def test_small_tiles_leave_room_for_others() -> None:
    for need in needs(gemm.pingpong8, "gfx950", bm=128, bn=128, bk=64):
        assert need.live == 32 + 16 + 2 * 8
        assert need.occupancy == 512 // need.vgprs == 7


@pytest.mark.parametrize(("c", "bm", "budget"), [(8, 128, 168), (12, 192, 128)])
def test_specialized_splits_evenly_and_its_producers_waste_their_share(
    c: int, bm: int, budget: int
) -> None:
    """The published register caps: 12 waves 168, 16 waves 128 (HipKittens f09e968)."""
    producer, consumer = needs(gemm.specialized, "gfx950", bm=bm, bn=256, bk=64, p=4, c=c)
    assert producer.waves == (0, 1, 2, 3)
    assert producer.budget == consumer.budget == budget
    assert producer.live == 0
    assert producer.occupancy == 8
    assert consumer.live == 64 + 16 + 16  # a wave tile of 64x64, operands of one matrix depth
    assert consumer.occupancy == 4


# What would spill ---------------------------------------------------------------------------------

SPILLING = [{"p": 4, "c": 8}, {"p": 4, "c": 12}]


def spilling(options: dict[str, int], **more: Any) -> Program:
    return lower(
        gemm.specialized, "gfx950", 256, 256, 512, bm=256, bn=256, bk=64, **options, **more
    )


@pytest.mark.parametrize("options", SPILLING, ids=str)
def test_what_would_spill_is_refused_and_named(
    options: dict[str, int], refusal: Callable[..., str]
) -> None:
    message = refusal(spilling, options)
    waves = options["p"] + options["c"]
    budget = 512 // -(-waves // 4) // 8 * 8
    assert f"{waves} waves, {-(-waves // 4)} a SIMD, split its registers evenly" in message
    assert f"waves {options['p']}-{waves - 1}:" in message
    assert f", {budget} available:" in message
    source, first = inspect.getsourcelines(gemm.specialized.function)
    definition = "acc = k.accumulators(A.dtype, wm, wn)"
    number = first + [text.strip() for text in source].index(definition)
    found = re.search(
        rf": (\d+) of (\d+) accumulator registers \(gemm.py:{number}: {re.escape(definition)}\)"
        r".* would spill, (\d+) B of scratch traffic a k-step and wave",
        message,
    )
    assert found
    spilt, count, traffic = map(int, found.groups())
    assert 0 < spilt <= count
    assert traffic > 0
    assert traffic % (64 * REGISTER_BYTES) == 0


def test_spills_may_be_allowed() -> None:
    program = spilling({"p": 4, "c": 8}, allow_spills=True)
    producer, consumer = register_needs(program)
    assert producer.spills == ()
    assert sum(s.count for s in consumer.spills) == consumer.need - consumer.budget
    assert "would spill" in consumer.report()
    assert len(trace(program).roles) == 2


def test_a_kernel_that_would_spill_is_still_right(problem: Callable[[Program], Any]) -> None:
    program = lower(
        gemm.specialized, "gfx950", 256, 256, 128, bm=256, bn=256, p=4, c=8, allow_spills=True
    )
    data = problem(program)
    assert (execute(program, data.a, data.b) == data.c).all()


def test_accumulators_spill_before_operands() -> None:
    """A k-step touches an accumulator least, so it costs least scratch traffic."""
    program = spilling(SPILLING[0], allow_spills=True)
    consumer = register_needs(program)[1]
    assert {s.tile.name for s in consumer.spills} == {"accumulator"}
    # read and written once by each of the two matrix depths of a k-step of 64
    assert [s.bytes_per_step for s in consumer.spills] == [
        s.count * 2 * 2 * 64 * REGISTER_BYTES for s in consumer.spills
    ]


def test_pingpong8_at_the_same_tile_is_not_refused() -> None:
    """The point of the comparison: producers' registers are missing where the work is."""
    with pytest.raises(InputError, match="would spill"):
        spilling(SPILLING[0])
    assert lower(gemm.pingpong8, "gfx950", 256, 256, 512)
