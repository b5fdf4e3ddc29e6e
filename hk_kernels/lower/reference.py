"""The reference reading: executes a lowered program in numpy and judges its synchronisation.

Registers, LDS bytes and global tensors are real; all waves of a workgroup run barrier by barrier. A
load's data arrive when a wait says so and no earlier, and every byte of LDS remembers who last
wrote and read it, so what works only by luck of timing is an error here:

- registers or LDS bytes read before anything was written there, or while a load is under way
- LDS touched by two waves, one of them writing, without wait and barrier in between
- barriers that not all waves reach, global addresses outside their tensor

Two events of different waves are ordered if the first is complete (its wave has waited for it)
before a barrier that lies before the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hk_kernels.lower.program import Instruction, Line, Loop, Node, Program
from hk_kernels.tile.dtypes import bf16
from hk_kernels.tile.layouts import QUAD, ROWS, accumulator_elements, operand_elements

PENDING = np.iinfo(np.int32).max  # epoch of an event that no wait has covered yet
NEVER = -1
LDMATRIX = "ldmatrix.x4"
ARITHMETIC: dict[str, Callable[..., NDArray[np.float32]]] = {
    "v_add_f32": np.add,
    "v_sub_f32": np.subtract,
    "v_mul_f32": np.multiply,
    "v_max_f32": np.maximum,
}


class KernelError(Exception):
    """A mistake of the kernel; the message is one line that names the kernel's line."""


@dataclass
class _Operation:
    """A memory operation that a wait will complete."""

    instruction: Instruction
    words: NDArray[np.int64] | None  # LDS dwords read or written
    data: NDArray[np.uint32] | None  # what arrives: registers (count, lanes), or LDS words


