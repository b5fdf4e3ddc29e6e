"""What limits a launch: the largest loss is named, with figures of the launch itself."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cdnasim.experiment.case import check_case
from cdnasim.experiment.explain import limit
from cdnasim.experiment.kernel_facts import HEADINGS, kernel_facts
from cdnasim.experiment.timeline import launch_timeline
from cdnasim.gpu.result import Result

SMALL = {"m": 2048, "n": 2048, "k": 1024}


@pytest.fixture(scope="module")
def result() -> Result:
    return check_case("mi355x", "gemm", SMALL).run()


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("hbm", "limited by loads from HBM that come too late (90 %)"),
        ("llc", "limited by loads from LLC that come too late (90 %)"),
        ("prologue_epilogue", "limited by filling the pipeline and storing the tile (90 %)"),
        ("no_workgroup", "limited by CU slots without a workgroup (90 %)"),
        ("loop_overhead", "limited by the k-step itself (90 %)"),
    ],
)
def test_the_largest_loss_is_named(result: Result, cause: str, text: str) -> None:
    case = check_case("mi355x", "gemm", SMALL)
    stalls = {**dict.fromkeys(result.stalls, 0.0), cause: 0.9, "busy": 0.1}
    changed = dataclasses.replace(result, stalls=stalls, clock_mhz=2400.0)
    assert limit(case, changed).startswith(text)


def test_a_low_clock_is_powers_doing(result: Result) -> None:
    case = check_case("mi355x", "gemm", SMALL)
    stalls = {**dict.fromkeys(result.stalls, 0.0), "busy": 1.0}
    changed = dataclasses.replace(result, stalls=stalls, clock_mhz=1200.0)
    assert limit(case, changed).startswith("limited by power: ")
    assert "1200 of 2400 MHz" in limit(case, changed)


def test_a_k_step_is_explained_by_its_waves(result: Result) -> None:
    case = check_case("mi355x", "gemm", {**SMALL, "schedule": "pingpong8:stagger=0"})
    stalls = {**dict.fromkeys(result.stalls, 0.0), "loop_overhead": 0.9, "busy": 0.1}
    text = limit(case, dataclasses.replace(result, stalls=stalls, clock_mhz=2400.0))
    assert "of matrix work, its waves wait most for" in text


def test_what_a_kernel_asks_for() -> None:
    row = kernel_facts(check_case("mi355x", "gemm", SMALL))
    assert row is not None
    facts = dict(zip(HEADINGS, row, strict=True))
    assert facts["waves"] == "8"
    assert facts["spilled"] == "0"
    assert facts["LDS KB"] == "128"
    assert facts["FLOP/B"] == "128"  # 2·256·256·64 / (2·256·64·2)
    spilling = {"schedule": "specialized:p=4,c=8", "registers": "compiler"}
    row = kernel_facts(check_case("mi355x", "gemm", {**SMALL, **spilling}))
    assert row is not None
    assert int(dict(zip(HEADINGS, row, strict=True))["spilled"]) > 0
    assert kernel_facts(check_case("h200", "gemm", SMALL)) is None


def test_a_launch_has_all_its_workgroups_and_one_cus_waves(result: Result) -> None:
    case = check_case("mi355x", "gemm", SMALL)
    events = json.loads(json.dumps(launch_timeline(case, result)))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert sum(e["cat"] == "workgroup" for e in slices) == 64
    for one in (e for e in slices if e["cat"] == "phase"):
        assert one["dur"] >= 0
    waves = [e for e in events if e["name"] == "thread_name" and "wave" in e["args"]["name"]]
    assert len(waves) == 8
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        f"XCD {x}" for x in range(8)
    }


def test_the_generic_pipeline_has_no_waves() -> None:
    case = check_case("h200", "gemm", {"m": 1024, "n": 1024, "k": 512})
    events = launch_timeline(case, case.run())["traceEvents"]
    assert not [e for e in events if "wave" in str(e["args"].get("name", ""))]
