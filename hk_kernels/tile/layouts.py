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


@dataclass(frozen=True)
class Mfma:
    """A matrix instruction D[m,n] += A[m,k] · B[n,k]ᵀ of one wave.

    contiguous: elements along k that a lane holds side by side (S above). clocks: of the matrix
    pipe (mfma_cycles: passes x 4).
    """

    mnemonic: str
    m: int
    n: int
    k: int
    contiguous: int
    dtype: DType
    clocks: int

    @property
    def operand_vgprs(self) -> int:
        """32-bit registers per lane of an operand fragment."""
        return self.m * self.k * self.dtype.bits // 32 // LANES

    @property
    def accumulator_vgprs(self) -> int:
        """32-bit registers per lane of an accumulator fragment."""
        return self.m * self.n // LANES

    @property
    def flops(self) -> int:
        """2·m·n·k."""
        return 2 * self.m * self.n * self.k


def operand_elements(mfma: Mfma) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, k) of each element that a lane holds of an operand; shape (64, elements per lane).

    Elements are in the order of their registers. m and n are equal in all instructions used here,
    so A and B share the layout.
    """
    lane = np.arange(LANES)[:, None]
    groups = LANES // mfma.m  # lanes that share a row
    count = mfma.m * mfma.k // LANES
    element = np.arange(count)[None, :]
    block, inside = element // mfma.contiguous, element % mfma.contiguous
    row = lane % mfma.m + 0 * element
    k = mfma.contiguous * (lane // mfma.m) + block * mfma.contiguous * groups + inside
    return row, k


def accumulator_elements(mfma: Mfma) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, column) of each accumulator element of a lane; shape (64, registers per lane).

    16x16: row 4·(lane // 16) + i, column lane % 16. 32x32: row 4·(lane // 32) + 8·(i // 4) + i % 4.
    """
    lane = np.arange(LANES)[:, None]
    i = np.arange(mfma.accumulator_vgprs)[None, :]
    groups = LANES // mfma.n
    row = 4 * (lane // mfma.n) + 4 * groups * (i // 4) + i % 4
    return row, lane % mfma.n + 0 * i
