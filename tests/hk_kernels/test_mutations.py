"""Kernels with one mistake put in: the reference reading says so, or numbers come out wrong.

Mistakes go into the lowered program, so that each is one change of one instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hk_kernels.lower.program import GlobalAccess, Instruction, Loop, Node, Only, Program, walk
from hk_kernels.lower.reference import KernelError, execute
from hk_kernels.tile.expr import Expr, Symbol

STEPS = 5
Choice = Callable[[Instruction], bool]
Change = Callable[[Instruction], list[Node]]
WAVE = Symbol("wave")


# Editing ------------------------------------------------------------------------------------------


def edited(program: Program, change: Callable[[Node], list[Node] | None]) -> Program:
    """The program with each node replaced by what `change` gives for it; None: look inside."""

    def body(nodes: list[Node]) -> list[Node]:
        result: list[Node] = []
        for node in nodes:
            new = change(node)
            if new is not None:
                result += new
            elif isinstance(node, Loop):
                result.append(Loop(node.variable, node.count, node.line, body(node.body)))
            elif isinstance(node, Only):
                result.append(Only(node.condition, node.line, body(node.body)))
            else:
                result.append(node)
        return result

    return replace(program, body=body(program.body))


def chosen(program: Program, choice: Choice) -> list[Instruction]:
    return [n for n in walk(program.body) if isinstance(n, Instruction) and choice(n)]


def one(choice: Choice, which: int, change: Change) -> Callable[[Program], Program]:
    """Change the instruction number `which` of those chosen."""

    def mutate(program: Program) -> Program:
        target = chosen(program, choice)[which]
        return edited(program, lambda node: change(target) if node is target else None)

    return mutate


def every(choice: Choice, change: Change) -> Callable[[Program], Program]:
    """Change all instructions chosen."""

    def mutate(program: Program) -> Program:
        return edited(
            program,
            lambda node: change(node) if isinstance(node, Instruction) and choice(node) else None,
        )

    return mutate


def swapped(choice: Choice, which: int, partner: Choice, step: int) -> Callable[[Program], Program]:
    """Move the chosen instruction across the next (step 1) or last (step -1) partner."""

    def mutate(program: Program) -> Program:
        target = chosen(program, choice)[which]

        def within(nodes: list[Node]) -> list[Node]:
            nodes = list(nodes)
            for node in nodes:
                if isinstance(node, Loop | Only):
                    node.body = within(node.body)
            if any(node is target for node in nodes):
                place = next(i for i, node in enumerate(nodes) if node is target)
                other = place + step
                while not (isinstance(nodes[other], Instruction) and partner(nodes[other])):
                    other += step
                nodes.insert(other, nodes.pop(place))
            return nodes

        copy = edited(program, lambda node: None)
        return replace(copy, body=within(copy.body))

    return mutate


def in_turn(*mutations: Callable[[Program], Program]) -> Callable[[Program], Program]:
    def mutate(program: Program) -> Program:
        for mutation in mutations:
            program = mutation(program)
        return program

    return mutate


def drop(i: Instruction) -> list[Node]:
    return []


def twice(i: Instruction) -> list[Node]:
    return [i, i]


def only(condition: Expr) -> Change:
    return lambda i: [Only(condition, i.line, [i])]


def lds(move: Callable[[Expr], Expr]) -> Change:
    """Another LDS address."""

    def change(i: Instruction) -> list[Node]:
        assert i.lds is not None
        return [replace(i, lds=move(i.lds))]

    return change


def memory(move: Callable[[GlobalAccess], Expr]) -> Change:
    """Another global address."""

    def change(i: Instruction) -> list[Node]:
        assert i.memory is not None
        return [replace(i, memory=replace(i.memory, offset=move(i.memory)))]

    return change


def without_role(which: int) -> Callable[[Program], Program]:
    """Drop a `with k.only(...)` part and what is in it."""

    def mutate(program: Program) -> Program:
        target = [node for node in walk(program.body) if isinstance(node, Only)][which]
        return edited(program, lambda node: [] if node is target else None)

    return mutate


def turns(change: int) -> Callable[[Program], Program]:
    """A k-loop that turns more or less often."""

    def longer(node: Node) -> list[Node] | None:
        if isinstance(node, Loop):
            return [Loop(node.variable, node.count + change, node.line, node.body)]
        return None

    return lambda program: edited(program, longer)


def is_barrier(i: Instruction) -> bool:
    return i.unit == "barrier"


def is_vm_wait(i: Instruction) -> bool:
    return i.vm is not None


def is_lgkm_wait(i: Instruction) -> bool:
    return i.lgkm is not None


def is_matrix(i: Instruction) -> bool:
    return i.unit == "mfma"


def is_read(i: Instruction) -> bool:
    return i.unit == "lds" and bool(i.dst)


def is_write(i: Instruction) -> bool:
    return i.unit == "lds" and not i.dst


def is_store(i: Instruction) -> bool:
    return i.is_store


def is_zero(i: Instruction) -> bool:
    return i.mnemonic == "v_mov_b32"


def loads(tensor: str) -> Choice:
    return lambda i: i.memory is not None and i.memory.tensor == tensor and not i.is_store


def is_load(i: Instruction) -> bool:
    return loads("A")(i) or loads("B")(i)


def judged(program: Program, data: Any) -> tuple[str, str]:
    """caught, with the message; else wrong or right, by numpy."""
    try:
        c = execute(program, data.a, data.b)
    except KernelError as error:
        return "caught", str(error)
    return ("right" if np.array_equal(c, data.c) else "wrong"), ""


# Every barrier and every wait ---------------------------------------------------------------------

KINDS: dict[str, tuple[Choice, Change]] = {
    "barrier dropped": (is_barrier, drop),
    "vm one more": (is_vm_wait, lambda i: [replace(i, vm=(i.vm or 0) + 1)]),
    "lgkm one more": (is_lgkm_wait, lambda i: [replace(i, lgkm=(i.lgkm or 0) + 1)]),
}
# How many there are in the program, loops once.
COUNTS = {
    ("pingpong8", "barrier dropped"): 28,
    ("pingpong8", "vm one more"): 5,
    ("pingpong8", "lgkm one more"): 12,
    ("pingpong8_whole", "barrier dropped"): 28,
    ("pingpong8_whole", "vm one more"): 5,
    ("pingpong8_whole", "lgkm one more"): 15,
    ("interleave4", "barrier dropped"): 8,
    ("interleave4", "vm one more"): 8,
    ("interleave4", "lgkm one more"): 13,
    ("specialized", "barrier dropped"): 5,
    ("specialized", "vm one more"): 2,
    ("specialized", "lgkm one more"): 2,
    ("pingpong8_registers", "barrier dropped"): 19,
    ("pingpong8_registers", "vm one more"): 2,
    ("pingpong8_registers", "lgkm one more"): 13,
}
# Those that change nothing in the result, and why; all others must be caught.
HARMLESS = {
    # Barriers that pace the waves, so that two of a SIMD take turns. Order is kept by those around
    # the first and around the last cluster of a k-step; in the last two steps, where nothing is
    # overwritten any more, by those around the last cluster that loads are awaited in.
    ("pingpong8", "barrier dropped"): {*range(5, 9), *range(11, 17), *range(19, 27)},
    # A stricter wait follows before the first read; the last step has no load under way.
    ("pingpong8", "vm one more"): {0, 4},
    # B0 is read early for the load that overwrites it: the last two steps load no B.
    ("pingpong8", "lgkm one more"): {4, 8},
    # The same, but the barriers around the third cluster also order: all of A is overwritten in the
    # next, also by waves that are a barrier ahead.
    ("pingpong8_whole", "barrier dropped"): {5, 6, *range(11, 17), *range(19, 27)},
    ("pingpong8_whole", "vm one more"): {0, 4},
    # The last read of A is of rows that the reader's own half of the waves overwrites, later.
    ("pingpong8_whole", "lgkm one more"): {3, 4, 5, 8, 9, 10, 13, 14},
    # The last step: nothing is loaded or overwritten any more.
    ("interleave4", "barrier dropped"): {6, 7},
    ("interleave4", "vm one more"): {6, 7},
    # Before the last cluster the reads under way are the next step's; in the last step none are.
    ("interleave4", "lgkm one more"): {3, 7, 11, 12},
    # As in pingpong8 they pace. Order is kept by the four around the last two clusters, where the
    # one buffer changes its tile; in the last step it changes no more.
    ("pingpong8_registers", "barrier dropped"): {*range(2, 6), *range(10, 18)},
    # A wait shortly before has left nothing under way; in the last step nothing is overwritten.
    ("pingpong8_registers", "lgkm one more"): {4, 6, 9, 10, 11, 12},
}
SYNCHRONISATION = [
    (name, kind, which) for (name, kind), count in COUNTS.items() for which in range(count)
]


@pytest.mark.parametrize(("name", "kind"), list(COUNTS))
def test_no_barrier_or_wait_is_left_out(
    name: str, kind: str, small_program: Callable[..., Program]
) -> None:
    choice, _ = KINDS[kind]
    assert len(chosen(small_program(name, STEPS), choice)) == COUNTS[name, kind]


@pytest.mark.parametrize(("name", "kind", "which"), SYNCHRONISATION)
def test_synchronisation(
    name: str,
    kind: str,
    which: int,
    small_program: Callable[..., Program],
    problem: Callable[[Program], Any],
) -> None:
    program = small_program(name, STEPS)
    data = problem(program)
    verdict, message = judged(one(KINDS[kind][0], which, KINDS[kind][1])(program), data)
    assert verdict == ("right" if which in HARMLESS.get((name, kind), ()) else "caught")
    if verdict == "caught":
        assert message.startswith("gemm.py:")
        assert "\n" not in message


# Other mistakes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A change of a kernel and how it shows: caught, wrong or right."""

    name: str
    what: str
    mutate: Callable[[Program], Program]
    verdict: str = "caught"

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def unswizzled(address: Expr) -> Expr:
    """st_16x32 applied once more, which undoes it (all tiles begin at multiples of 1 KiB)."""
    return address ^ (((address % 1024) >> 9) << 5)


