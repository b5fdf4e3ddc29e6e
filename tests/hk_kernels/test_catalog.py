"""Schedules by name: what they parse to, what is refused, and a trace of each that is offered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdnasim.errors import InputError
from hk_kernels import gemm
from hk_kernels.catalog import (
    GEMM_SCHEDULES,
    STEPS,
    gemm_program,
    gemm_trace,
    parse_schedule,
    schedule_names,
)
from hk_kernels.lower.target import MFMA_SHAPES

DEPTH = {"bf16": 64, "fp16": 64, "fp8": 128}  # elements of 128 B
OFFERED = [
    (name, arch, dtype)
    for name, entry in GEMM_SCHEDULES.items()
    for arch in entry.kernels
    for a, dtype in MFMA_SHAPES
    if a == arch
]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("pingpong8", {"stagger": 1, "setprio": 1, "swizzle": 1, "inflight": 3}),
        (
            "pingpong8:stagger=0,inflight=1",
            {"stagger": 0, "setprio": 1, "swizzle": 1, "inflight": 1},
        ),
        ("kslices8:mfma=16", {"mfma": 16}),
        ("interleave4", {}),
        ("specialized", {"p": 4, "c": 8, "stages": 2}),
        ("specialized:p=2", {"p": 2, "c": 8, "stages": 2}),
        ("specialized:stages=3,c=12,p=4", {"p": 4, "c": 12, "stages": 3}),
    ],
)
def test_schedules(text: str, options: dict[str, int]) -> None:
    entry, found = parse_schedule(text)
    assert entry is GEMM_SCHEDULES[text.partition(":")[0]]
    assert found == options


def test_defaults_stay_as_they_are() -> None:
    parse_schedule("specialized:p=1,c=4")
    assert parse_schedule("specialized")[1] == {"p": 4, "c": 8, "stages": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pingpong",
        "PINGPONG8",
        "pingpong8 ",
        "pingpong8:",
        "pingpong8:p=4",
        "interleave4:stages=2",
        "specialized:",
        "specialized:p",
        "specialized:p=",
        "specialized:p=-4",
        "specialized:p=4.0",
        "specialized:p=1234",
        "specialized:p=4,",
        "specialized:,p=4",
        "specialized:p=4;c=8",
        "specialized:q=4",
        "specialized:p=4=4",
        "specialized:p=٤",
    ],
)
def test_schedules_that_are_none(text: str, refusal: Callable[..., str]) -> None:
    message = refusal(parse_schedule, text)
    assert "schedule" in message
    assert "unknown; allowed: pingpong8" in message or "is not one of: " in message


def test_messages_name_what_is_allowed(refusal: Callable[..., str]) -> None:
    assert schedule_names() == (
        "pingpong8:stagger=1,setprio=1,swizzle=1,inflight=3, kslices8:mfma=32, interleave4, "
        "specialized:p=4,c=8,stages=2"
    )
    assert schedule_names() in refusal(parse_schedule, "none")
    message = refusal(parse_schedule, "specialized:p=x")
    assert "'p=x' is not one of: p=<number>, c=<number>, stages=<number>" in message
    assert "is not one of: no options" in refusal(parse_schedule, "interleave4:p=1")


def test_a_target_without_the_kernel(refusal: Callable[..., str]) -> None:
    message = refusal(gemm_trace, "interleave4", "gfx942", "bf16", (256, 256, 64))
    assert message == "schedule 'interleave4' has no kernel for gfx942: gfx950, sm_90"
    assert "has no kernel for sm_90" in refusal(
        gemm_trace, "kslices8", "sm_90", "bf16", (256, 256, 64)
    )


def test_a_target_without_the_dtype(refusal: Callable[..., str]) -> None:
    message = refusal(gemm_trace, "pingpong8", "gfx942", "fp8", (256, 256, 64))
    assert message.startswith("gemm.py:")
    assert "no shared tiles of fp8 on gfx942" in message


@pytest.mark.parametrize(("name", "arch", "dtype"), OFFERED)
def test_a_trace_of_each_kernel_that_is_offered(name: str, arch: str, dtype: str) -> None:
    rows = 64 if arch == "sm_90" else 128  # a warp has 248 registers and half as many lanes
    tile = (rows, 256 if name != "interleave4" or arch != "sm_90" else 128, DEPTH[dtype])
    if (name, arch) == ("pingpong8", "sm_90"):
        tile = (128, 128, DEPTH[dtype])
    trace = gemm_trace(name, arch, dtype, tile)
    assert (trace.arch, trace.dtype, tuple(trace.tile)) == (arch, dtype, tile)
    assert trace.kernel == GEMM_SCHEDULES[name].kernels[arch].name
    assert sum(len(role.waves) for role in trace.roles) == trace.waves
    # 2048 FLOP a clock and CU of bf16 on gfx942, twice that on gfx950, and as much again for fp8;
    # four partitions of 8192 FLOP in 12 clk on sm_90
    rate = {"gfx942": 2048, "gfx950": 4096, "sm_90": 4 * 8192 / 12}[arch]
    rate *= 2 if dtype == "fp8" else 1
    assert trace.matrix_clocks == pytest.approx(2 * tile[0] * tile[1] * tile[2] / rate)
    assert gemm_trace(name, arch, dtype, tile) is trace


def test_each_dtype_of_a_target_is_offered_by_the_first_schedule() -> None:
    assert {(arch, dtype) for name, arch, dtype in OFFERED if name == "pingpong8"} == set(
        MFMA_SHAPES
    )


def test_a_program_stands_for_any_size() -> None:
    program = gemm_program("pingpong8", "gfx950", "bf16", (256, 128, 64), (3, 2))
    a, b, c = program.tensors
    assert (a.rows, a.cols) == (3 * 256, STEPS * 64)
    assert (b.rows, b.cols) == (2 * 128, STEPS * 64)
    assert (c.rows, c.cols) == (3 * 256, 2 * 128)
    assert program.grid == (3, 2)
    assert GEMM_SCHEDULES["pingpong8"].kernels["gfx942"] is gemm.pingpong8_registers


@pytest.mark.parametrize(
    ("schedule", "tile", "reason"),
    [
        ("pingpong8:inflight=4", (256, 256, 64), "allowed are 0 to 3"),
        ("kslices8:mfma=8", (256, 256, 64), "allowed are 16 and 32"),
        ("specialized:p=0", (128, 256, 64), "someone must load"),
        ("pingpong8", (512, 512, 64), "B of LDS needed"),
        ("pingpong8", (16, 16, 64), "does not divide"),
        ("interleave4", (256, 256, 96), "B of LDS needed"),
        ("specialized:p=3,c=8", (128, 256, 64), "by 3 waves"),
        ("specialized:p=4,c=8", (256, 256, 64), "would spill"),
        ("specialized:p=4,c=8,stages=4", (128, 256, 64), "B of LDS needed"),
    ],
)
def test_tiles_that_do_not_fit(
    schedule: str, tile: tuple[int, int, int], reason: str, refusal: Callable[..., str]
) -> None:
    message = refusal(gemm_trace, schedule, "gfx950", "bf16", tile)
    assert "gemm.py:" in message
    assert reason in message


def test_an_option_given_twice() -> None:
    with pytest.raises(InputError):
        parse_schedule("specialized:p=4,p=8")


def test_more_stages_than_the_steps_of_the_stand_in() -> None:
    """9 stages of 16 KiB fit the LDS; the program has only STEPS k-steps."""
    assert gemm_trace("specialized:p=4,c=4,stages=9", "gfx950", "bf16", (64, 64, 64))
