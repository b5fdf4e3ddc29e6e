"""Sustained clock of a power-limited device."""

from __future__ import annotations

from dataclasses import dataclass

from cdnasim.machine.model import Machine


@dataclass(frozen=True)
class Activity:
    """What a launch keeps busy, per core clock of the whole device.

    matrix: fraction of the matrix pipes' peak rate. l2_bytes: B/clk of requests that reach the L2s.
    llc_bytes, hbm_bytes: B/clk, reads and writes.
    """

    matrix: float
    l2_bytes: float
    llc_bytes: float
    hbm_bytes: float


def power_w(machine: Machine, activity: Activity, ghz: float) -> float:
    """Board power (W) at core clock `ghz`.

    static + (matrix_w * utilisation + L2 energy) * f^exponent + energy per byte * bytes per second
    of LLC and HBM: the core's voltage rises with its clock, the memory's does not.
    """
    power = machine.power
    # pJ/B * B/clk * Gclk/s = mW
    l2_w = power.l2_pj_per_byte * activity.l2_bytes * 1e-3
    core: float = (power.matrix_w * activity.matrix + l2_w) * ghz**power.exponent
    llc = power.llc_pj_per_byte * activity.llc_bytes * ghz * 1e-3
    hbm = power.hbm_pj_per_byte * activity.hbm_bytes * ghz * 1e-3
    return power.static_w + core + llc + hbm


def sustained_clock_ghz(machine: Machine, activity: Activity) -> float:
    """The highest clock (GHz) at which the activity stays within the power limit."""
    low, high = 0.0, machine.compute.clock_max_ghz
    if power_w(machine, activity, high) <= machine.power.limit_w:
        return high
    for _ in range(40):  # bisection to far below a kHz; power rises with the clock
        middle = (low + high) / 2
        if power_w(machine, activity, middle) > machine.power.limit_w:
            high = middle
        else:
            low = middle
    return low
