"""The slab model against lines of 128 B: the same requests, and hit rates that agree."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.experiment.linecheck import check_lines, request_log
from cdnasim.gpu.chip import Chip, Options

CUBE: dict[str, Any] = {"m": 4096, "n": 4096, "k": 4096}
ORDERS = ("row-major", "xcd:w=8,c=32", "window:w=4", "xcd-contiguous:w=8", "hilbert")


def test_the_log_takes_keys_apart() -> None:
    case = check_case("mi355x", "gemm", {"m": 512, "n": 768, "k": 256})
    launch = case.launch()
    chip = Chip(case.machine, launch, Options(log_requests=True))
    chip.run()
    log = request_log(chip)
    steps, tiles = launch.profile.iterations, len(launch.blocks)
    for operand in (0, 1):
        mine = log.operand == operand
        asked = sorted(zip(log.xcd[mine], log.block[mine], log.slab[mine], strict=True))
        needed = sorted(
            (w % 8, int(launch.blocks[w, operand]), k) for w in range(tiles) for k in range(steps)
        )
        assert [tuple(map(int, request)) for request in asked] == needed
    stores = log.operand == 2
    assert sorted(log.block[stores]) == list(range(tiles))
    assert not log.slab[stores].any()
    row, col = np.divmod(log.block[stores], 3)
    where = {tuple(tile): w % 8 for w, tile in enumerate(launch.blocks.tolist())}
    assert [where[r, c] for r, c in zip(row, col, strict=True)] == log.xcd[stores].tolist()


def test_lines_are_asked_for_as_often_as_slabs() -> None:
    pytest.importorskip("numba")
    case = check_case("mi355x", "gemm", {"m": 1024, "n": 1024, "k": 512, "caches": "cold"})
    counts, result = check_lines(case), case.run()
    assert counts.l2_read_bytes == result.traffic.requested_bytes
    assert counts.hbm_read_bytes == (1024 + 1024) * 512 * 2


@pytest.mark.slow
@pytest.mark.parametrize("caches", ["cold", "warm"])
@pytest.mark.parametrize("order", ORDERS)
def test_hit_rates_agree_on_the_mi355x(order: str, caches: str) -> None:
    pytest.importorskip("numba")
    case = check_case("mi355x", "gemm", {**CUBE, "order": order, "caches": caches})
    slabs, lines = case.run(), check_lines(case)
    assert slabs.l2_hit == pytest.approx(lines.l2_hit, abs=0.02)
    assert slabs.llc_hit == pytest.approx(lines.llc_hit, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["row-major", "window:w=16"])
def test_bytes_from_hbm_agree_on_the_h200(order: str) -> None:
    """Misses, not hit rates: the L2 reads of slabs leave out what neighbours merge."""
    pytest.importorskip("numba")
    params = {**CUBE, "tile": "128x256x64", "order": order, "caches": "cold"}
    case = check_case("h200", "gemm", params)
    slabs, lines = case.run(), check_lines(case)
    assert slabs.traffic.hbm_read_bytes == pytest.approx(lines.hbm_read_bytes, rel=0.02)
    assert lines.l2_read_bytes == slabs.traffic.requested_bytes


def with_small_caches(case: GemmCase) -> GemmCase:
    """A quarter of the L2 and an eighth of the LLC, so that both evict in a short run."""
    machine = case.machine
    machine = dataclasses.replace(
        machine,
        l2=dataclasses.replace(machine.l2, bytes=machine.l2.bytes // 4),
        llc=dataclasses.replace(machine.llc, bytes=machine.llc.bytes // 8),
    )
    return dataclasses.replace(case, machine=machine)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["row-major", "window:w=4", "hilbert"])
def test_hit_rates_agree_where_caches_evict(order: str) -> None:
    pytest.importorskip("numba")
    params = {"m": 4096, "n": 8192, "k": 2048, "order": order, "caches": "cold"}
    case = with_small_caches(check_case("mi355x", "gemm", params))
    slabs, lines = case.run(), check_lines(case)
    assert slabs.l2_hit == pytest.approx(lines.l2_hit, abs=0.02)
    assert slabs.llc_hit == pytest.approx(lines.llc_hit, abs=0.02)
