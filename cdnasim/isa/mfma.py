"""Matrix instructions: shapes, passes and wait states, from mfma.csv (sources there)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cdnasim.errors import InputError

CLOCKS_PER_PASS = 4  # CDNA 3 and 4 instruction set guides: a pass is four clocks


@dataclass(frozen=True)
class MfmaFacts:
    """One matrix instruction with one pair of operand types.

    passes: 4 clk each of the SIMD's matrix pipe. ws_*: wait states (issue slots of 4 clk) before a
    dependent instruction: an MFMA that accumulates on the same registers, on overlapping ones, that
    reads the result as A or B; a VALU, a VMEM or LDS instruction; a VALU that overwrites C. None:
    not published.
    """

    arch: str
    mnemonic: str
    m: int
    n: int
    k: int
    blocks: int
    a_dtype: str
    b_dtype: str
    passes: int
    ws_src_c_same: int | None
    ws_src_c_overlap: int | None
    ws_src_ab: int | None
    ws_valu: int | None
    ws_vmem_lds: int | None
    ws_war: int | None

    @property
    def clocks(self) -> int:
        """Clocks of the matrix pipe: the issue interval of independent ones on a SIMD."""
        return CLOCKS_PER_PASS * self.passes


@cache
def mfma_facts() -> tuple[MfmaFacts, ...]:
    """All matrix instructions known."""
    text = (resources.files("cdnasim.isa") / "mfma.csv").read_text(encoding="utf-8")
    facts = []
    for row in csv.DictReader(text.splitlines()):
        texts = {key: row[key] for key in ("arch", "mnemonic", "a_dtype", "b_dtype")}
        numbers = {
            key: int(row[key]) if row[key] else None
            for key in row
            if key in MfmaFacts.__dataclass_fields__ and key not in texts
        }
        facts.append(MfmaFacts(**texts, **numbers))  # type: ignore[arg-type]  # by field name
    return tuple(facts)


def find_mfma(arch: str, m: int, n: int, k: int, dtype: str) -> MfmaFacts | None:
    """The unblocked, unscaled instruction of this shape with both operands of `dtype`, if any."""
    for facts in mfma_facts():
        shape = (facts.arch, facts.m, facts.n, facts.k, facts.blocks)
        is_plain = facts.mnemonic.startswith(("v_mfma_", "mma.")) and "scale" not in facts.mnemonic
        if is_plain and shape == (arch, m, n, k, 1) and facts.a_dtype == facts.b_dtype == dtype:
            return facts
    return None


@cache
def accumulate_wait_states(arch: str, mnemonic: str, clocks: int) -> int:
    """Issue slots between this matrix instruction and one that accumulates on its result."""
    for facts in mfma_facts():
        if (facts.arch, facts.mnemonic, facts.clocks) == (arch, mnemonic, clocks):
            return facts.ws_src_c_same or 0
    return 0


@cache
def mfma_wait_states(arch: str, mnemonic: str, clocks: int) -> int:
    """Issue slots between this matrix instruction and a VALU that reads its result.

    clocks tell the operand types of one mnemonic apart. Raises InputError for an unknown one.
    """
    for facts in mfma_facts():
        if (facts.arch, facts.mnemonic, facts.clocks) == (arch, mnemonic, clocks):
            if facts.ws_valu is None:
                break
            return facts.ws_valu
    raise InputError(f"{mnemonic} of {clocks} clk on {arch}: its wait states are not known")
