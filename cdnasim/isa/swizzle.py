"""Swizzles of tiles in LDS: published ones as XOR steps, a search for new ones, checks of both.

A swizzle says where the byte at a row-major offset of a subtile is kept. Each step XORs some higher
or lower bits of the offset into others, so a swizzle is linear over bits: the images of the single
bits describe it, which the search uses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdnasim.errors import InputError
from cdnasim.isa.lds import (
    LANES,
    LaneArray,
    LdsAccess,
    LdsInstruction,
    conflict,
    phase_clocks,
    phases_of,
)

TRANSPOSED_READ = "ds_read_b64_tr_b16"
MAX_TILE_BYTES = 2**18  # no LDS is larger: more is a slip, and would only cost time

Ints = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class XorStep:
    """offset ^= ((offset % modulus) >> shift) << left, with disjoint source and target bits.

    Disjoint bits make a step its own inverse. Raises InputError for a modulus that is not a power
    of two, an empty source or overlapping bits.
    """

    modulus: int
    shift: int
    left: int

    def __post_init__(self) -> None:
        top = self.modulus.bit_length() - 1
        width = top - self.shift
        if min(self.shift, self.left) < 0 or width < 1 or self.modulus != 1 << top:
            raise InputError(
                f"swizzle step {self}: shifts must be 0 or more, the modulus a power of two above "
                f"2^{self.shift}"
            )
        if abs(self.shift - self.left) < width:
            raise InputError(f"swizzle step {self}: source and target bits overlap")

    def __str__(self) -> str:
        return f"o ^= ((o % {self.modulus}) >> {self.shift}) << {self.left}"

    def apply(self, offsets: Ints) -> Ints:
        """The offsets after this step; any shape."""
        moved: Ints = offsets ^ (((offsets % self.modulus) >> self.shift) << self.left)
        return moved


@dataclass(frozen=True)
class Swizzle:
    """XOR steps on byte offsets in a subtile, applied in order (no steps: row-major)."""

    name: str
    steps: tuple[XorStep, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps)) or "none"

    def apply(self, offsets: Ints) -> Ints:
        """Where the bytes at these row-major offsets (≥ 0, any shape) are kept."""
        for step in self.steps:
            offsets = step.apply(offsets)
        return offsets

    def inverse(self, offsets: Ints) -> Ints:
        """Which row-major offsets are kept at these places."""
        for step in reversed(self.steps):
            offsets = step.apply(offsets)
        return offsets

    def is_bijective(self, tile_bytes: int) -> bool:
        """Whether it permutes the bytes of a tile of this size."""
        kept = self.apply(np.arange(tile_bytes))
        return bool((np.sort(kept) == np.arange(tile_bytes)).all())

    def keeps_whole(self, piece_bytes: int, tile_bytes: int) -> bool:
        """Whether each aligned piece (a power of two of bytes) stays in one piece and aligned."""
        bits = _bits(max(tile_bytes, piece_bytes))
        return bool(_keep_whole(self.apply(bits), piece_bytes))


# HipKittens f09e968, include/types/shared/st_shape.cuh.
PUBLISHED: dict[str, Swizzle] = {
    name: Swizzle(name, tuple(XorStep(*step) for step in steps))
    for name, steps in {
        "none": [],
        "st_16x16": [],
        "st_8x32": [],
        "st_16x16_swizzled": [(512, 7, 3)],
        "st_32x32": [(1024, 9, 5), (2048, 10, 4)],
        "st_16x32": [(1024, 9, 5)],
        "st_32x16": [(1024, 9, 4)],
        "st_16x128": [(2048, 8, 4)],
    }.items()
}


def swizzle_named(name: str) -> Swizzle:
    """A published swizzle; raises InputError if unknown."""
    if name not in PUBLISHED:
        raise InputError(f"swizzle '{name}' is unknown; allowed: {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def row_operand(rows: int, elements: int, part: int = 0) -> tuple[LaneArray, LaneArray]:
    """(row, column) of the first element that each lane holds of a matrix operand kept by rows.

    The operand has `rows` rows and each lane reads `elements` neighbours of one row; part k is the
    k-th instruction of a wider operand. Source: HipKittens f09e968, register tile shapes.
    """
    lane = np.arange(LANES)
    return lane % rows, elements * (lane // rows) + part * elements * (LANES // rows)


def transposed_operand(
    columns: int, row_stride: int = 4, part: int = 0
) -> tuple[LaneArray, LaneArray]:
    """(row, column) that each lane addresses in a ds_read_b64_tr_b16 of an operand kept by columns.

    Each 16 lanes read 4 rows of 16 columns. Lane groups that do not fit side by side in `columns`
    go `row_stride` rows (4 or 8) further down; part k takes the rows left out, then those below.
    Source: HipKittens f09e968, include/ops/warp/memory/tile.
    """
    lane = np.arange(LANES)
    gaps = row_stride // 4
    first = part % gaps * 4 + part // gaps * row_stride * (LANES // columns)
    row = lane % 16 // 4 + lane // columns * row_stride + first
    return row, lane % 4 * 4 + lane % columns // 16 * 16


def tile_addresses(
    row: LaneArray, column: LaneArray, rows: int, cols: int, element_bytes: int, swizzle: Swizzle
) -> LaneArray:
    """Byte addresses of tile elements in row-major subtiles of rows × cols, swizzled each.

    Subtiles lie one after the other, those of one row of subtiles first; columns beyond `cols` are
    in the next subtile. Raises InputError for a row outside.
    """
    if row.max() >= rows:
        raise InputError(f"the access reaches row {row.max()} of a subtile with {rows} rows")
    subtile, column = np.divmod(column, cols)
    offset = (row * cols + column) * element_bytes
    kept: LaneArray = subtile * rows * cols * element_bytes + swizzle.apply(offset)
    return kept


def check_tile(
    rows: int,
    cols: int,
    element_bytes: int,
    swizzle_name: str,
    instruction: str,
    arch: str,
    *,
    operand: int | None = None,
    row_stride: int = 4,
    part: int = 0,
) -> LdsAccess:
    """What one instruction costs that reads or writes an operand in a swizzled shared subtile.

    rows, cols: the shared subtile, in elements. operand: rows of the register tile (default: rows),
    or its columns for the transposed read (default: cols, 16 or 32); row_stride only matters for
    the latter. part: which instruction, if the register tile takes several. See row_operand and
    transposed_operand; neighbouring lanes of a row take neighbouring aligned pieces (of 16 B for
    ds_read_b96, which uses 12 of them). Raises InputError for what cannot be executed, such as a
    swizzle that tears the bytes of a lane apart.
    """
    described = phases_of(instruction, arch)
    swizzle = swizzle_named(swizzle_name)
    size = _tile_bytes(rows, cols, element_bytes)
    piece = described.alignment
    if part < 0:
        raise InputError(f"part {part} must be 0 or more")
    if cols * element_bytes % piece or piece % element_bytes:
        raise InputError(
            f"{instruction} moves aligned pieces of {piece} B: they must hold whole elements, "
            f"and rows of {cols} elements of {element_bytes} B must hold whole pieces"
        )
    if not swizzle.is_bijective(size):
        raise InputError(f"swizzle {swizzle_name} does not permute a subtile of {size} B")
    if not swizzle.keeps_whole(piece, size):
        raise InputError(
            f"swizzle {swizzle_name} tears apart the {piece} B that each lane of {instruction} "
            "needs in one piece"
        )
    if instruction == TRANSPOSED_READ:
        columns = cols if operand is None else operand
        if element_bytes != 2 or columns not in (16, 32) or row_stride not in (4, 8):
            raise InputError(
                f"{instruction} needs elements of 2 B, 16 or 32 columns and a row stride of 4 or "
                f"8; got {element_bytes} B, {columns} columns, stride {row_stride}"
            )
        row, column = transposed_operand(columns, row_stride, part)
    else:
        height = rows if operand is None else operand
        if height < 1 or LANES % height:
            raise InputError(f"operand rows {height} must divide {LANES}")
        row, column = row_operand(height, piece // element_bytes, part)
    addresses = tile_addresses(row, column, rows, cols, element_bytes, swizzle)
    return conflict(addresses, instruction, arch)


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    found: the swizzles without any conflict, fewest steps first, one formula for each mapping.
    examined: formulas tried, which are all of the family. distinct: different mappings among them.
    alone: for each access, how many mappings serve it without conflict, whatever the others need.
    """

    found: tuple[Swizzle, ...]
    examined: int
    distinct: int
    alone: tuple[int, ...]