PP, IL, SP, PR = "pingpong8", "interleave4", "specialized", "pingpong8_registers"
STAGE = 128 * 64 * 2  # bytes of a stage of A or B in the small pingpong8
MISTAKES = [
    Mistake(PP, "no stagger", without_role(0)),
    Mistake(PP, "stagger not made up for", without_role(1)),
    Mistake(PP, "a barrier in the loop for half of the waves", one(is_barrier, 4, only(WAVE < 4))),
    Mistake(PP, "a barrier in the loop for wave 0", one(is_barrier, 9, only(WAVE < 1))),
    Mistake(PP, "A to the other stage", one(loads("A"), -3, lds(lambda a: a ^ STAGE))),
    Mistake(PP, "B to the other stage", one(loads("B"), -1, lds(lambda a: a ^ STAGE))),
    Mistake(PP, "A to the other half", one(loads("A"), -3, lds(lambda a: a ^ STAGE // 2))),
    Mistake(PP, "A in the place of B", every(loads("A"), lds(lambda a: a + 2 * STAGE))),
    Mistake(PP, "LDS beyond the end", every(loads("B"), lds(lambda a: a + 2 * STAGE))),
    Mistake(PP, "LDS not aligned", one(is_read, 30, lds(lambda a: a + 2))),
    Mistake(PP, "a k-step too far", every(loads("A"), memory(lambda g: g.offset + 128))),
    Mistake(PP, "a row too far", every(loads("B"), memory(lambda g: g.offset + g.pitch))),
    Mistake(PP, "before the tensor", one(loads("A"), 0, memory(lambda g: g.offset - 16))),
    Mistake(PP, "a load of the prologue left out", one(is_load, 1, drop)),
    Mistake(PP, "a load of the loop left out", one(is_load, 8, drop)),
    Mistake(PP, "a read left out", one(is_read, 3, drop)),
    Mistake(PP, "an accumulator not zeroed", one(is_zero, 5, drop)),
    Mistake(PP, "an element stored twice", one(is_store, 0, twice)),
    Mistake(PP, "the loop turns too often", turns(+1)),
    Mistake(PP, "load before the barrier", swapped(loads("B"), 4, is_barrier, -1)),
    Mistake(PP, "wait after the barrier", swapped(is_vm_wait, 2, is_barrier, +1)),
    Mistake(PP, "early wait for B0 left out", one(is_lgkm_wait, 0, drop)),
    Mistake(PP, "wait for reads left out", one(is_lgkm_wait, 1, drop)),
    Mistake(PP, "wait for loads left out", one(is_vm_wait, 2, drop)),
    Mistake(PP, "product before its wait", swapped(is_matrix, 0, is_lgkm_wait, -1)),
    Mistake("pingpong8_whole", "wait for all of A left out", one(is_lgkm_wait, 3, drop)),
    Mistake(IL, "load before the barrier", swapped(loads("B"), 5, is_barrier, -1)),
    Mistake(IL, "wait after the barrier", swapped(is_vm_wait, 2, is_barrier, +1)),
    Mistake(IL, "a load to the other stage", one(is_load, -1, lds(lambda a: a ^ 64 * 64 * 2))),
    Mistake(IL, "a load left out", one(is_load, 6, drop)),
    Mistake(IL, "a barrier for one wave less", one(is_barrier, 3, only(WAVE < 3))),
    Mistake(IL, "a read of the next step too early", swapped(is_read, 15, is_barrier, -1)),
    Mistake(SP, "a barrier of the producers left out", one(is_barrier, 1, drop)),
    Mistake(SP, "a barrier of the consumers left out", one(is_barrier, 4, drop)),
    Mistake(SP, "producers meet before they wait", swapped(is_vm_wait, 1, is_barrier, +1)),
    Mistake(SP, "a producer less", one(loads("A"), 2, only(WAVE < 3))),
    Mistake(SP, "to the stage in use", every(loads("A"), lds(lambda a: a ^ 64 * 64 * 2))),
    Mistake(SP, "consumers meet before their last read", swapped(is_barrier, 4, is_read, -1)),
    Mistake(PR, "write before the barrier", swapped(is_write, -1, is_barrier, -1)),
    Mistake(PR, "a write left out", one(is_write, 0, drop)),
    Mistake(PR, "wait for loads left out", one(is_vm_wait, 1, drop)),
    Mistake(PR, "a k-step too far", every(loads("B"), memory(lambda g: g.offset + 128))),
    Mistake(PP, "reads of one half of B", every(is_read, lds(lambda a: a & ~8192))),
    Mistake(PP, "the loop turns too seldom", turns(-1)),
    # The numbers tell.
    Mistake(PP, "swizzle on the LDS side only", every(is_read, lds(unswizzled)), "wrong"),
    Mistake(
        PP,
        "swizzle on the global side only",
        every(is_load, memory(lambda g: g.offset ^ ((Symbol("lane") >> 5) << 5))),
        "wrong",
    ),
    Mistake(SP, "the loops turn too seldom", turns(-1), "wrong"),
    Mistake(PR, "a read of other rows", one(is_read, 0, lds(lambda a: a ^ 16 * 128)), "wrong"),
    Mistake(
        PP,
        "A and B of a product changed over",
        one(is_matrix, 3, lambda i: [replace(i, src=i.src[4:] + i.src[:4])]),
        "wrong",
    ),
    Mistake(PP, "a product left out", one(is_matrix, 9, drop), "wrong"),
    Mistake(PP, "a product too much", one(is_matrix, 9, twice), "wrong"),
    Mistake(IL, "swizzle on the LDS side only", every(is_read, lds(unswizzled)), "wrong"),
    Mistake(SP, "swizzle on the LDS side only", every(is_read, lds(unswizzled)), "wrong"),
    Mistake(
        PR,
        "swizzle of the writes only",
        every(is_read, lds(lambda a: a ^ (a % 2048 >> 7 << 3))),
        "wrong",
    ),
    # Not mistakes.
    Mistake(PP, "no stagger at all", in_turn(without_role(0), without_role(0)), "right"),
    Mistake(PP, "all waits to zero", every(is_vm_wait, lambda i: [replace(i, vm=0)]), "right"),
    Mistake(PP, "a barrier more for all", one(is_barrier, 5, twice), "right"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_mistakes(
    mistake: Mistake,
    small_program: Callable[..., Program],
    problem: Callable[[Program], Any],
) -> None:
    program = small_program(mistake.name, STEPS)
    data = problem(program)
    verdict, message = judged(mistake.mutate(program), data)
    assert (verdict, message.count("\n")) == (mistake.verdict, 0)
    if verdict == "caught":
        assert message.startswith("gemm.py:")


def test_a_store_left_out_is_found_at_the_end(
    small_program: Callable[..., Program], problem: Callable[[Program], Any]
) -> None:
    """It has no line to name: what is missing is nowhere."""
    program = small_program(PP, STEPS)
    verdict, message = judged(one(is_store, 0, drop)(program), problem(program))
    assert verdict == "caught"
    assert message == "pingpong8: tile (0, 0) of C is not written exactly once"


def test_the_program_itself_is_not_touched(small_program: Callable[..., Program]) -> None:
    """Mutations copy: else one test would judge the mistakes of another."""
    program = small_program(PP, STEPS)
    before = [id(node) for node in walk(program.body)]
    for mistake in MISTAKES:
        if mistake.name == PP:
            mistake.mutate(program)
    assert [id(node) for node in walk(program.body)] == before
