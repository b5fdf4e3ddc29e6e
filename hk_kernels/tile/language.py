"""The language of kernel definitions: a builder that turns operations on tiles into instructions.

A definition is a Python function of a `Builder` and its tensors. It runs once per target; what it
asks of the builder becomes the instruction-level program (lower/program.py), loops and wave roles
kept. Every instruction remembers the line of the definition that it came from.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from cdnasim.errors import InputError
from cdnasim.isa.swizzle import Swizzle, XorStep, swizzle_named
from hk_kernels.lower.program import (
    GlobalAccess,
    Instruction,
    Line,
    Loop,
    Node,
    Only,
    Program,
    RegisterTile,
    Tensor,
    current_line,
)
from hk_kernels.lower.registers import check_registers
from hk_kernels.lower.target import Target, target_named
from hk_kernels.tile.dtypes import DTYPES, DType, bf16
from hk_kernels.tile.expr import Expr, Symbol, as_expr
from hk_kernels.tile.layouts import QUAD, ROWS, WARP, Mfma
from hk_kernels.tile.tiles import (
    Fragments,
    GlobalTensor,
    GlobalTile,
    Rows,
    SharedArray,
    SharedTile,
    Staging,
    swizzled,
)

DMA_BYTES = 16  # per lane of a load to LDS or registers: the widest
# Subtiles by target and element size: rows, columns, swizzle. gfx950: of the published kernels.
# gfx942: rows of 128 B whose 8 B pieces are XORed with the row, free of conflicts for ds_read_b64
# and ds_write_b64 in 32 banks (checked in the tests).
SWIZZLE_16X64 = Swizzle("16x64_b64", (XorStep(2048, 7, 3),))
# sm_90: rows of 128 B whose 16 B pieces are XORed with the row, free of conflicts for ldmatrix.
SWIZZLE_8X64 = Swizzle("8x64_b128", (XorStep(1024, 7, 4),))
SUBTILES = {
    ("gfx950", 2): (16, 32, swizzle_named("st_16x32")),
    ("gfx950", 1): (16, 128, swizzle_named("st_16x128")),
    ("gfx942", 2): (16, 64, SWIZZLE_16X64),
    ("sm_90", 2): (8, 64, SWIZZLE_8X64),
}


@dataclass(frozen=True)
class Kernel:
    """A kernel definition: the function and how many waves it runs with.

    waves and waves_per_simd: numbers, or functions of the parameters.
    """

    function: Callable[..., None]
    waves: int | Callable[..., int]
    waves_per_simd: int | Callable[..., int]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    def parameters(self) -> dict[str, Any]:
        """Its parameters beside builder and tensors, with defaults."""
        given = list(inspect.signature(self.function).parameters.values())[4:]
        return {p.name: p.default for p in given}


def kernel(
    waves: int | Callable[..., int], waves_per_simd: int | Callable[..., int]
) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator of a kernel definition `f(k, A, B, C, parameter=default, …)`."""
    return lambda function: Kernel(function, waves, waves_per_simd)


def lower(
    definition: Kernel,
    arch: str,
    m: int,
    n: int,
    k: int,
    dtype: str = "bf16",
    *,
    allow_spills: bool = False,
    **parameters: Any,
) -> Program:
    """The program of a GEMM-shaped kernel C[m,n] = A[m,k] · B[n,k]ᵀ on `arch`.

    A kernel whose registers do not fit is refused with a report of what would spill, unless
    allow_spills. Raises InputError naming the kernel's line for what the target or the tiles do not
    allow.
    """
    known = definition.parameters()
    for key in parameters:
        if key not in known:
            raise InputError(
                f"{definition.name}: unknown parameter '{key}'; allowed: {', '.join(known)}"
            )
    if dtype not in DTYPES:
        raise InputError(f"dtype '{dtype}' is unknown; allowed: {', '.join(DTYPES)}")
    chosen = {**known, **parameters}
    element = DTYPES[dtype]
    tensors = (
        Tensor("A", element, m, k),
        Tensor("B", element, n, k),
        Tensor("C", bf16, m, n),
    )
    counts = [
        v(**chosen) if callable(v) else v for v in (definition.waves, definition.waves_per_simd)
    ]
    target = target_named(arch)
    most = target.workgroup_waves
    if not 1 <= counts[0] <= most:
        raise InputError(f"{definition.name}: {counts[0]} waves; allowed: 1 to {most}")
    builder = Builder(definition.name, target, *counts)
    definition.function(builder, *(GlobalTensor(t) for t in tensors), **chosen)
    program = builder.program(tensors, chosen)
    if not allow_spills:
        check_registers(program)
    if builder.refusals:
        raise InputError(builder.refusals[0])
    depth = program.tile[2]
    if k % depth:
        raise InputError(f"{definition.name}: k={k} is not a multiple of the k-step {depth}")
    return program