def search(
    rows: int,
    cols: int,
    element_bytes: int,
    accesses: Sequence[tuple[str, LaneArray]],
    arch: str,
) -> SearchResult:
    """All swizzles of up to two XOR steps under which every access is free of conflicts.

    accesses: (instruction, byte offset of each lane in the row-major tile, shape (64,)). The family
    is every one- and two-step swizzle of the tile's offset bits, and none at all; it is tried in
    full, so an empty `found` proves that it has no member that serves all accesses. A swizzle only
    counts if it leaves the bytes of each lane in one aligned piece.

    Raises InputError if the tile is not a power of two of bytes, if there are no accesses, or for
    an offset that is misaligned or outside the tile.
    """
    size = _tile_bytes(rows, cols, element_bytes)
    if size & (size - 1):
        raise InputError(f"tile {rows}x{cols}: {size} B must be a power of two")
    if not accesses:
        raise InputError("search needs one access or more")
    lanes = [_checked(name, arch, offsets, size) for name, offsets in accesses]

    steps = _all_steps(size)
    bits = _bits(size).astype(np.int32)  # half the memory; 1.1 million formulas at 256 KiB
    one = np.stack([step.apply(bits) for step in steps])
    two = np.concatenate([step.apply(one) for step in steps])
    images = np.concatenate((bits[None], one, two))  # the identity first, then by number of steps
    distinct, first = np.unique(images, axis=0, return_index=True)

    free = [_conflict_free(distinct, offsets, described) for described, offsets in lanes]
    good = np.sort(first[np.logical_and.reduce(free)])
    return SearchResult(
        tuple(Swizzle("found", _formula(int(index), steps)) for index in good),
        examined=len(images),
        distinct=len(distinct),
        alone=tuple(int(ok.sum()) for ok in free),
    )


