"""GEMM launches: profiles that can be counted by hand, limits, and refusals in one line."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cdnasim.errors import InputError
from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.gpu.gemm import MAX_WORKGROUP_STEPS, Gemm, pipeline_stages, pipelined_clocks
from cdnasim.gpu.profile import WorkgroupProfile
from cdnasim.machine.loader import CONFIDENCES


def case(machine: str, **params: Any) -> GemmCase:
    """A GEMM of 7680 cubed, which many tiles divide."""
    return check_case(machine, "gemm", {"m": 7680, "n": 7680, "k": 7680, **params})


def profile(machine: str, **params: Any) -> WorkgroupProfile:
    return case(machine, **params).profile()


def refusal(machine: str, **params: Any) -> str:
    with pytest.raises(InputError) as caught:
        case(machine, **params).launch()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_grid_and_flops() -> None:
    gemm = Gemm(1024, 768, 512, "bf16", (128, 256, 64), "pingpong8")
    assert gemm.grid == (8, 3)
    assert gemm.flops == 2 * 1024 * 768 * 512


@pytest.mark.parametrize(
    ("machine", "tile", "dtype", "matrix_clk"),
    [
        ("mi355x", "256x256x64", "bf16", 2048),  # 2·256·256·64 FLOP at 4096 FLOP/clk
        ("mi355x", "192x256x64", "bf16", 1536),
        ("mi355x", "256x256x128", "fp8", 2048),  # twice the depth at twice the rate
        ("mi325x", "256x256x64", "bf16", 4096),  # half the rate
    ],
)
def test_matrix_clocks_of_a_k_step(machine: str, tile: str, dtype: str, matrix_clk: float) -> None:
    found = profile(machine, tile=tile, dtype=dtype)
    assert found.matrix_clk == matrix_clk
    assert found.iterations == 7680 // int(tile.split("x")[2])


@pytest.mark.parametrize(
    ("machine", "schedule", "traced_clk"),
    [("mi325x", "pingpong8", 4196), ("mi355x", "interleave4", 2099)],
)
def test_traced_loops_take_their_traced_clocks(
    machine: str, schedule: str, traced_clk: float
) -> None:
    """Median clocks of a k-step in traces of the published kernels, tile 256x256x64."""
    assert profile(machine, schedule=schedule).loop_clk == pytest.approx(traced_clk, rel=0.03)


def test_bytes_of_a_workgroup() -> None:
    found = profile("mi355x", tile="192x256x64")
    a, b = found.operands
    assert (a.name, a.slab_bytes, a.piece_bytes) == ("A", 192 * 64 * 2, 128)
    assert (b.name, b.slab_bytes, b.piece_bytes) == ("B", 256 * 64 * 2, 128)
    assert found.store_bytes == 192 * 256 * 2


@pytest.mark.parametrize(
    ("machine", "tile", "schedule"),
    [("mi355x", "256x256x128", "pingpong8"), ("h200", "128x256x64", "pipelined:s=4")],
)
def test_fp8_operands_make_a_bf16_result(machine: str, tile: str, schedule: str) -> None:
    found = profile(machine, dtype="fp8", tile=tile, schedule=schedule)
    rows, cols, depth = (int(side) for side in tile.split("x"))
    assert [o.slab_bytes for o in found.operands] == [rows * depth, cols * depth]
    assert found.store_bytes == rows * cols * 2


def test_the_epilogue_grows_with_the_tile() -> None:
    whole, half = (profile("mi355x", tile=tile) for tile in ("256x256x64", "128x256x64"))
    assert half.epilogue_clk == pytest.approx(whole.epilogue_clk / 2, rel=0.1)
    assert half.prologue_clk < whole.prologue_clk


def test_a_ping_pong_needs_its_slabs_within_the_k_step() -> None:
    """The youngest half of A is issued three of four phases before its wait, B's four.

    The return of the loads' bytes to the CU takes part of both.
    """
    found = profile("mi355x")
    a, b = (o.lead_clk / found.loop_clk for o in found.operands)
    assert 0.65 <= a < 0.75 < b < 1.0
    assert [o.ahead for o in found.operands] == [1, 1]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline_of_s_stages_loads_s_minus_one_k_steps_ahead(stages: int) -> None:
    found = profile("h200", tile="128x256x64", schedule=f"pipelined:s={stages}")
    for operand in found.operands:
        assert operand.lead_clk == pytest.approx((stages - 1) * found.loop_clk)
        assert operand.ahead == stages - 1


def test_the_generic_pipeline_runs_on_every_machine() -> None:
    rates = {}
    for machine in ("mi300x", "mi325x", "mi350x", "mi355x", "h200"):
        found = profile(machine, tile="128x128x64", schedule="pipelined:s=2")
        rates[machine] = found.matrix_clk / found.loop_clk
    assert len(set(rates.values())) == 1 and 0 < rates["h200"] < 1


@pytest.mark.parametrize(
    ("machine", "schedule", "fits", "too_large", "need"),
    [
        # stages · (rows + columns) · depth · 2 B against the CU's LDS
        ("mi355x", "pingpong8", "256x256x64", "512x256x64", 2 * 768 * 64 * 2),
        ("mi325x", "pingpong8", "256x256x64", "512x256x64", 1 * 768 * 64 * 2),
        ("h200", "pipelined:s=4", "192x256x64", "256x256x64", 4 * 512 * 64 * 2),
        ("mi355x", "pipelined:s=3", "160x256x64", "192x256x64", 3 * 448 * 64 * 2),
    ],
)
def test_tiles_must_fit_the_lds(
    machine: str, schedule: str, fits: str, too_large: str, need: int
) -> None:
    case(machine, schedule=schedule, tile=fits).launch()
    text = refusal(machine, schedule=schedule, tile=too_large, m=512 * 3)
    assert f"{need} B of LDS" in text


def test_the_order_places_the_blocks() -> None:
    launch = case("mi355x", m=1024, n=2048, k=512, order="col-major").launch()
    assert launch.block_counts == (4, 8)
    assert launch.blocks[:5].tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [0, 1]]
    assert len(np.unique(launch.blocks, axis=0)) == len(launch.blocks) == 32
    assert launch.flops == 2 * 1024 * 2048 * 512


def test_a_launch_that_would_take_minutes_is_refused() -> None:
    side = 256 * 2**13
    assert MAX_WORKGROUP_STEPS < 2**26 * 3
    text = refusal("mi355x", m=side, n=side, k=64 * 3)
    assert f"{2**26 * 3} workgroup k-steps; allowed: at most {MAX_WORKGROUP_STEPS}" in text


def test_clocks_name_their_sources() -> None:
    clocks, provenance = pipelined_clocks()
    assert 0 < clocks.efficiency <= 1
    for entry in provenance:
        assert getattr(clocks, entry.key.split(".")[1]) == entry.value
        assert entry.source and entry.confidence in CONFIDENCES


def test_stages_of_a_pipeline() -> None:
    assert pipeline_stages("pipelined:s=2") == 2
    assert pipeline_stages("pipelined:s=16") == 16
    assert pipeline_stages("pingpong8") is None


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("weave", "schedule 'weave' is unknown; allowed: pingpong8:stagger=1"),
        ("pingpong8:s=2", "'s=2' is not one of: stagger=<number>"),
        ("specialized:x=2", "'x=2' is not one of: p=<number>, c=<number>"),
        ("specialized:p=four", "'p=four' is not one of: p=<number>, c=<number>"),
        ("pipelined", "needs s=<stages>, a whole number from 2 to 16"),
        ("pipelined:s=1", "from 2 to 16"),
        ("pipelined:s=17", "from 2 to 16"),
        ("pipelined:s=4.0", "from 2 to 16"),
        ("pipelined:t=4", "needs s=<stages>"),
        ("pipelined:s=4,s=5", "needs s=<stages>"),
    ],
)
def test_malformed_schedules_are_refused(schedule: str, reason: str) -> None:
    assert reason in refusal("mi355x", schedule=schedule, tile="128x128x64")


def test_the_allowed_schedules_are_all_named() -> None:
    assert "pipelined" in refusal("mi355x", schedule="weave")


@pytest.mark.parametrize(("machine", "schedule"), [("mi325x", "interleave4"), ("h200", "kslices8")])
def test_a_schedule_without_a_kernel_for_the_machine_is_refused(
    machine: str, schedule: str
) -> None:
    assert f"schedule '{schedule}' has no kernel for" in refusal(machine, schedule=schedule)


@pytest.mark.parametrize(
    ("section", "values"),
    [("compute", {"lds_bytes": 1000}), ("compute", {"bf16_flops_per_clk": 1})],
)
def test_a_machine_files_own_lds_and_rate_count(section: str, values: dict[str, Any]) -> None:
    start = case("mi355x")
    machine = replace(
        start.machine, **{section: replace(getattr(start.machine, section), **values)}
    )
    changed = replace(start, machine=machine)
    try:
        assert changed.profile().matrix_clk != start.profile().matrix_clk
    except InputError as error:
        assert "LDS" in str(error) or "bf16_flops_per_clk" in str(error)
