"""Compares what was traced with what a compiler made: the k-step of each role, the registers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hk_kernels.lower.program import Instruction, Loop, Node, Program
from hk_kernels.lower.registers import register_needs, steady_loop
from hk_kernels.native.isa import AsmInstruction, AsmLoop, Resources, early_uses, parse_kernel

EXTRAS = ("accvgpr", "scratch", "nop", "wait", "valu", "salu", "smem", "other")
UNITS = {"mfma": "mfma", "barrier": "barrier", "wait": "wait", "valu": "valu", "salu": "salu"}


@dataclass(frozen=True)
class RoleComparison:
    """The k-step of a role, traced and compiled.

    traced, compiled: MFMA, LDS accesses, loads, stores, barriers, priorities by family (isa.py).
    extras: how many more of the other families the compiler has, zeros left out. is_in_order:
    whether the traced instructions come in the traced order, but for where the loop begins: the
    same MFMA, widths and, if the compiler has added no waits, the same waits.
    """

    waves: tuple[int, ...]
    loop: str
    traced: dict[str, int]
    compiled: dict[str, int]
    extras: dict[str, int]
    is_in_order: bool

    @property
    def is_equal(self) -> bool:
        """Whether the compiled loop has what was traced, in order."""
        return self.traced == self.compiled and self.is_in_order

    def differences(self) -> Iterator[str]:
        """One line on each family that differs."""
        who = f"waves {self.waves[0]}-{self.waves[-1]}"
        for family in sorted(self.traced.keys() | self.compiled.keys()):
            traced, compiled = self.traced.get(family, 0), self.compiled.get(family, 0)
            if traced != compiled:
                yield f"{who}: {traced} {family} a k-step traced, {compiled} compiled"
        if self.traced == self.compiled and not self.is_in_order:
            yield f"{who}: the instructions of a k-step are not in the traced order"


@dataclass(frozen=True)
class IsaComparison:
    """A compiled kernel against its program.

    vgprs, agprs: predicted, the most of all roles. early_uses: instructions that may take a
    register before it is read from LDS.
    """

    kernel: str
    roles: tuple[RoleComparison, ...]
    resources: Resources
    vgprs: int
    agprs: int
    early_uses: tuple[AsmInstruction, ...]

    @property
    def is_equal(self) -> bool:
        """Whether each role's k-step is as traced and no register is used early."""
        return not self.differences()

    def differences(self) -> list[str]:
        """One line on each difference; empty if there is none."""
        lines = [line for role in self.roles for line in role.differences()]
        uses = [f"{i} may come before its registers are read from LDS" for i in self.early_uses]
        return lines + uses

    def report(self) -> list[str]:
        """A line on the registers, two a role, and one on each difference."""
        r = self.resources
        lines = [
            f"{self.kernel}: {r.vgprs} VGPRs and {r.agprs} AGPRs (predicted {self.vgprs} and "
            f"{self.agprs}), {r.sgprs} SGPRs, {r.vgpr_spills} spills, {r.scratch_bytes} B of "
            f"scratch, {r.lds_bytes} B of LDS"
        ]
        for role in self.roles:
            who = f"waves {role.waves[0]}-{role.waves[-1]}"
            lines.append(f"{who}: {_listed(role.compiled)} a k-step")
            lines.append(f"{who}: beside them {_listed(role.extras) or 'nothing'}")
        return lines + self.differences()


def compare_isa(program: Program, assembly: str) -> IsaComparison:
    """The compiled kernel of `program` against what was traced of it.

    Raises InputError if the assembly has no such kernel or no loop for one of its roles.
    """
    kernel = parse_kernel(assembly, program.name)
    needs = register_needs(program)
    roles = []
    for need in needs:
        traced = list(_flat(steady_loop(program.of_wave(need.waves[0])).body))
        loop = kernel.hot_loop(has_mfma=any(i.mfma for i in traced))
        roles.append(_role(need.waves, loop, traced))
    return IsaComparison(
        kernel.name,
        tuple(roles),
        kernel.resources,
        max(need.vgprs for need in needs),
        max(need.agprs for need in needs),
        tuple(early_uses(kernel)),
    )


def traced_family(i: Instruction) -> str:
    """The family (isa.py) of a traced instruction; empty for what is no instruction."""
    if i.unit == "vmem":
        return "load_lds" if i.loads_lds else "load" if i.dst else "store"
    if i.unit == "lds":
        return i.mnemonic
    if i.mnemonic == "s_setprio":
        return "priority"
    return UNITS.get(i.unit, "")


def _role(waves: tuple[int, ...], loop: AsmLoop, traced: list[Instruction]) -> RoleComparison:
    wanted, found = Counter(map(traced_family, traced)), loop.mix()
    main = [f for f in (*wanted, *found) if f and f not in EXTRAS]
    extras = {family: found[family] - wanted[family] for family in EXTRAS}
    left_out = {"", *EXTRAS}
    if not extras["wait"]:
        left_out.remove("wait")
    return RoleComparison(
        waves,
        loop.label,
        {family: wanted[family] for family in main if wanted[family]},
        {family: found[family] for family in main if found[family]},
        {family: count for family, count in extras.items() if count},
        is_rotation(
            [_traced_text(i) for i in traced if traced_family(i) not in left_out],
            [_compiled_text(i) for i in loop.instructions if i.family not in left_out],
        ),
    )


def _traced_text(i: Instruction) -> str:
    counts = (("vmcnt", i.vm), ("lgkmcnt", i.lgkm))
    limits = [f"{counter}({limit})" for counter, limit in counts if limit is not None]
    return " ".join([i.mnemonic, traced_family(i), *limits])


def _compiled_text(i: AsmInstruction) -> str:
    limits = re.findall(r"(?:vm|lgkm)cnt\(\d+\)", i.operands)
    return " ".join([i.mnemonic.replace("_mfma_scale_", "_mfma_"), i.family, *limits])


def is_rotation(first: list[str], second: list[str]) -> bool:
    """Whether `second` is `first`, begun at another place of the cycle."""
    if len(first) != len(second):
        return False
    return first == second or any(
        first[start:] + first[:start] == second for start in range(1, len(first))
    )


def _flat(body: list[Node]) -> Iterator[Instruction]:
    for node in body:
        if isinstance(node, Instruction):
            yield node
        elif isinstance(node, Loop):
            for _ in range(node.count):
                yield from _flat(node.body)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {family}" for family, count in counts.items())
