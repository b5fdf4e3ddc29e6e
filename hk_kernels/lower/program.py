"""The instruction-level program of a kernel: one list for all waves, with loops and roles kept."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

from hk_kernels.tile.dtypes import DType
from hk_kernels.tile.expr import Expr
from hk_kernels.tile.layouts import Mfma

Unit = Literal["mfma", "valu", "salu", "lds", "vmem", "barrier", "wait", "none"]


@dataclass(frozen=True)
class Line:
    """A line of the kernel definition."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


MACHINERY = Path(__file__).parents[1]  # frames in its folders are not a definition's


def current_line() -> Line:
    """The line of the kernel definition that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    file, number = frame.f_code.co_filename, frame.f_lineno
    return Line(Path(file).name, number, linecache.getline(file, number).strip())


@cache
def _is_machinery(filename: str) -> bool:
    path = Path(filename)
    return (MACHINERY in path.parents and path.parent != MACHINERY) or path.name == "contextlib.py"


@dataclass(frozen=True)
class GlobalAccess:
    """Bytes of a tensor that the lanes of an instruction touch.

    offset: byte offset of each lane's access. rows, pitch: the tensor's rows and bytes per row.
    """

    tensor: str
    offset: Expr
    rows: int
    pitch: int


@dataclass(frozen=True)
class Instruction:
    """One instruction of a wave.

    dst, src: virtual 32-bit registers written and read (for an MFMA, src is A then B, and the
    accumulator dst is read too). width: bytes per lane of a memory access. lds: byte address in
    LDS, per lane, or for a global→LDS load the wave's base, to which lane * width is added.
    vm, lgkm: how many operations a wait leaves outstanding. value: operand of s_setprio.
    """

    mnemonic: str
    unit: Unit
    line: Line
    dst: tuple[int, ...] = ()
    src: tuple[int, ...] = ()
    width: int = 0
    lds: Expr | None = None
    memory: GlobalAccess | None = None
    vm: int | None = None
    lgkm: int | None = None
    value: int = 0
    mfma: Mfma | None = None

    @property
    def loads_lds(self) -> bool:
        """Whether it copies from global memory to LDS."""
        return self.memory is not None and self.lds is not None

    @property
    def is_store(self) -> bool:
        """Whether it writes global memory."""
        return self.unit == "vmem" and not self.dst and not self.loads_lds


@dataclass
class Loop:
    """A body that runs `count` times; `variable` counts from 0."""

    variable: str
    count: int
    line: Line
    body: list[Node] = field(default_factory=list)


@dataclass
class Only:
    """A body for the waves for which `condition` (an expression of `wave`) is not 0."""

    condition: Expr
    line: Line
    body: list[Node] = field(default_factory=list)


Node: TypeAlias = "Instruction | Loop | Only"


@dataclass(frozen=True)
class Tensor:
    """A global tensor of rows x cols elements, row by row."""

    name: str
    dtype: DType
    rows: int
    cols: int

    @property
    def pitch(self) -> int:
        """Bytes from row to row."""
        return self.cols * self.dtype.bits // 8


@dataclass(frozen=True)
class RegisterTile:
    """Registers first .. first + count - 1 (virtual) of a lane.

    pinned: the register that the first must be, such as v128 or a0; empty: left to the compiler.
    """

    name: str
    first: int
    count: int
    line: Line
    pinned: str = ""


@dataclass(frozen=True)
class Program:
    """A lowered kernel: what a workgroup of `waves` waves executes.

    grid: output tiles (rows, columns). tile: rows and columns of one, depth of a k-step.
    """

    name: str
    arch: str
    parameters: dict[str, int | str]
    waves: int
    waves_per_simd: int
    body: list[Node]
    tensors: tuple[Tensor, ...]
    registers: tuple[RegisterTile, ...]
    lds_bytes: int
    lanes: int
    grid: tuple[int, int]
    tile: tuple[int, int, int]

    def of_wave(self, wave: int) -> list[Node]:
        """The program of one wave: `Only` parts resolved, loops kept."""
        return _resolve(self.body, wave)

    def roles(self) -> list[tuple[int, ...]]:
        """Waves that execute the same part of the program, grouped."""
        conditions = [node.condition for node in walk(self.body) if isinstance(node, Only)]
        groups: dict[tuple[int, ...], list[int]] = {}
        for wave in range(self.waves):
            key = tuple(int(c.evaluate({"wave": wave}) != 0) for c in conditions)
            groups.setdefault(key, []).append(wave)
        return [tuple(waves) for waves in groups.values()]


def walk(body: list[Node]) -> Iterator[Node]:
    """All nodes of a program, in order, loops and roles included."""
    for node in body:
        yield node
        if not isinstance(node, Instruction):
            yield from walk(node.body)


def _resolve(body: list[Node], wave: int) -> list[Node]:
    nodes: list[Node] = []
    for node in body:
        if isinstance(node, Instruction):
            nodes.append(node)
        elif isinstance(node, Loop):
            nodes.append(Loop(node.variable, node.count, node.line, _resolve(node.body, wave)))
        elif node.condition.evaluate({"wave": wave}):
            nodes += _resolve(node.body, wave)
    return nodes
