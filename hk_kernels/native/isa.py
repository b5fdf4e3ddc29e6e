"""Reads the assembly of a kernel: its loops, what a turn of one issues, the registers it takes."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdnasim.errors import InputError

# Mnemonic prefix → family, first match; the families of buffer and global accesses depend on more.
FAMILIES = (
    ("v_mfma_", "mfma"),
    ("v_smfmac_", "mfma"),
    ("v_accvgpr_", "accvgpr"),
    ("v_", "valu"),
    ("scratch_", "scratch"),
    ("s_barrier", "barrier"),
    ("s_waitcnt", "wait"),
    ("s_nop", "nop"),
    ("s_setprio", "priority"),
    ("s_load_", "smem"),
    ("s_buffer_load_", "smem"),
    ("s_", "salu"),
)
LABEL = re.compile(r"([\w.$]+):")
REGISTER = re.compile(r"\b([va])(?:\[(\d+):(\d+)\]|(\d+)\b)")


@dataclass(frozen=True)
class AsmInstruction:
    """An instruction of the assembly. line: of the file, from 1. label: of the block it starts."""

    mnemonic: str
    operands: str
    line: int
    label: str = ""

    @property
    def family(self) -> str:
        """mfma, load_lds, load, store, barrier, wait, …; LDS accesses by their mnemonic."""
        if self.mnemonic.startswith(("buffer_", "global_", "flat_")):
            return self._global_family()
        if self.mnemonic.startswith("ds_"):
            return self.mnemonic
        for prefix, family in FAMILIES:
            if self.mnemonic.startswith(prefix):
                return family
        return "other"

    def _global_family(self) -> str:
        if "_load_" in self.mnemonic:
            is_to_lds = "_lds" in self.mnemonic or self.operands.split()[-1:] == ["lds"]
            return "load_lds" if is_to_lds else "load"
        return "store" if "_store_" in self.mnemonic else "other"

    @property
    def registers(self) -> frozenset[str]:
        """VGPRs and AGPRs that it names, such as v12."""
        found: set[str] = set()
        for kind, first, last, single in REGISTER.findall(self.operands):
            numbers = [int(single)] if single else range(int(first), int(last) + 1)
            found.update(f"{kind}{number}" for number in numbers)
        return frozenset(found)

    def __str__(self) -> str:
        return f"line {self.line}: {self.mnemonic} {self.operands}".rstrip()


@dataclass(frozen=True)
class AsmLoop:
    """A loop: the instructions from the label that a later branch goes back to, to that branch.

    is_innermost: whether no other loop is inside.
    """

    label: str
    instructions: tuple[AsmInstruction, ...]
    is_innermost: bool

    def mix(self) -> Counter[str]:
        """Instructions of a turn by family."""
        return Counter(i.family for i in self.instructions)


@dataclass(frozen=True)
class Resources:
    """What a kernel takes: registers of a wave (per lane; SGPRs: of the wave), spilled registers,
    scratch bytes of a lane, LDS bytes of a workgroup."""

    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    lds_bytes: int


@dataclass(frozen=True)
class KernelIsa:
    """A compiled kernel."""

    name: str
    instructions: tuple[AsmInstruction, ...]
    loops: tuple[AsmLoop, ...]
    resources: Resources

    def hot_loop(self, *, has_mfma: bool) -> AsmLoop:
        """The innermost loop with most MFMA; without, the one of a producer: with most loads.

        Raises InputError if there is none.
        """
        inner = [(loop, loop.mix()) for loop in self.loops if loop.is_innermost]
        if has_mfma:
            chosen = [(mix["mfma"], loop) for loop, mix in inner if mix["mfma"]]
        else:
            loads = [(mix["load_lds"] + mix["load"], loop, mix) for loop, mix in inner]
            chosen = [(count, loop) for count, loop, mix in loads if count and not mix["mfma"]]
        if not chosen:
            what = "matrix instructions" if has_mfma else "loads and no matrix instructions"
            raise InputError(f"{self.name}: the assembly has no loop with {what}")
        return max(chosen, key=lambda pair: pair[0])[1]


def parse_kernel(assembly: str, name: str = "") -> KernelIsa:
    """The kernel `name` of an assembly text, or its only one.

    Loops are found where their blocks lie in one piece. Raises InputError if there is no such
    kernel or its end or figures are missing.
    """
    names = re.findall(r"^\s*\.amdhsa_kernel\s+(\S+)", assembly, re.MULTILINE)
    if not name and len(names) == 1:
        name = names[0]
    if name not in names:
        wanted = f"no kernel '{name}'" if name else "no single kernel"
        raise InputError(f"the assembly has {wanted}; it has: {', '.join(names) or 'none'}")
    lines = assembly.splitlines()
    instructions, labels = _instructions(lines, name)
    return KernelIsa(name, instructions, _loops(instructions, labels), _resources(assembly, name))


def _instructions(
    lines: Sequence[str], name: str
) -> tuple[tuple[AsmInstruction, ...], dict[str, int]]:
    """Instructions of a function, and label → index of the instruction behind it."""
    found: list[AsmInstruction] = []
    labels: dict[str, int] = {}
    waiting = ""
    is_inside = False
    for number, line in enumerate(lines, 1):
        text = line.split(";")[0].split("//")[0].strip()
        label = LABEL.match(text)
        if not is_inside:
            is_inside = bool(label and label[1] == name)
        elif label and label[1].startswith(".Lfunc_end"):
            return tuple(found), labels
        elif label:
            waiting = label[1]
            labels[waiting] = len(found)
        elif text and not text.startswith((".", "#")):
            mnemonic, _, operands = text.partition(" ")
            mnemonic = re.sub("_(e32|e64)$", "", mnemonic)
            found.append(AsmInstruction(mnemonic, operands.strip(), number, waiting))
            waiting = ""
    raise InputError(f"{name}: the assembly has no end of the function (.Lfunc_end)")


def _loops(instructions: tuple[AsmInstruction, ...], labels: dict[str, int]) -> tuple[AsmLoop, ...]:
    ends: dict[str, int] = {}
    for index, i in enumerate(instructions):
        if i.mnemonic.startswith(("s_cbranch", "s_branch")):
            target = i.operands.split()[-1]
            if labels.get(target, index + 1) <= index:
                ends[target] = index
    spans = {label: (labels[label], end) for label, end in ends.items()}
    loops = []
    for label, (first, last) in spans.items():
        others = [span for other, span in spans.items() if other != label]
        has_inner = any(first <= start and end <= last for start, end in others)
        loops.append(AsmLoop(label, instructions[first : last + 1], not has_inner))
    return tuple(loops)


def _resources(assembly: str, name: str) -> Resources:
    """From the kernel's metadata, a list item at an indentation of two."""
    items = re.split(r"^  - ", assembly, flags=re.MULTILINE)
    mine = [item for item in items if re.search(rf"^\s+\.name:\s+{re.escape(name)}$", item, re.M)]
    if not mine:
        raise InputError(f"{name}: the assembly has no metadata of it")
    values = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)$", mine[0], re.M)}
    keys = ("vgpr_count", "sgpr_count", "private_segment_fixed_size", "group_segment_fixed_size")
    missing = [key for key in keys if key not in values]
    if missing:
        raise InputError(f"{name}: its metadata has no .{missing[0]}")
    agprs = values.get("agpr_count", 0)
    exact = re.search(rf"^\s*\.set {re.escape(name)}\.num_vgpr, (\d+)$", assembly, re.MULTILINE)
    return Resources(
        # vgpr_count is of both kinds, the VGPRs rounded up
        vgprs=int(exact[1]) if exact else values["vgpr_count"] - agprs,
        agprs=agprs,
        sgprs=values["sgpr_count"],
        vgpr_spills=values.get("vgpr_spill_count", 0),
        sgpr_spills=values.get("sgpr_spill_count", 0),
        scratch_bytes=values["private_segment_fixed_size"],
        lds_bytes=values["group_segment_fixed_size"],
    )


