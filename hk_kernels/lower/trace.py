"""The trace reading: a lowered program as the simulator's KernelTrace."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cdnasim.errors import InputError
from cdnasim.isa.lds import conflict
from cdnasim.trace.model import (
    SIMDS,
    VERSION,
    KernelTrace,
    TraceInstruction,
    TraceLoop,
    TraceNode,
    TraceOperand,
    TraceRole,
)
from hk_kernels.lower.program import Instruction, Line, Loop, Node, Program, walk
from hk_kernels.lower.registers import RegisterNeed, register_needs, steady_loop
from hk_kernels.lower.target import target_named

OPERANDS = ("A", "B")  # the streamed tensors and the axis of C that chooses their block
AXES = {"A": "row", "B": "column"}
REGISTER_BYTES = 4  # of a lane
ARGUMENT_BYTES = 32  # three pointers and sizes: what s_load_dwordx8 brings
TURNS = 20  # of the loop until the loads under way are those of a steady state


def trace(program: Program, registers: str = "pinned") -> KernelTrace:
    """The trace of a GEMM-shaped program.

    registers: `pinned` as the definition places them; `compiler` with what hipcc adds where they do
    not fit: reloads and stores of spilled registers, moves of operands out of AGPRs.
    """
    reader = _Reader(program, registers == "compiler")
    roles = [reader.role(need) for need in register_needs(program)]
    bodies = [program.of_wave(role.waves[0]) for role in roles]
    groups = [(len(role.waves), body) for role, body in zip(roles, bodies, strict=True)]
    per_simd = _busiest_simd(roles, [_matrix_clocks(body) for body in bodies])
    dtype = program.tensors[0].dtype
    bm, bn, bk = program.tile
    return KernelTrace(
        version=VERSION,
        kernel=program.name,
        arch=program.arch,
        dtype=dtype.name,
        parameters={k: v for k, v in program.parameters.items() if isinstance(v, int)},
        waves=program.waves,
        waves_per_simd=program.waves_per_simd,
        lds_bytes=program.lds_bytes,
        tile=[bm, bn, bk],
        k_steps=program.tensors[0].cols // bk,
        matrix_clocks=per_simd,
        clusters=_busiest_simd(roles, [_clusters(body) for body in bodies]),
        store_bytes=bm * bn * program.tensors[2].dtype.bytes,
        operands=[_operand(program, name, groups, per_simd) for name in OPERANDS],
        roles=roles,
        lines=[str(line) for line in reader.lines],
    )


class _Reader:
    """Turns instructions into trace instructions; numbers the source lines."""

    def __init__(self, program: Program, is_compiled: bool) -> None:
        self.program = program
        self.names = target_named(program.arch).names
        self.is_compiled = is_compiled
        self.lines: dict[Line, int] = {}
        self.spilled: frozenset[int] = frozenset()
        self.moved: frozenset[int] = frozenset()

    def role(self, need: RegisterNeed) -> TraceRole:
        body = self.program.of_wave(need.waves[0])
        lane = np.arange(self.program.lanes)
        env = {"wave": need.waves[0], "lane": lane, "tile_row": 0, "tile_col": 0}
        k_loop = steady_loop(body)
        env |= {node.variable: 0 for node in walk(body) if isinstance(node, Loop)}
        if self.is_compiled:
            self.spilled = frozenset(r for spill in need.spills for r in spill.registers)
            self.moved = frozenset(need.moved) - self.spilled
        nodes = [*self._entry(), *self._nodes(body, env, k_loop), *self._exit()]
        over = len(self.spilled)
        return TraceRole(list(need.waves), need.vgprs - over, need.agprs, nodes)

    def _entry(self) -> list[TraceNode]:
        """What a compiled kernel does first: it loads its arguments."""
        if not self.names.arguments:
            return []
        load = self._plain(self.names.arguments, "smem")
        wait = self._plain(self.names.wait, "wait")
        return [replace(load, bytes=ARGUMENT_BYTES), replace(wait, lgkm=0)]

    def _exit(self) -> list[TraceNode]:
        return [self._plain(self.names.end, "salu")] if self.names.end else []

    def _plain(self, mnemonic: str, unit: str) -> TraceInstruction:
        """An instruction around the definition's own, on its first line."""
        first = next(i for i in _instructions(self.program.body)).line
        line = self.lines.setdefault(first, len(self.lines))
        return TraceInstruction(mnemonic, unit, line, [], [])

    def _nodes(self, body: list[Node], env: dict[str, object], k_loop: Loop) -> list[TraceNode]:
        nodes: list[TraceNode] = []
        for node in body:
            if isinstance(node, Loop):
                inner = self._nodes(node.body, env, k_loop)
                nodes.append(TraceLoop(node.count, node is k_loop, inner))
            elif isinstance(node, Instruction):
                nodes += self._fetched(node)
                nodes.append(self._instruction(node, env))
                nodes += self._put_away(node)
        return nodes

    def _fetched(self, i: Instruction) -> list[TraceNode]:
        """What a compiler puts before an instruction whose operands are not in VGPRs."""
        reads = [*i.src, *(i.dst if i.mfma else ())]
        nodes: list[TraceNode] = [
            self._extra(i, "v_accvgpr_read_b32", "valu", dst=r) for r in reads if r in self.moved
        ]
        loads = [
            self._extra(i, "scratch_load_dword", "vmem", dst=r)
            for r in dict.fromkeys(reads)
            if r in self.spilled
        ]
        if loads:
            nodes += [*loads, replace(self._extra(i, "s_waitcnt", "wait"), vm=0)]
        return nodes

    def _put_away(self, i: Instruction) -> list[TraceNode]:
        """The stores of spilled registers that an instruction writes."""
        stores = [
            self._extra(i, "scratch_store_dword", "vmem", src=r) for r in i.dst if r in self.spilled
        ]
        if stores and i.unit == "lds":
            return [replace(self._extra(i, "s_waitcnt", "wait"), lgkm=0), *stores]
        return [*stores]

    def _extra(
        self, i: Instruction, mnemonic: str, unit: str, *, dst: int = -1, src: int = -1
    ) -> TraceInstruction:
        """An instruction of the compiler's on behalf of `i`."""
        return TraceInstruction(
            mnemonic=mnemonic,
            unit=unit,
            line=self.lines.setdefault(i.line, len(self.lines)),
            dst=[dst] if dst >= 0 else [],
            src=[src] if src >= 0 else [],
            bytes=REGISTER_BYTES * self.program.lanes if unit == "vmem" else 0,
        )

    def _instruction(self, i: Instruction, env: dict[str, object]) -> TraceInstruction:
        clocks, conflicts = 0, 0
        if i.mfma:
            clocks = i.mfma.clocks
        elif i.unit == "lds" and i.lds is not None:
            lanes = (self.program.lanes,)
            addresses = np.broadcast_to(np.asarray(i.lds.evaluate(env)), lanes)
            access = conflict(addresses, i.mnemonic, self.program.arch)
            clocks, conflicts = access.clocks - access.conflict_clocks, access.conflict_clocks
        tensor = i.memory.tensor if i.memory else ""
        return TraceInstruction(
            mnemonic=i.mnemonic,
            unit=i.unit,
            line=self.lines.setdefault(i.line, len(self.lines)),
            dst=list(i.dst),
            src=list(i.src),
            bytes=i.width * self.program.lanes,
            clocks=clocks,
            conflict_clocks=conflicts,
            operand=OPERANDS.index(tensor) if tensor in OPERANDS else -1,
            loads_lds=i.loads_lds,
            vm=-1 if i.vm is None else i.vm,
            lgkm=-1 if i.lgkm is None else i.lgkm,
            value=i.value,
        )


