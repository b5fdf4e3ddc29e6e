"""What a simulated launch yields."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Traffic:
    """Bytes at each level over the launch. Reads = hits + misses at every level.

    requested_bytes: what the CUs ask for; l2_read_bytes: what reaches the L2s, less where
    neighbouring CUs merge their requests (machine value l2.coalesced_cus). l2_hit_bytes include
    requests that met their slab in flight (l2_merged_bytes of them).
    hbm_write_bytes: the stores, which all reach HBM in the end.
    """

    requested_bytes: int
    l2_read_bytes: int
    l2_hit_bytes: int
    l2_merged_bytes: int
    llc_read_bytes: int
    llc_hit_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int


@dataclass(frozen=True)
class TimeSeries:
    """Counters sampled during the launch; the arrays hold the totals since its start.

    clk: sample times, shape (samples,). l2_read, l2_hit: bytes per XCD, shape (samples, xcds).
    llc_read, llc_hit, hbm_read: bytes of the device, shape (samples,). clock_ghz: shape (samples,).
    """

    clk: NDArray[np.float64]
    l2_read: NDArray[np.int64]
    l2_hit: NDArray[np.int64]
    llc_read: NDArray[np.int64]
    llc_hit: NDArray[np.int64]
    hbm_read: NDArray[np.int64]
    clock_ghz: NDArray[np.float64]


@dataclass(frozen=True)
class WorkgroupLog:
    """For each workgroup in launch order: where it ran and when. clk from the launch's start.

    loop_start_clk, loop_end_clk: its first k-step's start and its last one's end.
    """

    xcd: NDArray[np.int32]
    cu: NDArray[np.int32]
    start_clk: NDArray[np.float64]
    loop_start_clk: NDArray[np.float64]
    loop_end_clk: NDArray[np.float64]
    end_clk: NDArray[np.float64]


@dataclass(frozen=True)
class Result:
    """One simulated launch. Stalls are fractions of all CU slots' time and sum to 1 with `busy`,
    the matrix pipe's work for the slot's own workgroup.

    k_step_clk: of a k-step whose loads come in time. load_latency_clk: of each operand's slabs
    from the request to the data, on the mean.
    Fields named as in `simulate --json`; times in us, clocks in MHz, bytes in B.
    """

    machine: str
    kernel: str
    params: dict[str, Any]
    time_us: float
    tflops: float
    clock_mhz: float
    cycles: float
    traffic: Traffic
    mfma_utilisation: float
    occupancy: float
    stalls: dict[str, float]
    k_step_clk: float
    load_latency_clk: dict[str, float]
    series: TimeSeries = field(repr=False)
    log: WorkgroupLog = field(repr=False)
    wall_s: float = 0.0

    @property
    def l2_hit(self) -> float:
        """L2 hits over L2 reads (fraction of bytes)."""
        return self.traffic.l2_hit_bytes / max(1, self.traffic.l2_read_bytes)

    @property
    def llc_hit(self) -> float:
        """LLC hits over LLC reads (fraction of bytes); 0 on a machine without an LLC."""
        return self.traffic.llc_hit_bytes / max(1, self.traffic.llc_read_bytes)

    def summary(self) -> dict[str, Any]:
        """The flat record that `--json` prints: plain numbers and texts only."""
        return {
            "machine": self.machine,
            "kernel": self.kernel,
            "params": self.params,
            "time_us": self.time_us,
            "tflops": self.tflops,
            "clock_mhz": self.clock_mhz,
            "cycles": self.cycles,
            "l2_hit": self.l2_hit,
            "llc_hit": self.llc_hit,
            **dataclasses.asdict(self.traffic),
            "mfma_utilisation": self.mfma_utilisation,
            "occupancy": self.occupancy,
            "stalls": self.stalls,
            "k_step_clk": self.k_step_clk,
            "load_latency_clk": self.load_latency_clk,
            "wall_s": self.wall_s,
        }
