"""Candidate grid orders for a GEMM, to search the best of them."""

from __future__ import annotations

from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.experiment.store import hash_of_order

HEIGHTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)  # window heights w worth a try
BASELINE = "row-major"


def candidate_specs(rows: int, cols: int, xcds: int) -> list[str]:
    """Order specs for a grid of rows x cols tiles, the baseline first.

    Windows of several heights; on a machine of several XCDs also the chunked regrouping, with
    chunks c from a few tiles to the XCD's whole share in powers of two, and the contiguous one.
    """
    heights = [w for w in HEIGHTS if w <= rows]
    specs = [BASELINE, "col-major", "hilbert", "morton"]
    specs += [f"window:w={w}" for w in heights]
    if xcds == 1:
        return specs
    share = rows * cols // xcds
    chunks = sorted({2**i for i in range(2, 12) if 2**i < share} | {max(1, share)})
    specs += [f"xcd-contiguous:w={w}" for w in heights]
    specs += [f"xcd:w={w},c={c}" for w in heights for c in chunks]
    return specs


def candidate_cases(case: GemmCase) -> list[GemmCase]:
    """`case` in every candidate order, without those that come to the same tiles."""
    case.launch()  # what is too large is refused before all its orders are laid out
    rows, cols = case.gemm.grid
    specs = candidate_specs(rows, cols, case.machine.compute.xcds)
    cases = [
        check_case(case.machine_source, "gemm", {**case.params, "order": spec}) for spec in specs
    ]
    distinct: dict[str, GemmCase] = {}
    for candidate in cases:
        distinct.setdefault(hash_of_order(candidate), candidate)
    return list(distinct.values())