class Workgroup:
    """One workgroup of a program on real data. tensors: name → array of its storage type."""

    def __init__(
        self, program: Program, tensors: Mapping[str, NDArray[Any]], tile: tuple[int, int]
    ) -> None:
        self.program = program
        self.bytes = {name: array.view(np.uint8).reshape(-1) for name, array in tensors.items()}
        self.written = {name: np.zeros(len(data), bool) for name, data in self.bytes.items()}
        words = max(1, program.lds_bytes // 4)
        self.lds = np.zeros(words, np.uint32)
        waves = program.waves
        # LDS shadow: last writer's wave, the epoch in which the write was complete, its line; per
        # wave the epoch in which its latest read was complete and that read's line.
        self.write_wave = np.full(words, NEVER, np.int16)
        self.write_done = np.full(words, NEVER, np.int32)
        self.write_line = np.zeros(words, np.int32)
        self.read_done = np.full((waves, words), NEVER, np.int32)
        self.read_line = np.zeros((waves, words), np.int32)
        self.lines: list[Line] = []
        self.line_numbers: dict[Line, int] = {}
        self.waves = [_Wave(self, wave, tile) for wave in range(waves)]

    def run(self) -> None:
        """Execute all waves to their end; raises KernelError for the first mistake."""
        reached: list[Line | None] = [None] * len(self.waves)
        while True:
            for number, wave in enumerate(self.waves):
                reached[number] = wave.to_barrier()
            ended = [wave for wave, line in enumerate(reached) if line is None]
            if len(ended) == len(self.waves):
                return
            if ended:
                waiting = next(line for line in reached if line is not None)
                raise KernelError(
                    f"{waiting}: barrier {max(w.epoch for w in self.waves)} is never reached by "
                    f"wave {ended[0]}, which has ended"
                )

    def number(self, line: Line) -> int:
        """A small number for `line`, to keep in arrays."""
        if line not in self.line_numbers:
            self.line_numbers[line] = len(self.lines)
            self.lines.append(line)
        return self.line_numbers[line]


class _Wave:
    """One wave: its registers, its outstanding operations, its place in the program."""

    def __init__(self, group: Workgroup, wave: int, tile: tuple[int, int]) -> None:
        self.group = group
        self.wave = wave
        self.epoch = 0  # barriers passed
        count = max((r.first + r.count for r in group.program.registers), default=0)
        self.lane = np.arange(group.program.lanes)
        self.registers = np.zeros((count, len(self.lane)), np.uint32)
        self.valid = np.zeros(count, bool)
        self.pending: dict[int, Instruction] = {}  # register → load under way
        self.vm: deque[_Operation] = deque()
        self.lgkm: deque[_Operation] = deque()
        self.env: dict[str, Any] = {
            "wave": wave,
            "lane": self.lane,
            "tile_row": tile[0],
            "tile_col": tile[1],
        }
        self.steps = self._execute(group.program.of_wave(wave))

    def to_barrier(self) -> Line | None:
        """Run to the next barrier and past it; its line, or None if the program has ended."""
        return next(self.steps, None)

    def _execute(self, nodes: list[Node]) -> Iterator[Line]:
        for node in nodes:
            if isinstance(node, Loop):
                for count in range(node.count):
                    self.env[node.variable] = count
                    yield from self._execute(node.body)
            elif isinstance(node, Instruction):
                if node.unit == "barrier":
                    self.epoch += 1
                    yield node.line
                else:
                    self._do(node)

    def _do(self, i: Instruction) -> None:
        if i.unit == "wait":
            self._wait(self.vm, i.vm)
            self._wait(self.lgkm, i.lgkm)
        elif i.unit == "mfma":
            self._matrix(i)
        elif i.unit == "valu":
            self._vector(i)
        elif i.unit == "lds":
            self._lds(i)
        elif i.unit == "vmem":
            self._global(i)

    # registers --------------------------------------------------------------------------------

    def _read(self, i: Instruction, registers: tuple[int, ...]) -> NDArray[np.uint32]:
        for register in registers:
            if register in self.pending:
                raise KernelError(
                    f"{i.line}: {i.mnemonic} of wave {self.wave} uses a register before a wait for "
                    f"the load at {self.pending[register].line}"
                )
            if not self.valid[register]:
                raise KernelError(
                    f"{i.line}: {i.mnemonic} of wave {self.wave} reads a register never written"
                )
        return self.registers[list(registers)]

    def _write(self, i: Instruction, data: NDArray[np.uint32]) -> None:
        for register in i.dst:
            if register in self.pending:
                raise KernelError(
                    f"{i.line}: {i.mnemonic} of wave {self.wave} overwrites a register that the "
                    f"load at {self.pending[register].line} is still to fill"
                )
        self.registers[list(i.dst)] = data
        self.valid[list(i.dst)] = True

    def _expect(self, i: Instruction) -> None:
        """Mark the registers that a load will fill."""
        for register in i.dst:
            if register in self.pending:
                raise KernelError(
                    f"{i.line}: {i.mnemonic} of wave {self.wave} loads into a register that the "
                    f"load at {self.pending[register].line} is still to fill"
                )
            self.pending[register] = i

    # computation ------------------------------------------------------------------------------

    def _matrix(self, i: Instruction) -> None:
        mfma = i.mfma
        assert mfma is not None
        size = mfma.operand_vgprs
        operands = self._read(i, i.src)
        total = self._read(i, i.dst).view(np.float32)
        a = self._operand(i, operands[:size])
        b = self._operand(i, operands[size:])
        rows, cols = accumulator_elements(mfma)
        product = a @ b.T
        self._write(i, (total + product[rows, cols].T).astype(np.float32).view(np.uint32))

    def _operand(self, i: Instruction, registers: NDArray[np.uint32]) -> NDArray[np.float32]:
        mfma = i.mfma
        assert mfma is not None
        rows, ks = operand_elements(mfma)
        elements = np.ascontiguousarray(registers.T).view(mfma.dtype.storage)  # lane by lane
        matrix = np.zeros((mfma.m, mfma.k), np.float32)
        matrix[rows, ks] = elements.astype(np.float32)
        return matrix

    def _vector(self, i: Instruction) -> None:
        sources = self._read(i, i.src)
        values = sources.view(np.float32)
        result: NDArray[Any]
        if i.mnemonic in ("v_mov_b32", "mov.b32"):
            result = sources if i.src else np.zeros((1, len(self.lane)), np.uint32)
        elif i.mnemonic in ("v_cvt_pk_bf16_f32", "cvt.rn.bf16x2.f32"):
            halves = bf16.encode(values).view(np.uint16).astype(np.uint32)
            result = (halves[:1] | halves[1:] << 16).astype(np.uint32)
        elif i.mnemonic == "v_exp_f32":
            result = np.exp2(values).view(np.uint32)
        elif i.mnemonic == "v_rcp_f32":
            result = (np.float32(1) / values).view(np.uint32)
        elif i.mnemonic.removesuffix("_dpp") in ARITHMETIC:
            function = ARITHMETIC[i.mnemonic.removesuffix("_dpp")]
            if i.mnemonic.endswith("_dpp"):  # the first operand rotates in each row of 16 lanes
                turned = np.roll(values[0].reshape(-1, 16), i.value, axis=1).reshape(-1)
                values = np.stack([turned, values[1]])
            result = function(values[:1], values[1:]).astype(np.float32).view(np.uint32)
        else:
            raise KernelError(f"{i.line}: {i.mnemonic} has no reference reading")
        self._write(i, result)

    # memory -----------------------------------------------------------------------------------

    def _lds(self, i: Instruction) -> None:
        assert i.lds is not None
        words = self._lds_words(i, np.broadcast_to(i.lds.evaluate(self.env), self.lane.shape))
        if i.dst:  # a read
            self._check_read(i, words)
            data = self.group.lds[words].T.copy()
            if i.mnemonic == LDMATRIX:
                data = _dealt(data)
            self._expect(i)
            if i.mnemonic == LDMATRIX:  # its registers wait for it by themselves
                self.lgkm.append(_Operation(i, words, data))
                self._wait(self.lgkm, 0)
                return
            self.lgkm.append(_Operation(i, words, data))
        else:
            source = self._read(i, i.src)
            self._check_write(i, words)
            self.group.lds[words] = source.T
            self.lgkm.append(_Operation(i, words, None))

    def _global(self, i: Instruction) -> None:
        memory = i.memory
        assert memory is not None
        offset = np.broadcast_to(memory.offset.evaluate(self.env), self.lane.shape)
        size = memory.rows * memory.pitch
        outside = (offset < 0) | (offset + i.width > size)
        if outside.any():
            lane = int(np.argmax(outside))
            raise KernelError(
                f"{i.line}: {i.mnemonic} of wave {self.wave} lane {lane} touches byte "
                f"{int(offset[lane])} of {memory.tensor}, which has {size}"
            )
        places = offset[:, None] + np.arange(i.width)
        tensor = self.group.bytes[memory.tensor]
        if i.is_store:
            self._store(i, places)
            return
        data = tensor[places].view(np.uint32)  # (lanes, words)
        if i.loads_lds:
            assert i.lds is not None
            words = self._lds_words(i, int(i.lds.evaluate(self.env)) + self.lane * i.width)
            self._check_write(i, words)
            self.vm.append(_Operation(i, words, data))
        else:
            self._expect(i)
            self.vm.append(_Operation(i, None, data.T.copy()))

    def _store(self, i: Instruction, places: NDArray[np.int64]) -> None:
        assert i.memory is not None
        value = self._read(i, i.src)[0]
        if i.width == 2:
            half = value >> 16 if i.mnemonic.endswith("d16_hi") else value & 0xFFFF
            value = half.astype(np.uint16)
        written = self.group.written[i.memory.tensor]
        if written[places].any():
            raise KernelError(f"{i.line}: {i.mnemonic} of wave {self.wave} writes an element twice")
        written[places] = True
        data = np.ascontiguousarray(value).view(np.uint8).reshape(-1, i.width)
        self.group.bytes[i.memory.tensor][places] = data
        self.vm.append(_Operation(i, None, None))

    def _lds_words(self, i: Instruction, address: NDArray[np.int64]) -> NDArray[np.int64]:
        limit = self.group.program.lds_bytes
        if (address < 0).any() or (address + i.width > limit).any() or (address % 4).any():
            raise KernelError(
                f"{i.line}: {i.mnemonic} of wave {self.wave} touches LDS bytes outside the {limit} "
                "allocated or not dword-aligned"
            )
        return np.asarray(address[:, None] // 4 + np.arange(i.width // 4))

    # order ------------------------------------------------------------------------------------

    def _check_read(self, i: Instruction, words: NDArray[np.int64]) -> None:
        group = self.group
        writer, done = group.write_wave[words], group.write_done[words]
        if (writer == NEVER).any():
            raise KernelError(f"{i.line}: {i.mnemonic} of wave {self.wave} reads LDS never written")
        own = writer == self.wave
        bad = np.where(own, done == PENDING, done >= self.epoch)
        if bad.any():
            place = words[bad][0]
            self._race(i, "reads", "write", int(group.write_wave[place]), group.write_line[place])
        group.read_done[self.wave, words] = PENDING
        group.read_line[self.wave, words] = group.number(i.line)

    def _check_write(self, i: Instruction, words: NDArray[np.int64]) -> None:
        group = self.group
        writer, done = group.write_wave[words], group.write_done[words]
        own = writer == self.wave
        bad = (writer != NEVER) & np.where(own, done == PENDING, done >= self.epoch)
        if bad.any():
            place = words[bad][0]
            self._race(
                i, "overwrites", "write", int(group.write_wave[place]), group.write_line[place]
            )
        reads = group.read_done[:, words]
        limits = np.full(len(group.waves), self.epoch)
        limits[self.wave] = PENDING  # its own reads only have to be complete
        bad = reads >= limits[:, None, None]
        if bad.any():
            reader, *where = (int(index[0]) for index in np.nonzero(bad))
            place = words[tuple(where)]
            self._race(i, "overwrites", "read", reader, group.read_line[reader, place])
        group.write_wave[words] = self.wave
        # An LDS write is in order with the wave's other LDS operations; a load to LDS is not.
        group.write_done[words] = PENDING
        group.write_line[words] = group.number(i.line)

    def _race(self, i: Instruction, what: str, other: str, wave: int, line: np.int32) -> None:
        between = "a wait" if wave == self.wave else "a wait and a barrier"
        raise KernelError(
            f"{i.line}: {i.mnemonic} of wave {self.wave} {what} LDS without {between} after the "
            f"{other} of wave {wave} at {self.group.lines[int(line)]}"
        )

    def _wait(self, queue: deque[_Operation], outstanding: int | None) -> None:
        """Complete the oldest operations until at most `outstanding` are left."""
        while outstanding is not None and len(queue) > outstanding:
            operation = queue.popleft()
            i, words = operation.instruction, operation.words
            if i.dst and operation.data is not None:
                for register in i.dst:
                    del self.pending[register]
                self.registers[list(i.dst)] = operation.data
                self.valid[list(i.dst)] = True
                if words is not None:
                    self._complete_read(i, words)
            elif words is not None:
                if operation.data is not None:
                    self.group.lds[words] = operation.data
                self.group.write_done[words] = self.epoch

    def _complete_read(self, i: Instruction, words: NDArray[np.int64]) -> None:
        """The read is over, unless a later read of the same words is still under way."""
        later = [o.words for o in self.lgkm if o.instruction.dst and o.words is not None]
        done = self.group.read_done[self.wave]
        done[words] = self.epoch
        for others in later:
            done[others] = PENDING


def _dealt(rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What ldmatrix.x4 puts where: lane l gets word l % 4 of row l // 4 of each 8x8 matrix.

    rows: the 16 B row that each lane's address names, shape (4 words, 32 lanes); the rows of matrix
    r are those of lanes 8 r to 8 r + 7. Source: PTX ISA.
    """
    lane = np.arange(rows.shape[1])
    return np.stack([rows[lane % QUAD, ROWS * r + lane // QUAD] for r in range(len(rows))])


def execute(
    program: Program, a: NDArray[Any], b: NDArray[Any], tiles: list[tuple[int, int]] | None = None
) -> NDArray[np.float32]:
    """C of a GEMM program on `a` (m, k) and `b` (n, k), float32 values rounded to its dtype first.

    tiles: the workgroups to run, as tiles (row, column); all by default. What they leave unwritten
    is NaN. Raises KernelError for a mistake of the kernel, also if an element of C stays unwritten.
    """
    ta, tb, tc = program.tensors
    c = np.full((tc.rows, tc.cols), np.nan, np.float32).astype(tc.dtype.storage)
    arrays = {"A": ta.dtype.encode(a), "B": tb.dtype.encode(b), "C": c}
    rows, cols = program.grid
    for tile in tiles or [(r, q) for r in range(rows) for q in range(cols)]:
        group = Workgroup(program, arrays, tile)
        group.run()
        bm, bn = tc.rows // rows, tc.cols // cols
        element = tc.dtype.bytes
        written = group.written["C"].reshape(tc.rows, tc.cols * element)
        r, q = tile
        part = written[r * bm : (r + 1) * bm, q * bn * element : (q + 1) * bn * element]
        if not part.all() or written.sum() != part.size:
            raise KernelError(f"{program.name}: tile {tile} of C is not written exactly once")
    return np.asarray(c.astype(np.float32))