def early_uses(kernel: KernelIsa) -> list[AsmInstruction]:
    """Instructions that name a register which an LDS read before them may still be filling.

    The order is that of the text, each loop a second time with what its end leaves under way. A
    read of inline assembly has no wait of the compiler's, so a copy or a spill in between would
    take an old value: there must be none.
    """
    waiting: deque[frozenset[str]] = deque()
    found = dict.fromkeys(_early(kernel.instructions, waiting))
    for loop in kernel.loops:
        waiting = deque()
        _early(loop.instructions, waiting)
        found |= dict.fromkeys(_early(loop.instructions, waiting))
    return list(found)


def _early(
    instructions: Iterable[AsmInstruction], waiting: deque[frozenset[str]]
) -> list[AsmInstruction]:
    """Early uses, given the registers of the outstanding LDS operations, oldest first."""
    early = []
    for i in instructions:
        limit = re.search(r"lgkmcnt\((\d+)\)", i.operands)
        if i.family == "wait" and limit:
            while len(waiting) > int(limit[1]):
                waiting.popleft()
        if any(registers & i.registers for registers in waiting):
            early.append(i)
        if i.mnemonic.startswith("ds_"):
            is_read = i.mnemonic.startswith("ds_read")
            target = AsmInstruction(i.mnemonic, i.operands.split(",")[0], i.line)
            waiting.append(target.registers if is_read else frozenset())
        elif i.family == "smem":
            waiting.append(frozenset())
    return early
