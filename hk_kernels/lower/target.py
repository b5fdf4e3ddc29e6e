"""What a target offers: LDS, registers, loads to LDS, matrix instructions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from cdnasim.errors import InputError
from cdnasim.isa.mfma import find_mfma
from cdnasim.machine.loader import read_record, read_toml
from cdnasim.machine.model import param
from hk_kernels.tile.dtypes import DType
from hk_kernels.tile.layouts import Mfma

MFMA_SHAPES = {  # preferred first: the shapes of the published kernels
    ("gfx950", "bf16"): ((16, 16, 32), (32, 32, 16)),
    ("gfx950", "fp16"): ((16, 16, 32), (32, 32, 16)),
    ("gfx950", "fp8"): ((16, 16, 128), (32, 32, 64)),
    ("gfx942", "bf16"): ((16, 16, 16), (32, 32, 8)),
    ("gfx942", "fp16"): ((16, 16, 16), (32, 32, 8)),
    ("sm_90", "bf16"): ((16, 16, 16),),
    ("sm_90", "fp16"): ((16, 16, 16),),
}
PIECE_BYTES = 16  # widest LDS read of a lane


@dataclass(frozen=True)
class Limits:
    """Limits of an architecture; see targets.toml for sources.

    A wave's registers beyond its architectural VGPRs must be AGPRs.
    """

    lanes: int = param("lanes of a wave")
    lds_bytes: int = param("B/workgroup")
    lds_load_bytes: int = param("B/lane of the widest load from global memory to LDS")
    registers: int = param("VGPRs and AGPRs/lane of a SIMD")
    wave_registers: int = param("VGPRs and AGPRs/lane of a wave")
    architectural_vgprs: int = param("VGPRs/lane of a wave")
    register_granule: int = param("registers")
    waves_per_simd: int = param("waves")
    workgroup_waves: int = param("waves of a workgroup")
    vmcnt_max: int = param("operations")
    lgkmcnt_max: int = param("operations")


@dataclass(frozen=True, kw_only=True)
class Target(Limits):
    """An architecture that kernels are lowered to."""

    arch: str

    @property
    def names(self) -> Names:
        """Its instructions' names."""
        return NAMES[self.arch]

    def mfma(self, dtype: DType, shape: tuple[int, int] | None = None) -> Mfma:
        """The matrix instruction for `dtype`, of m x n `shape` or the preferred one.

        Raises InputError if the target has none.
        """
        shapes = MFMA_SHAPES.get((self.arch, dtype.name), ())
        for m, n, k in shapes:
            if shape in (None, (m, n)):
                facts = find_mfma(self.arch, m, n, k, dtype.name)
                assert facts is not None, (self.arch, m, n, k, dtype.name)
                per_lane = m * k // self.lanes
                contiguous = min(per_lane, PIECE_BYTES * 8 // dtype.bits)
                shape_and_piece = m, n, k, contiguous
                return Mfma(facts.mnemonic, *shape_and_piece, dtype, facts.clocks, self.lanes)
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


@dataclass(frozen=True)
class Names:
    """What a target calls the instructions that a definition asks for; "" if it needs none.

    place: what says where in LDS a load goes. arguments, end: what a compiled kernel does first and
    last. loop: what ends an iteration.
    """

    place: str = "s_mov_b32"
    load_lds: str = "buffer_load_dwordx4"
    reads: Mapping[int, str] = field(default_factory=lambda: {16: "ds_read_b128", 8: "ds_read_b64"})
    wait: str = "s_waitcnt"
    barrier: str = "s_barrier"
    priority: str = "s_setprio"
    zero: str = "v_mov_b32"
    arguments: str = "s_load_dwordx8"
    end: str = "s_endpgm"
    loop: tuple[str, ...] = ("s_add_u32", "s_cmp_lt_u32", "s_cbranch_scc1")


NAMES = {
    "gfx950": Names(),
    "gfx942": Names(),
    "sm_90": Names(
        place="",
        load_lds="cp.async.cg.shared.global",
        reads={16: "ldmatrix.x4"},
        wait="cp.async.wait_group",
        barrier="bar.sync",
        priority="",
        zero="mov.b32",
        arguments="",
        end="",
        loop=("add.u32", "setp.lt.u32", "bra"),
    ),
}


@cache
def target_named(arch: str) -> Target:
    """The target `arch`; raises InputError for an unknown one."""
    with resources.as_file(resources.files("hk_kernels.lower") / "targets.toml") as path:
        tables = read_toml(path)
        if arch not in tables:
            raise InputError(f"target '{arch}' is unknown; allowed: {', '.join(tables)}")
        limits, _ = read_record(path, arch, tables[arch], Limits)
    return Target(arch=arch, **dataclasses.asdict(limits))
