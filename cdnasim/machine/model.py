"""What a machine is: plain records of numbers, each with its unit, source and confidence.

The fields below are the whole schema of a machine description: the loader accepts a file only if it
has exactly these keys. `param(unit)` declares the unit that the file must state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Confidence = Literal["documented", "measured", "calibrated", "assumed"]


def param(unit: str, *, may_be_zero: bool = False) -> Any:
    """A value that the description must give in `unit`; above 0 unless `may_be_zero`."""
    return field(metadata={"unit": unit, "may_be_zero": may_be_zero})


@dataclass(frozen=True)
class Provenance:
    """Where one value of a machine description comes from."""

    key: str
    value: float
    unit: str
    source: str
    confidence: Confidence
    note: str = ""


@dataclass(frozen=True)
class Compute:
    """Compute units and their matrix rate (one workgroup slot is one CU; an SM counts as a CU)."""

    xcds: int = param("XCD")
    cus_per_xcd: int = param("CU")
    lds_bytes: int = param("B/CU")
    clock_max_ghz: float = param("GHz")
    bf16_flops_per_clk: float = param("FLOP/clk/CU")
    fp16_flops_per_clk: float = param("FLOP/clk/CU")
    fp8_flops_per_clk: float = param("FLOP/clk/CU")


@dataclass(frozen=True)
class L2:
    """The private L2 of one XCD.

    copies: how many copies of a line its partitions keep. coalesced_cus: so many neighbouring CUs
    send one request for a slab that they all want (1: none are merged before the L2).
    """

    bytes: int = param("B/XCD")
    copies: int = param("copies of a line")
    line_bytes: int = param("B")
    ways: int = param("ways")
    channels: int = param("channels/XCD")
    latency_clk: float = param("clk", may_be_zero=True)
    coalesced_cus: int = param("CUs")


@dataclass(frozen=True)
class Link:
    """Read path from one XCD's L2 to the fabric."""

    bytes_per_clk: float = param("B/clk/XCD")


@dataclass(frozen=True)
class Llc:
    """Memory-side last-level cache shared by all XCDs; `bytes` 0: the machine has none."""

    bytes: int = param("B", may_be_zero=True)
    ways: int = param("ways", may_be_zero=True)
    channels: int = param("slices", may_be_zero=True)
    read_tbs: float = param("TB/s", may_be_zero=True)
    latency_ns: float = param("ns", may_be_zero=True)


@dataclass(frozen=True)
class Hbm:
    """Device memory. `scattered_tbs`: read bandwidth if each row of a slab is one L2 line."""

    peak_tbs: float = param("TB/s")
    stream_tbs: float = param("TB/s")
    scattered_tbs: float = param("TB/s")
    write_tbs: float = param("TB/s")
    latency_ns: float = param("ns", may_be_zero=True)


@dataclass(frozen=True)
class Dispatch:
    """How workgroups come to CUs."""

    spacing_clk: float = param("clk/workgroup/XCD", may_be_zero=True)
    restart_clk: float = param("clk", may_be_zero=True)
    cold_start_clk: float = param("clk", may_be_zero=True)
    cold_start_sd_clk: float = param("clk", may_be_zero=True)
    launch_us: float = param("us", may_be_zero=True)


@dataclass(frozen=True)
class Drift:
    """Spread (standard deviation) of the speed of CUs and of single workgroups."""

    steady_sd: float = param("fraction of speed, per CU", may_be_zero=True)
    random_sd: float = param("fraction of speed, per workgroup", may_be_zero=True)


@dataclass(frozen=True)
class Power:
    """Board power against clock: the formula is in gpu/power.py."""

    limit_w: float = param("W")
    static_w: float = param("W", may_be_zero=True)
    exponent: float = param("exponent of the clock", may_be_zero=True)
    matrix_w: float = param("W at 1 GHz and full matrix rate", may_be_zero=True)
    l2_pj_per_byte: float = param("pJ/B at 1 GHz", may_be_zero=True)
    llc_pj_per_byte: float = param("pJ/B", may_be_zero=True)
    hbm_pj_per_byte: float = param("pJ/B", may_be_zero=True)


@dataclass(frozen=True)
class Machine:
    """A machine description; `provenance` holds unit, source and confidence of every value."""

    name: str
    description: str
    arch: str
    compute: Compute
    l2: L2
    link: Link
    llc: Llc
    hbm: Hbm
    dispatch: Dispatch
    drift: Drift
    power: Power
    provenance: tuple[Provenance, ...] = field(default=(), repr=False, compare=False)

    @property
    def cus(self) -> int:
        """CUs of the whole device."""
        return self.compute.xcds * self.compute.cus_per_xcd

    def matrix_rate(self, dtype: str) -> float:
        """Dense matrix FLOP per clk and CU for `dtype` (one of `MATRIX_DTYPES`)."""
        return float(getattr(self.compute, f"{dtype}_flops_per_clk"))


MATRIX_DTYPES = ("bf16", "fp16", "fp8")
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
