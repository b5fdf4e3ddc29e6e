"""Tiles in global memory, LDS and registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cdnasim.errors import InputError
from cdnasim.isa.swizzle import Swizzle
from hk_kernels.lower.program import Tensor, current_line
from hk_kernels.tile.dtypes import DType
from hk_kernels.tile.expr import Constant, Expr, Index, as_expr
from hk_kernels.tile.layouts import Mfma


def swizzled(offset: Expr, swizzle: Swizzle) -> Expr:
    """The swizzle's formula on an expression."""
    for step in swizzle.steps:
        offset = offset ^ (((offset % step.modulus) >> step.shift) << step.left)
    return offset


@dataclass(frozen=True)
class GlobalTile:
    """rows x cols elements of a tensor from (row, col) on."""

    tensor: Tensor
    row: Expr
    col: Expr
    rows: int
    cols: int


@dataclass(frozen=True)
class GlobalTensor:
    """A tensor as a definition sees it."""

    tensor: Tensor

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.tensor.rows

    @property
    def cols(self) -> int:
        """Number of columns."""
        return self.tensor.cols

    def tile(self, row: Index, col: Index, rows: int, cols: int) -> GlobalTile:
        """The rows x cols elements from element (row, col) on."""
        return GlobalTile(self.tensor, as_expr(row), as_expr(col), rows, cols)


@dataclass(frozen=True)
class SharedTile:
    """rows x cols elements in LDS: subtiles in row order, the bytes of each subtile swizzled.

    base: byte address of the whole tile. A view has view_rows x view_cols elements from first_row
    (a multiple of the subtile's rows) and first_col on.
    """

    dtype: DType
    rows: int
    cols: int
    base: Expr
    swizzle: Swizzle
    sub_rows: int
    sub_cols: int
    first_row: Expr
    view_rows: int
    first_col: int
    view_cols: int

    @property
    def bytes(self) -> int:
        """Bytes of the whole tile."""
        return self.rows * self.cols * self.dtype.bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a subtile's row."""
        return self.sub_cols * self.dtype.bytes

    @property
    def sub_bytes(self) -> int:
        """Bytes of a subtile."""
        return self.sub_rows * self.row_bytes

    @property
    def subs_per_row(self) -> int:
        """Subtiles side by side."""
        return self.cols // self.sub_cols

    def band(self, index: Index, rows: int) -> SharedTile:
        """Rows index·rows .. of the tile."""
        constant = as_expr(index)
        past = isinstance(constant, Constant) and (constant.value + 1) * rows > self.rows
        _require(not past and rows % self.sub_rows == 0, f"band {index} of {rows} rows", self)
        _require(self.view_rows == self.rows, "a band of a band", self)
        return replace(self, first_row=as_expr(index) * rows, view_rows=rows)

    def part(self, first: int, rows: int) -> SharedTile:
        """Rows first .. first + rows - 1 as a tile of its own (multiples of the subtile's rows)."""
        whole = first % self.sub_rows == rows % self.sub_rows == 0
        _require(whole and first + rows <= self.rows, f"rows {first} to {first + rows - 1}", self)
        skipped = first // self.sub_rows * self.subs_per_row * self.sub_bytes
        return replace(self, rows=rows, view_rows=rows, base=self.base + skipped)

    def columns(self, first: int, cols: int) -> SharedTile:
        """Columns first .. first + cols - 1 of the view."""
        _require(first + cols <= self.view_cols, f"columns {first} to {first + cols - 1}", self)
        return replace(self, first_col=self.first_col + first, view_cols=cols)

    def address(self, row: Expr, row_in_sub: Expr, byte: Expr) -> Expr:
        """LDS byte address. row: a multiple of sub_rows; row_in_sub: below it; byte: of the row."""
        sub = (row // self.sub_rows) * self.subs_per_row + byte // self.row_bytes
        offset = swizzled(row_in_sub * self.row_bytes + byte % self.row_bytes, self.swizzle)
        return self.base + sub * self.sub_bytes + offset


def _require(condition: bool, what: str, tile: SharedTile) -> None:
    if not condition:
        raise InputError(
            f"{current_line()}: a shared tile of {tile.rows}x{tile.cols} has no {what} (subtiles "
            f"of {tile.sub_rows} rows)"
        )


@dataclass(frozen=True)
class SharedArray:
    """Equal shared tiles, indexed by one index a dimension."""

    tile: SharedTile
    shape: tuple[int, ...]

    def __getitem__(self, index: Index) -> Any:
        inner = self.shape[1:]
        number = as_expr(index)
        if isinstance(number, Constant) and not 0 <= number.value < self.shape[0]:
            raise InputError(f"{current_line()}: buffer {number.value} of {self.shape[0]}")
        step = self.tile.bytes
        for size in inner:
            step *= size
        moved = replace(self.tile, base=self.tile.base + as_expr(index) * step)
        return SharedArray(moved, inner) if inner else moved


@dataclass(frozen=True)
class Fragments:
    """A register tile of rows x cols elements as MFMA fragments, row by row.

    first: virtual number of the first register; each fragment has `size` registers a lane.
    """

    first: int
    rows: int
    cols: int
    mfma: Mfma
    frag_rows: int
    frag_cols: int
    size: int
    is_transposed: bool = False

    @property
    def T(self) -> Fragments:
        """The same registers as the transposed tile, for mma_AB, mma_AtB and mma_AtBt."""
        return replace(self, is_transposed=not self.is_transposed)

    def fragment(self, i: int, j: int) -> tuple[int, ...]:
        """Registers of fragment (i, j)."""
        start = self.first + (i * (self.cols // self.frag_cols) + j) * self.size
        return tuple(range(start, start + self.size))

    @property
    def shape(self) -> tuple[int, int]:
        """Fragments (down, across)."""
        return self.rows // self.frag_rows, self.cols // self.frag_cols

    @property
    def registers(self) -> range:
        """All its registers."""
        down, across = self.shape
        return range(self.first, self.first + down * across * self.size)


@dataclass(frozen=True)
class Staging:
    """Registers that hold a wave's part of a tile on its way from global memory to LDS.

    chunks: of 1 KiB, 16 B a lane.
    """

    first: int
    chunks: int


@dataclass(frozen=True)
class Rows:
    """One fp32 value for each row of an accumulator tile, in all lanes that share the row."""

    first: int
    tile: Fragments

    @property
    def registers(self) -> range:
        """All its registers."""
        return range(self.first, self.first + self.tile.shape[0] * self.tile.size)

    def fragment(self, i: int) -> tuple[int, ...]:
        """Registers of the rows of fragments (i, …)."""
        start = self.first + i * self.tile.size
        return tuple(range(start, start + self.tile.size))
