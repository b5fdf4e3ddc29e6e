"""What a target offers: LDS, registers, loads to LDS, matrix instructions."""

from __future__ import annotations

from dataclasses import dataclass

from cdnasim.errors import InputError
from cdnasim.isa.mfma import find_mfma
from hk_kernels.tile.dtypes import DType
from hk_kernels.tile.layouts import LANES, Mfma

MFMA_SHAPES = {  # preferred first: the shapes of the published kernels
    ("gfx950", "bf16"): ((16, 16, 32), (32, 32, 16)),
    ("gfx950", "fp16"): ((16, 16, 32), (32, 32, 16)),
    ("gfx950", "fp8"): ((16, 16, 128), (32, 32, 64)),
    ("gfx942", "bf16"): ((16, 16, 16), (32, 32, 8)),
    ("gfx942", "fp16"): ((16, 16, 16), (32, 32, 8)),
}
PIECE_BYTES = 16  # widest LDS read of a lane


@dataclass(frozen=True)
class Target:
    """Limits of an architecture (CDNA 3 and CDNA 4 instruction set guides).

    lds_bytes: per workgroup. lds_load_bytes: bytes per lane that a global→LDS load may have.
    registers: VGPRs + AGPRs of a SIMD per lane. wave_registers, waves_per_simd: the most that a
    wave can use, and that a SIMD can hold.
    """

    arch: str
    lds_bytes: int
    lds_load_bytes: tuple[int, ...]
    registers: int = 512
    wave_registers: int = 512
    register_granule: int = 8
    waves_per_simd: int = 8

    def mfma(self, dtype: DType, shape: tuple[int, int] | None = None) -> Mfma:
        """The matrix instruction for `dtype`, of m x n `shape` or the preferred one.

        Raises InputError if the target has none.
        """
        shapes = MFMA_SHAPES.get((self.arch, dtype.name), ())
        for m, n, k in shapes:
            if shape in (None, (m, n)):
                facts = find_mfma(self.arch, m, n, k, dtype.name)
                assert facts is not None, (self.arch, m, n, k, dtype.name)
                per_lane = m * k // LANES
                contiguous = min(per_lane, PIECE_BYTES * 8 // dtype.bits)
                return Mfma(facts.mnemonic, m, n, k, contiguous, dtype, facts.clocks)
        known = ", ".join(
            f"{d} {m}x{n}x{k}"
            for (a, d), s in MFMA_SHAPES.items()
            for m, n, k in s
            if a == self.arch
        )
        wanted = f"{shape[0]}x{shape[1]} " if shape else ""
        raise InputError(
            f"{self.arch} has no {wanted}matrix instruction for {dtype}; allowed: {known}"
        )


TARGETS = {
    "gfx950": Target("gfx950", 160 * 1024, (4, 12, 16)),
    "gfx942": Target("gfx942", 64 * 1024, (4,)),
}


def target_named(arch: str) -> Target:
    """The target `arch`; raises InputError for an unknown one."""
    if arch not in TARGETS:
        raise InputError(f"target '{arch}' is unknown; allowed: {', '.join(TARGETS)}")
    return TARGETS[arch]