def _busiest_simd(roles: list[TraceRole], per_wave: list[int]) -> int:
    """Sum over the waves of the SIMD that has most; wave w runs on SIMD w mod 4."""
    sums = [0] * SIMDS
    for role, amount in zip(roles, per_wave, strict=True):
        for wave in role.waves:
            sums[wave % SIMDS] += amount
    return max(sums)


def _instructions(body: list[Node]) -> Iterator[Instruction]:
    for node in walk(body):
        if isinstance(node, Instruction):
            yield node


def _matrix_clocks(body: list[Node]) -> int:
    """Clocks of the matrix pipe that a wave asks for in a k-step."""
    return sum(i.mfma.clocks for i in _instructions(steady_loop(body).body) if i.mfma)


def _clusters(body: list[Node]) -> int:
    """Runs of MFMA between barriers in a k-step."""
    count, inside = 0, False
    for i in _instructions(steady_loop(body).body):
        if i.mfma and not inside:
            count, inside = count + 1, True
        elif i.unit == "barrier":
            inside = False
    return count


def _operand(
    program: Program, name: str, groups: list[tuple[int, list[Node]]], step_clocks: int
) -> TraceOperand:
    """What a k-step loads of a tensor, and how early."""
    slab, leads = 0, []
    for count, body in groups:
        loads = [
            i
            for i in _instructions(steady_loop(body).body)
            if i.memory and i.memory.tensor == name and not i.is_store
        ]
        slab += count * sum(i.width * program.lanes for i in loads)
        if loads:
            leads.append(_lead(steady_loop(body).body, name, step_clocks))
    if not leads:
        raise InputError(f"{program.name}: the k-loop loads nothing of {name}")
    tensor = next(t for t in program.tensors if t.name == name)
    piece = program.tile[2] * tensor.dtype.bytes
    return TraceOperand(name, AXES[name], slab, piece, min(leads) / step_clocks)


def _lead(loop: list[Node], tensor: str, step_clocks: int) -> float:
    """Matrix clocks of the SIMD from the issue of a load of `tensor` to the wait that completes it.

    The loop is walked a few times round; time advances by the MFMAs, the SIMD's other waves in
    proportion. A wave without MFMAs (a producer) has the k-step of the others: the least of all
    loads.
    """
    instructions = list(_instructions(loop))
    own = sum(i.mfma.clocks for i in instructions if i.mfma)
    if not own:
        return float(step_clocks)
    outstanding: deque[tuple[float, bool]] = deque()
    now, leads = 0.0, []
    for turn in range(TURNS):
        for i in instructions:
            if i.mfma:
                now += i.mfma.clocks * step_clocks / own
            elif i.unit == "vmem":
                outstanding.append((now, i.memory is not None and i.memory.tensor == tensor))
            elif i.unit == "wait" and i.vm is not None:
                while len(outstanding) > i.vm:
                    issued, is_wanted = outstanding.popleft()
                    if is_wanted and turn == TURNS - 1:
                        leads.append(now - issued)
    return min(leads, default=0.0)