class Builder:
    """Collects the instructions of one kernel for one target. Definitions call it `k`."""

    def __init__(self, name: str, target: Target, waves: int, waves_per_simd: int) -> None:
        self.target = target
        self.waves = waves
        self.wave: Expr = Symbol("wave")
        self.lane: Expr = Symbol("lane")
        self.load_bytes = target.lanes * DMA_BYTES  # that one load of a wave brings
        self.refusals: list[str] = []  # of `require`, to be raised when the registers fit
        self._name = name
        self._waves_per_simd = waves_per_simd
        self._body: list[Node] = []
        self._loops = 0
        self._registers: list[RegisterTile] = []
        self._next_register = 0
        self._lds_bytes = 0
        self._grid = (1, 1)
        self._tile = (1, 1, 1)

    def require(self, condition: bool, message: str, *, after_registers: bool = False) -> None:
        """Refuse the definition at this line unless `condition` holds.

        after_registers: only if its registers fit; their report says more.
        """
        if not condition and after_registers:
            self.refusals.append(f"{current_line()}: {message}")
        elif not condition:
            self._fail(message)

    # tiles ------------------------------------------------------------------------------------

    def output_tile(self, C: GlobalTensor, rows: int, cols: int, depth: int) -> tuple[Expr, Expr]:
        """Row and column of this workgroup's tile of C, in tiles; the grid order decides."""
        if C.rows % rows or C.cols % cols:
            self._fail(f"a {rows}x{cols} tile does not divide C of {C.rows}x{C.cols}")
        self._grid = (C.rows // rows, C.cols // cols)
        self._tile = (rows, cols, depth)
        return Symbol("tile_row"), Symbol("tile_col")

    def shared(
        self,
        dtype: DType,
        rows: int,
        cols: int,
        buffers: Sequence[int],
        swizzle: str | None = None,
        subtile: tuple[int, int] | None = None,
    ) -> SharedArray:
        """Shared tiles of rows x cols, `buffers` of them in each dimension.

        swizzle: a published name or "none", of the `subtile` (rows, columns) that it permutes; by
        default those of the element's size.
        """
        key = (self.target.arch, dtype.bits // 8)
        if key not in SUBTILES:
            known = ", ".join(f"{size} B on {arch}" for arch, size in SUBTILES)
            self._fail(f"no shared tiles of {dtype} on {self.target.arch}; allowed: {known}")
        *sizes, usual = SUBTILES[key]
        sub_rows, sub_cols = subtile or sizes
        if rows % sub_rows or cols % sub_cols:
            self._fail(
                f"a shared tile of {rows}x{cols} {dtype} does not divide into {sub_rows}x{sub_cols}"
            )
        start = as_expr(self._lds_bytes)
        try:
            if swizzle == "none":
                chosen = Swizzle("none", ())
            else:
                chosen = swizzle_named(swizzle) if swizzle else usual
        except InputError as error:
            self._fail(str(error))
        if self.target.lds_load_bytes == DMA_BYTES and any(
            1 << step.left < DMA_BYTES for step in chosen.steps
        ):
            self._fail(f"swizzle {chosen.name} splits the {DMA_BYTES} B that a lane loads to LDS")
        tile = SharedTile(
            dtype, rows, cols, start, chosen, sub_rows, sub_cols, as_expr(0), rows, 0, cols
        )
        count = 1
        for size in buffers:
            count *= size
        self._lds_bytes += tile.bytes * count
        if self._lds_bytes > self.target.lds_bytes:
            self._fail(
                f"{self._lds_bytes} B of LDS needed, {self.target.arch} has "
                f"{self.target.lds_bytes} B"
            )
        return SharedArray(tile, tuple(buffers))

    def registers(
        self,
        dtype: DType,
        rows: int,
        cols: int,
        shape: tuple[int, int] | None = None,
        pinned: str = "",
    ) -> Fragments:
        """An operand tile of rows x cols in registers, laid out for the MFMA of that `shape`."""
        mfma = self._mfma_for(dtype, shape)
        if rows % mfma.m or cols % mfma.k:
            self._fail(
                f"a register tile of {rows}x{cols} does not divide into MFMA operands of "
                f"{mfma.m}x{mfma.k}"
            )
        size = mfma.operand_vgprs
        count = rows // mfma.m * (cols // mfma.k) * size
        first = self._allocate("operand", count, pinned)
        return Fragments(first, rows, cols, mfma, mfma.m, mfma.k, size)

    def accumulators(
        self,
        dtype: DType,
        rows: int,
        cols: int,
        shape: tuple[int, int] | None = None,
        pinned: str = "",
    ) -> Fragments:
        """An fp32 accumulator tile of rows x cols for products of `dtype`."""
        mfma = self._mfma_for(dtype, shape)
        if rows % mfma.m or cols % mfma.n:
            self._fail(
                f"an accumulator of {rows}x{cols} does not divide into MFMA results of "
                f"{mfma.m}x{mfma.n}"
            )
        size = mfma.accumulator_vgprs
        first = self._allocate("accumulator", rows * cols // mfma.lanes, pinned)
        return Fragments(first, rows, cols, mfma, mfma.m, mfma.n, size)

    def reads(self, tile: Fragments) -> int:
        """How many LDS reads `load` makes for `tile`: what a wait(lgkm=) counts."""
        piece = tile.mfma.contiguous * tile.mfma.dtype.bytes
        return len(tile.registers) * 4 // piece

    def loads(self, tile: SharedTile, waves: int = 0) -> int:
        """How many loads of a wave `load_async` makes for `tile`: what a wait(vm=) counts.

        waves: how many take part, all if 0.
        """
        return self._chunks(tile, waves or self.waves)

    def staging(self, tile: SharedTile) -> Staging:
        """Registers for a wave's part of `tile` between load_global and store_shared."""
        chunks = self._chunks(tile, self.waves)
        return Staging(self._allocate("staging", chunks * DMA_BYTES // 4, ""), chunks)

    # control ----------------------------------------------------------------------------------

    def loop(self, count: int, unroll: int = 1) -> Iterator[Expr]:
        """`for t in k.loop(count, unroll=2)`: t runs from 0 to count - 1, the loop is kept.

        The body is written `unroll` times; `count` must be a multiple of it.
        """
        if count < 0:
            self._fail(f"a loop of {count}: the problem has too few k-steps for this kernel")
        if count % unroll:
            self._fail(f"a loop of {count} does not divide by unroll={unroll}")
        line = current_line()
        variable = f"t{self._loops}"
        self._loops += 1
        node = Loop(variable, count // unroll, line)
        outer, self._body = self._body, node.body
        for copy in range(unroll):
            yield Symbol(variable) * unroll + copy
        for mnemonic in self.target.names.loop:
            self._emit(mnemonic, "salu", line=line)
        self._body = outer
        if node.count:
            self._body.append(node)

    @contextmanager
    def only(self, condition: Expr) -> Iterator[None]:
        """`with k.only(k.wave < 4):` what these waves do and the others do not."""
        if condition.symbols() - {"wave"}:
            self._fail("a role may depend on the wave only")
        node = Only(condition, current_line())
        outer, self._body = self._body, node.body
        yield
        self._body = outer
        self._body.append(node)

    def interleave(self, main: Callable[[], None], *others: Callable[[], None]) -> None:
        """The instructions of `main`, those of `others` spread evenly between them, in order."""
        first, *rest = (self._collect(part) for part in (main, *others))
        woven = [node for part in rest for node in part]
        done = 0
        if not first:
            self._body += woven
        for i, node in enumerate(first, 1):
            self._body.append(node)
            due = round(i * len(woven) / len(first))
            self._body += woven[done:due]
            done = due

    def barrier(self) -> None:
        """All waves of the workgroup meet (each barrier a wave reaches counts one)."""
        self._emit(self.target.names.barrier, "barrier")

    def wait(self, vm: int | None = None, lgkm: int | None = None) -> None:
        """Until at most `vm` global and `lgkm` LDS operations of the wave are outstanding."""
        if vm is None and lgkm is None:
            self._fail("wait needs vm= or lgkm=")
        limits = (("vm", vm, self.target.vmcnt_max), ("lgkm", lgkm, self.target.lgkmcnt_max))
        for name, count, most in limits:
            if count is not None and not 0 <= count <= most:
                self._fail(f"wait({name}={count}) must be from 0 to {most}")
        self._emit(self.target.names.wait, "wait", vm=vm, lgkm=lgkm)

    def priority(self, level: int) -> None:
        """s_setprio: the wave's priority at issue, 0 to 3."""
        if not 0 <= level <= 3:
            self._fail(f"priority({level}) must be from 0 to 3")
        if self.target.names.priority:
            self._emit(self.target.names.priority, "salu", value=level)

    def sched_barrier(self) -> None:
        """A line that the compiler moves nothing across; no instruction."""
        self._emit("sched_barrier", "none")

    # data -------------------------------------------------------------------------------------

    def load_async(
        self, to: SharedTile, source: GlobalTile, waves: tuple[int, int] | None = None
    ) -> None:
        """Copy a tile from global memory to LDS, no registers in between; counts in vm.

        All waves take part, or waves = (first, count). LDS is written in lane order, so the swizzle
        is applied to the global address.
        """
        widest = self.target.lds_load_bytes
        if widest < DMA_BYTES:
            self._fail(
                f"{self.target.arch} cannot load {DMA_BYTES} B a lane to LDS; allowed: {widest} B"
            )
        first, count = waves or (0, self.waves)
        inverse = Swizzle("inverse", to.swizzle.steps[::-1])
        for i in range(self._chunks(to, count)):
            chunk = self.wave - first + i * count
            sub, kept = self._chunk_place(to, chunk)
            if self.target.names.place:
                self._emit(self.target.names.place, "salu")  # m0: where in LDS
            self._emit(
                self.target.names.load_lds,
                "vmem",
                width=DMA_BYTES,
                lds=to.base + chunk * self.load_bytes,
                memory=self._source(to, source, sub, swizzled(kept, inverse)),
            )

    def load_global(self, to: Staging, like: SharedTile, source: GlobalTile) -> None:
        """Load a wave's part of a tile into registers, to be stored to the shared tile `like`."""
        for i in range(to.chunks):
            sub, offset = self._chunk_place(like, self.wave + i * self.waves)
            memory = self._source(like, source, sub, offset)
            registers = tuple(range(to.first + 4 * i, to.first + 4 * i + 4))
            self._emit("buffer_load_dwordx4", "vmem", dst=registers, width=DMA_BYTES, memory=memory)

    def store_shared(self, to: SharedTile, source: Staging) -> None:
        """Write a wave's part of a tile from registers to LDS, two ds_write_b64 a chunk."""
        for i in range(source.chunks):
            sub, offset = self._chunk_place(to, self.wave + i * self.waves)
            for half in range(2):
                start = source.first + 4 * i + 2 * half
                place = swizzled(offset + 8 * half, to.swizzle)
                address = to.base + sub * to.sub_bytes + place
                self._emit("ds_write_b64", "lds", src=(start, start + 1), width=8, lds=address)

    def load(self, to: Fragments, source: SharedTile) -> None:
        """Read an operand tile from LDS; counts in lgkm."""
        if (to.rows, to.cols) != (
            source.view_rows,
            source.view_cols,
        ) or to.mfma.dtype != source.dtype:
            self._fail(
                f"a register tile of {to.rows}x{to.cols} {to.mfma.dtype} cannot be loaded from a "
                f"shared tile of {source.view_rows}x{source.view_cols} {source.dtype}"
            )
        mfma = to.mfma
        piece = mfma.contiguous * mfma.dtype.bytes
        groups = mfma.lanes // mfma.m
        lane_row, lane_group = self.lane % mfma.m, self.lane // mfma.m
        mnemonic = self.target.names.reads[piece]
        for i in range(to.shape[0]):
            for j in range(to.shape[1]):
                registers = to.fragment(i, j)
                for part in range(len(registers) * 4 // piece):
                    first = (source.first_col + j * mfma.k) * mfma.dtype.bytes
                    byte = lane_group * piece + first + part * piece * groups
                    row = (
                        source.first_row
                        + i * mfma.m
                        + lane_row // source.sub_rows * source.sub_rows
                    )
                    address = source.address(row, lane_row % source.sub_rows, byte)
                    size = piece // 4
                    dst = registers[part * size : (part + 1) * size]
                    self._emit(mnemonic, "lds", dst=dst, width=piece, lds=address)

    def zero(self, tile: Fragments) -> None:
        """Set all registers of a tile to zero."""
        for register in tile.registers:
            self._emit(self.target.names.zero, "valu", dst=(register,))

    def mma_ABt(self, c: Fragments, a: Fragments, b: Fragments) -> None:
        """c += a · bᵀ, k innermost."""
        self._mma(c, a, b, (False, False))

    def mma_AB(self, c: Fragments, a: Fragments, b: Fragments) -> None:
        """c += a · b; b is a transposed tile (`tile.T`)."""
        self._mma(c, a, b, (False, True))

    def mma_AtB(self, c: Fragments, a: Fragments, b: Fragments) -> None:
        """c += aᵀ · b; both are transposed tiles."""
        self._mma(c, a, b, (True, True))

    def mma_AtBt(self, c: Fragments, a: Fragments, b: Fragments) -> None:
        """c += aᵀ · bᵀ; a is a transposed tile."""
        self._mma(c, a, b, (True, False))

    def _mma(self, c: Fragments, a: Fragments, b: Fragments, transposed: tuple[bool, bool]) -> None:
        if (a.is_transposed, b.is_transposed) != transposed:
            wanted = ["a tile.T" if t else "a tile as loaded" for t in transposed]
            self._fail(f"this product needs {wanted[0]} for a and {wanted[1]} for b")
        if a.cols != b.cols or (c.rows, c.cols) != (a.rows, b.rows):
            self._fail(
                f"a product of {a.rows}x{a.cols} and {b.rows}x{b.cols} along their columns does "
                f"not give {c.rows}x{c.cols}"
            )
        if not a.mfma == b.mfma == c.mfma:
            self._fail(f"tiles of {a.mfma.mnemonic}, {b.mfma.mnemonic} and {c.mfma.mnemonic}")
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                for step in range(a.shape[1]):
                    source = a.fragment(i, step) + b.fragment(j, step)
                    self._emit(
                        a.mfma.mnemonic, "mfma", dst=c.fragment(i, j), src=source, mfma=a.mfma
                    )

    def store(self, to: GlobalTile, source: Fragments) -> None:
        """Round an accumulator tile to bf16 and write it.

        Scalar 2-byte stores, as published; on sm_90 a lane's two neighbours at once.
        """
        if (to.rows, to.cols) != (source.rows, source.cols):
            self._fail(f"a {source.rows}x{source.cols} tile stored to {to.rows}x{to.cols}")
        if source.mfma.lanes == WARP:
            self._store_pairs(to, source)
            return
        mfma, tensor = source.mfma, to.tensor
        groups = mfma.lanes // mfma.n
        pair = self._allocate("conversion", 1, "")
        for i in range(source.shape[0]):
            for j in range(source.shape[1]):
                registers = source.fragment(i, j)
                col = to.col + j * mfma.n + self.lane % mfma.n
                for r in range(0, len(registers), 2):
                    self._emit("v_cvt_pk_bf16_f32", "valu", dst=(pair,), src=registers[r : r + 2])
                    for half, name in enumerate(
                        ("buffer_store_short", "buffer_store_short_d16_hi")
                    ):
                        inside = r + half
                        row = to.row + i * mfma.m + self.lane // mfma.n * 4
                        row = row + 4 * groups * (inside // 4) + inside % 4
                        offset = row * tensor.pitch + col * tensor.dtype.bytes
                        memory = GlobalAccess(tensor.name, offset, tensor.rows, tensor.pitch)
                        self._emit(name, "vmem", src=(pair,), width=2, memory=memory)

    def _store_pairs(self, to: GlobalTile, source: Fragments) -> None:
        """Two columns of a row lie side by side in a lane: one 4-byte store for both."""
        mfma, tensor = source.mfma, to.tensor
        pair = self._allocate("conversion", 1, "")
        for i in range(source.shape[0]):
            for j in range(source.shape[1]):
                registers = source.fragment(i, j)
                for r in range(0, len(registers), 2):
                    self._emit("cvt.rn.bf16x2.f32", "valu", dst=(pair,), src=registers[r : r + 2])
                    row = to.row + i * mfma.m + self.lane // QUAD + ROWS * (r // 2 % 2)
                    col = to.col + j * mfma.n + self.lane % QUAD * 2 + ROWS * (r // 4)
                    offset = row * tensor.pitch + col * tensor.dtype.bytes
                    memory = GlobalAccess(tensor.name, offset, tensor.rows, tensor.pitch)
                    self._emit("st.global.b32", "vmem", src=(pair,), width=4, memory=memory)

    # elementwise and reductions ----------------------------------------------------------------

    def add(self, to: Fragments, a: Fragments, b: Fragments | Rows) -> None:
        """to = a + b, element by element; b may be a value a row."""
        self._elementwise("v_add_f32", to, a, b)

    def sub(self, to: Fragments, a: Fragments, b: Fragments | Rows) -> None:
        """to = a - b, element by element; b may be a value a row."""
        self._elementwise("v_sub_f32", to, a, b)

    def mul(self, to: Fragments, a: Fragments, b: Fragments | Rows) -> None:
        """to = a · b, element by element; b may be a value a row."""
        self._elementwise("v_mul_f32", to, a, b)

    def max(self, to: Fragments, a: Fragments, b: Fragments | Rows) -> None:
        """to = the larger of a and b, element by element; b may be a value a row."""
        self._elementwise("v_max_f32", to, a, b)

    def exp2(self, to: Fragments, a: Fragments) -> None:
        """to = 2 ** a, element by element."""
        self._each("v_exp_f32", to, a)

    def reciprocal(self, to: Fragments | Rows, a: Fragments | Rows) -> None:
        """to = 1 / a, element by element or row by row."""
        self._each("v_rcp_f32", to, a)

    def rows(self, like: Fragments) -> Rows:
        """Registers for one fp32 value for each row of an accumulator tile."""
        return Rows(self._allocate("rows", like.shape[0] * like.size, ""), like)

    def row_max(self, to: Rows, tile: Fragments) -> None:
        """The largest element of each row."""
        self._reduce("v_max_f32", to, tile)

    def row_sum(self, to: Rows, tile: Fragments) -> None:
        """The sum of each row."""
        self._reduce("v_add_f32", to, tile)

    def _elementwise(self, mnemonic: str, to: Fragments, a: Fragments, b: Fragments | Rows) -> None:
        other = b.tile if isinstance(b, Rows) else b
        if (
            not (to.rows, to.cols, to.mfma)
            == (a.rows, a.cols, a.mfma)
            == (*(other.rows, other.cols, other.mfma),)
        ):
            self._fail(f"{mnemonic} of tiles that differ in shape or layout")
        for i in range(to.shape[0]):
            for j in range(to.shape[1]):
                second = b.fragment(i) if isinstance(b, Rows) else b.fragment(i, j)
                for registers in zip(to.fragment(i, j), a.fragment(i, j), second, strict=True):
                    self._emit(mnemonic, "valu", dst=registers[:1], src=registers[1:])

    def _each(self, mnemonic: str, to: Fragments | Rows, a: Fragments | Rows) -> None:
        if type(to) is not type(a) or len(to.registers) != len(a.registers):
            self._fail(f"{mnemonic} of tiles that differ in shape")
        for target, source in zip(to.registers, a.registers, strict=True):
            self._emit(mnemonic, "valu", dst=(target,), src=(source,))

    def _reduce(self, mnemonic: str, to: Rows, tile: Fragments) -> None:
        """Over a row's fragments, then over the 16 lanes that share its rows, by rotation (DPP)."""
        if tile.mfma.n != 16 or to.tile.shape[0] != tile.shape[0]:
            self._fail("row reductions need a 16-column accumulator layout and as many rows")
        for i in range(tile.shape[0]):
            targets = to.fragment(i)
            for target, source in zip(targets, tile.fragment(i, 0), strict=True):
                self._emit("v_mov_b32", "valu", dst=(target,), src=(source,))
            for j in range(1, tile.shape[1]):
                for target, source in zip(targets, tile.fragment(i, j), strict=True):
                    self._emit(mnemonic, "valu", dst=(target,), src=(target, source))
            for turn in (8, 4, 2, 1):
                for target in targets:
                    self._emit(
                        f"{mnemonic}_dpp", "valu", dst=(target,), src=(target, target), value=turn
                    )

    # inside -----------------------------------------------------------------------------------

    def program(self, tensors: tuple[Tensor, ...], parameters: dict[str, Any]) -> Program:
        """What was collected."""
        return Program(
            name=self._name,
            arch=self.target.arch,
            parameters=parameters,
            waves=self.waves,
            waves_per_simd=self._waves_per_simd,
            body=self._body,
            tensors=tensors,
            registers=tuple(self._registers),
            lds_bytes=self._lds_bytes,
            lanes=self.target.lanes,
            grid=self._grid,
            tile=self._tile,
        )

    def _chunks(self, tile: SharedTile, waves: int) -> int:
        if tile.bytes % (self.load_bytes * waves):
            self._fail(
                f"a tile of {tile.rows}x{tile.cols} {tile.dtype} ({tile.bytes} B) does not divide "
                f"into loads of {self.load_bytes} B by {waves} waves"
            )
        return tile.bytes // (self.load_bytes * waves)

    def _chunk_place(self, tile: SharedTile, chunk: Expr) -> tuple[Expr, Expr]:
        """Subtile of a chunk, and the offset in it of each lane's 16 B, in lane order."""
        per_sub = tile.sub_bytes // self.load_bytes
        return chunk // per_sub, (chunk % per_sub) * self.load_bytes + self.lane * DMA_BYTES

    def _source(
        self, like: SharedTile, source: GlobalTile, sub: Expr, offset: Expr
    ) -> GlobalAccess:
        """Where the bytes at an unswizzled `offset` of a subtile of `like` come from."""
        if (like.rows, like.cols) != (source.rows, source.cols):
            self._fail(
                f"a shared tile of {like.rows}x{like.cols} filled from {source.rows}x{source.cols}"
            )
        tensor = source.tensor
        if like.dtype != tensor.dtype:
            self._fail(f"a shared tile of {like.dtype} filled from {tensor.dtype}")
        row = sub // like.subs_per_row * like.sub_rows + offset // like.row_bytes
        byte = sub % like.subs_per_row * like.row_bytes + offset % like.row_bytes
        place = (source.row + row) * tensor.pitch + source.col * tensor.dtype.bytes + byte
        return GlobalAccess(tensor.name, place, tensor.rows, tensor.pitch)

    def _mfma_for(self, dtype: DType, shape: tuple[int, int] | None) -> Mfma:
        try:
            return self.target.mfma(dtype, shape)
        except InputError as error:
            self._fail(str(error))

    def _allocate(self, name: str, count: int, pinned: str) -> int:
        if pinned:
            self._check_pin(count, pinned)
        first = self._next_register
        self._next_register += count
        self._registers.append(RegisterTile(name, first, count, current_line(), pinned))
        return first

    def _check_pin(self, count: int, pinned: str) -> None:
        """Whether `count` registers from `pinned` on exist and are free."""
        match = re.fullmatch("([va])([0-9]{1,3})", pinned)
        last = self.target.architectural_vgprs - count
        if not match or int(match[2]) > last:
            self._fail(
                f"pinned='{pinned}': {count} registers start at v0 to v{last} or a0 to a{last}"
            )
        mine = set(range(int(match[2]), int(match[2]) + count))
        for tile in self._registers:
            if tile.pinned[:1] == match[1]:
                first = int(tile.pinned[1:])
                if mine & set(range(first, first + tile.count)):
                    self._fail(f"pinned='{pinned}' overlaps the tile at {tile.line}")

    def _collect(self, part: Callable[[], None]) -> list[Node]:
        outer, self._body = self._body, []
        part()
        collected, self._body = self._body, outer
        return collected

    def _emit(self, mnemonic: str, unit: Any, *, line: Line | None = None, **fields: Any) -> None:
        self._body.append(Instruction(mnemonic, unit, line or current_line(), **fields))

    def _fail(self, message: str) -> NoReturn:
        line = str(current_line()).rstrip(":")  # of a statement that opens a block
        raise InputError(f"{line}: {message}")