def _all_steps(size: int) -> list[XorStep]:
    """Every step whose bits lie within a tile of `size` bytes."""
    count = size.bit_length() - 1
    return [
        XorStep(1 << (shift + width), shift, left)
        for width in range(1, count // 2 + 1)
        for shift, left in itertools.product(range(count - width + 1), repeat=2)
        if abs(shift - left) >= width
    ]


def _formula(index: int, steps: list[XorStep]) -> tuple[XorStep, ...]:
    """The steps of entry `index` of the family, in the order in which `search` lists it."""
    if index == 0:
        return ()
    if index <= len(steps):
        return (steps[index - 1],)
    second, first = divmod(index - 1 - len(steps), len(steps))
    return steps[first], steps[second]


def _conflict_free(
    images: Ints, offsets: LaneArray, instruction: LdsInstruction
) -> NDArray[np.bool_]:
    """Which of the mappings (bit images, shape (n, bits)) serve the offsets without conflict."""
    free = _keep_whole(images, instruction.alignment)
    everyone = np.ones(LANES, bool)
    whole = np.flatnonzero(free)
    for chunk in np.array_split(whole, len(whole) // 1024 + 1):  # keeps the arrays small
        kept = np.zeros((len(chunk), LANES), np.int64)
        for bit, image in enumerate(images[chunk].T):
            kept ^= (offsets >> bit & 1) * image[:, None]
        free[chunk] = (phase_clocks(kept, instruction, everyone) == 1).all(axis=-1)
    return free


def _keep_whole(images: Ints, piece_bytes: int) -> NDArray[np.bool_]:
    """Which mappings leave aligned pieces whole: their low bits stay, and no other bit moves there.

    images: where each offset bit goes, shape (..., bits).
    """
    low = piece_bytes.bit_length() - 1
    stay = (images[..., :low] == 1 << np.arange(low)).all(axis=-1)
    clean = (images[..., low:] % piece_bytes == 0).all(axis=-1)
    whole: NDArray[np.bool_] = stay & clean
    return whole


def _bits(tile_bytes: int) -> Ints:
    """The offset bits of a tile, as offsets: 1, 2, 4, ..."""
    bits: Ints = 1 << np.arange((tile_bytes - 1).bit_length(), dtype=np.int64)
    return bits


def _checked(name: str, arch: str, offsets: Any, size: int) -> tuple[LdsInstruction, LaneArray]:
    described = phases_of(name, arch)
    lanes = np.asarray(offsets)
    if lanes.shape != (LANES,) or lanes.dtype.kind not in "iu":
        raise InputError(f"{name}: offsets must be {LANES} integers, one per lane")
    if lanes.min() < 0 or lanes.max() + described.bytes_per_lane > size:
        raise InputError(f"{name}: offsets must lie within the tile of {size} B")
    if (lanes % described.alignment).any():
        raise InputError(f"{name}: offsets must be multiples of {described.alignment} B")
    return described, lanes.astype(np.int64)


def _tile_bytes(rows: int, cols: int, element_bytes: int) -> int:
    for key, value in (("rows", rows), ("cols", cols), ("element_bytes", element_bytes)):
        if value < 1:
            raise InputError(f"tile {rows}x{cols}: {key} {value} must be 1 or more")
    size = rows * cols * element_bytes
    if size > MAX_TILE_BYTES:
        raise InputError(f"tile {rows}x{cols}: {size} B is more than {MAX_TILE_BYTES} B")
    return size
