"""Candidate orders: the baseline, windows and chunks of many sizes, nothing twice."""

import numpy as np
import pytest

from cdnasim.errors import InputError
from cdnasim.experiment.best_order import BASELINE, candidate_cases, candidate_specs
from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.gpu.orders import parse_order


def case(machine: str = "mi355x", m: int = 2048, n: int = 2048, k: int = 128) -> GemmCase:
    return check_case(machine, "gemm", {"m": m, "n": n, "k": k, "tile": "128x128x64"})


@pytest.mark.parametrize(
    ("rows", "cols", "xcds"), [(1, 1, 8), (16, 16, 8), (48, 36, 8), (64, 32, 1)]
)
def test_every_candidate_is_an_order_of_the_grid(rows: int, cols: int, xcds: int) -> None:
    specs = candidate_specs(rows, cols, xcds)
    assert specs[0] == BASELINE
    assert len(set(specs)) == len(specs)
    for spec in specs:
        order = parse_order(spec)
        assert order.spec == spec
        assert len(order.positions(rows, cols, xcds)) == rows * cols
        assert all(value <= rows for key, value in order.params if key == "w")


def test_both_parameters_are_searched_where_there_are_xcds() -> None:
    params = [dict(parse_order(s).params) for s in candidate_specs(48, 36, 8) if s[:4] == "xcd:"]
    heights, chunks = ({p[key] for p in params} for key in ("w", "c"))
    assert len(params) == len(heights) * len(chunks)
    assert {2, 4, 8, 16} <= heights
    assert {4, 64, 48 * 36 // 8} <= chunks
    assert not any(spec.startswith("xcd") for spec in candidate_specs(48, 36, 1))


def test_no_two_candidates_place_the_tiles_alike() -> None:
    cases = candidate_cases(case())
    assert cases[0].params["order"] == BASELINE
    tiles = {c.order.tiles(*c.gemm.grid, 8).tobytes() for c in cases}
    assert len(tiles) == len(cases) > 50
    specs = candidate_specs(16, 16, 8)
    assert {parse_order(spec).tiles(16, 16, 8).tobytes() for spec in specs} == tiles


def test_candidates_differ_in_nothing_but_the_order() -> None:
    start = check_case(
        "mi350x",
        "gemm",
        {"m": 512, "n": 1024, "k": 128, "tile": "256x128x64", "caches": "cold", "dtype": "fp16"},
    )
    for candidate in candidate_cases(start):
        assert candidate.params == {**start.params, "order": candidate.params["order"]}
        assert candidate.machine == start.machine
        assert not candidate.warm


def test_a_grid_of_one_row_leaves_little_to_choose() -> None:
    specs = [c.params["order"] for c in candidate_cases(case(m=128))]
    assert specs[0] == BASELINE
    assert "window:w=2" not in specs  # would be row-major again
    one = candidate_cases(case(m=128, n=128))
    assert [c.params["order"] for c in one] == [BASELINE]


def test_a_grid_too_large_to_lay_out_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="workgroup k-steps; allowed: at most"):
        candidate_cases(case(m=2**24, n=2**24))


def test_tiles_are_those_of_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for candidate in candidate_cases(case(m=512, n=512)):
        blocks = candidate.launch().blocks
        assert np.array_equal(blocks, candidate.order.tiles(4, 4, 8))
