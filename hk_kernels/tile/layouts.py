"""Which lane and register hold which element: MFMA operands and accumulators.

Source: the CDNA 3 and CDNA 4 instruction set guides and AMD's matrix instruction calculator; the
operand form `row = lane % R, column = S * (lane // R) + i * S * (64 // R)` as the published kernels
use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdnasim.isa.lds import LANES
from hk_kernels.tile.dtypes import DType

WARP = 32  # lanes of a wave whose fragments are ldmatrix's 8x8 matrices
ROWS, QUAD = 8, 4  # of such a matrix; lanes that share a row


@dataclass(frozen=True)
class Mfma:
    """A matrix instruction D[m,n] += A[m,k] · B[n,k]ᵀ of one wave.

    contiguous: elements along k that a lane reads side by side (S above). clocks: of the matrix
    pipe (mfma_cycles: passes x 4). lanes: of the wave; with 32 it is NVIDIA's 16x16x16, two
    mma.sync.m16n8k16 of the PTX ISA, whose layouts come from ldmatrix.
    """

    mnemonic: str
    m: int
    n: int
    k: int
    contiguous: int
    dtype: DType
    clocks: int
    lanes: int = LANES

    @property
    def operand_vgprs(self) -> int:
        """32-bit registers per lane of an operand fragment."""
        return self.m * self.k * self.dtype.bits // 32 // self.lanes

    @property
    def accumulator_vgprs(self) -> int:
        """32-bit registers per lane of an accumulator fragment."""
        return self.m * self.n // self.lanes

    @property
    def flops(self) -> int:
        """2·m·n·k."""
        return 2 * self.m * self.n * self.k


def operand_elements(mfma: Mfma) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, k) of each element that a lane holds of an operand; shape (lanes, elements per lane).

    Elements are in the order of their registers. m and n are equal in all instructions used here,
    so A and B share the layout.
    """
    lane = np.arange(mfma.lanes)[:, None]
    groups = mfma.lanes // mfma.m  # lanes that share a row
    count = mfma.m * mfma.k // mfma.lanes
    element = np.arange(count)[None, :]
    if mfma.lanes == WARP:
        register = element // 2
        row = lane // QUAD + ROWS * (register % 2)
        return row, lane % QUAD * 2 + element % 2 + ROWS * (register // 2)
    block, inside = element // mfma.contiguous, element % mfma.contiguous
    row = lane % mfma.m + 0 * element
    k = mfma.contiguous * (lane // mfma.m) + block * mfma.contiguous * groups + inside
    return row, k


def accumulator_elements(mfma: Mfma) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, column) of each accumulator element of a lane; shape (lanes, registers per lane).

    16x16: row 4·(lane // 16) + i, column lane % 16. 32x32: row 4·(lane // 32) + 8·(i // 4) + i % 4.
    32 lanes: row lane // 4 + 8·(i // 2 % 2), column 2·(lane % 4) + i % 2 + 8·(i // 4).
    """
    lane = np.arange(mfma.lanes)[:, None]
    i = np.arange(mfma.accumulator_vgprs)[None, :]
    if mfma.lanes == WARP:
        row = lane // QUAD + ROWS * (i // 2 % 2)
        return row, lane % QUAD * 2 + i % 2 + ROWS * (i // 4)
    groups = mfma.lanes // mfma.n
    row = 4 * (lane // mfma.n) + 4 * groups * (i // 4) + i % 4
    return row, lane % mfma.n + 0 * i
