"""Which mechanism decides a row: predictions with one mechanism at a time switched off.

Prints the tables of docs/model.md. Usage: python benchmarks/mechanisms.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.gpu.result import Result
from cdnasim.machine.model import Machine
from cdnasim.terminal import print_table

MUCH = 1e6  # a bandwidth that never limits


def without_drift(m: Machine) -> Machine:
    """All CUs and workgroups equally fast, no spread of the cold start."""
    drift = dataclasses.replace(m.drift, steady_sd=0.0, random_sd=0.0)
    return dataclasses.replace(
        m, drift=drift, dispatch=dataclasses.replace(m.dispatch, cold_start_sd_clk=0.0)
    )


def without_late_loads(m: Machine) -> Machine:
    """Every load comes at once: no latency, no queue, so nobody ever stalls."""
    llc = dataclasses.replace(m.llc, read_tbs=MUCH, latency_ns=0.0)
    hbm = dataclasses.replace(m.hbm, stream_tbs=MUCH, scattered_tbs=MUCH, latency_ns=0.0)
    link = dataclasses.replace(m.link, bytes_per_clk=MUCH)
    return dataclasses.replace(m, llc=llc, hbm=hbm, link=link)


def without_llc_limit(m: Machine) -> Machine:
    """LLC bandwidth without limit."""
    return dataclasses.replace(m, llc=dataclasses.replace(m.llc, read_tbs=MUCH))


def without_hbm_limit(m: Machine) -> Machine:
    """HBM bandwidth without limit; its latency stays."""
    hbm = dataclasses.replace(m.hbm, stream_tbs=MUCH, scattered_tbs=MUCH)
    return dataclasses.replace(m, hbm=hbm)


def at_fixed_clock(m: Machine) -> Machine:
    """No power limit: the peak clock throughout."""
    return dataclasses.replace(m, power=dataclasses.replace(m.power, limit_w=MUCH))


SWITCHES: dict[str, Callable[[Machine], Machine]] = {
    "full model": lambda m: m,
    "no drift": without_drift,
    "no late loads": without_late_loads,
    "no LLC limit": without_llc_limit,
    "no HBM limit": without_hbm_limit,
    "no power limit": at_fixed_clock,
}
TABLE_4 = (
    ("9216", "row-major", "55/95/1113"),
    ("9216", "xcd:w=7,c=216", "79/24/991"),
    ("14592", "row-major", "36/76/900"),
    ("14592", "xcd:w=8,c=541", "79/7/980"),
)
# suite, order, size, rounds, measured sd of start times (us; own H200 measurement)
DRIFT = (
    ("8192", "row-major", (1, 7, 14), (1.00, 3.12, 4.58)),
    ("14592", "row-major", (12, 48), (7.40, 12.08)),
    ("14592", "window:w=8", (12, 48), (7.72, 25.56)),
)


def run(case: GemmCase, change: Callable[[Machine], Machine]) -> Result:
    """`case` on its changed machine."""
    return dataclasses.replace(case, machine=change(case.machine)).run()


def start_spread_us(result: Result, round_: int, cus: int) -> float:
    """Standard deviation of the start times of the workgroups of one round (us)."""
    starts = result.log.start_clk[round_ * cus : (round_ + 1) * cus]
    return float(np.std(starts) / result.clock_mhz)


def main() -> None:
    """Print both tables."""
    for machine in ("mi355x", "mi350x"):
        rows = []
        for size, order, measured in TABLE_4:
            params = {"m": size, "n": size, "k": size, "tile": "192x256x64", "order": order}
            case = check_case(machine, "gemm", params)
            cells = []
            for change in SWITCHES.values():
                r = run(case, change)
                cells.append(f"{100 * r.l2_hit:.0f}/{100 * r.llc_hit:.0f}/{r.tflops:.0f}")
            rows.append([f"{size} {order}", measured, *cells])
        print_table(f"{machine}: L2 % / LLC % / TFLOPS", ("row", "published", *SWITCHES), rows)
    rows = []
    for size, order, rounds, measured_us in DRIFT:
        params = {"m": size, "n": size, "k": size, "tile": "128x256x64", "order": order}
        case = check_case("h200", "gemm", {**params, "caches": "cold"})
        results = [run(case, change) for change in SWITCHES.values()]
        for round_, measured_sd in zip(rounds, measured_us, strict=True):
            cells = [f"{start_spread_us(r, round_, case.machine.cus):.2f}" for r in results]
            rows.append([f"{size} {order}", str(round_), f"{measured_sd:.2f}", *cells])
    print_table(
        "h200: sd of the start times in a round (us)", ("row", "round", "measured", *SWITCHES), rows
    )


if __name__ == "__main__":
    main()
