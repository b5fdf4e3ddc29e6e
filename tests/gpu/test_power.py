"""The power model: its formula by hand, and a clock that keeps to limit and maximum."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdnasim.gpu.power import Activity, power_w, sustained_clock_ghz
from cdnasim.machine.loader import load_machine, machine_names
from cdnasim.machine.model import Machine

IDLE = Activity(matrix=0.0, l2_bytes=0.0, llc_bytes=0.0, hbm_bytes=0.0)
FULL = replace(IDLE, matrix=1.0)
ACTIVITIES = st.builds(
    Activity,
    matrix=st.floats(0, 1),
    l2_bytes=st.floats(0, 50_000),
    llc_bytes=st.floats(0, 5_000),
    hbm_bytes=st.floats(0, 5_000),
)


def simple_machine(limit_w: float = 1000.0) -> Machine:
    machine = load_machine("mi355x")
    return replace(
        machine,
        compute=replace(machine.compute, clock_max_ghz=2.0),
        power=replace(
            machine.power,
            limit_w=limit_w,
            static_w=100.0,
            exponent=3.0,
            matrix_w=50.0,
            l2_pj_per_byte=10.0,
            llc_pj_per_byte=20.0,
            hbm_pj_per_byte=60.0,
        ),
    )


def test_the_formula_by_hand() -> None:
    activity = Activity(matrix=0.5, l2_bytes=4000.0, llc_bytes=1000.0, hbm_bytes=500.0)
    # At 2 GHz: 0.5 · 50 W and 4000 B/clk · 10 pJ/B · 1 GHz = 40 W, both times 2³;
    # 1000 B/clk · 2 GHz = 2 TB/s at 20 pJ/B = 40 W; 500 B/clk = 1 TB/s at 60 pJ/B = 60 W.
    assert power_w(simple_machine(), activity, 2.0) == pytest.approx(100 + (25 + 40) * 8 + 40 + 60)


def test_the_limit_decides_the_clock() -> None:
    # 100 + 50 · f³ = 150 at 1 GHz
    assert sustained_clock_ghz(simple_machine(limit_w=150.0), FULL) == pytest.approx(1.0)


def test_an_idle_device_runs_at_its_highest_clock() -> None:
    for name in machine_names():
        machine = load_machine(name)
        assert sustained_clock_ghz(machine, IDLE) == machine.compute.clock_max_ghz


def test_full_matrix_load_is_limited_by_power_on_the_shipped_machines() -> None:
    for name in machine_names():
        machine = load_machine(name)
        clock = sustained_clock_ghz(machine, FULL)
        assert 0.5 * machine.compute.clock_max_ghz < clock < machine.compute.clock_max_ghz


@given(ACTIVITIES, st.floats(110, 5000))
def test_the_clock_keeps_to_limit_and_maximum(activity: Activity, limit_w: float) -> None:
    machine = simple_machine(limit_w)
    clock = sustained_clock_ghz(machine, activity)
    assert 0 < clock <= 2.0
    assert power_w(machine, activity, clock) <= limit_w * (1 + 1e-9)
    if clock < 2.0:
        assert power_w(machine, activity, clock) == pytest.approx(limit_w)


@given(ACTIVITIES, ACTIVITIES)
def test_more_activity_never_runs_faster(one: Activity, other: Activity) -> None:
    more = Activity(
        matrix=max(one.matrix, other.matrix),
        l2_bytes=max(one.l2_bytes, other.l2_bytes),
        llc_bytes=max(one.llc_bytes, other.llc_bytes),
        hbm_bytes=max(one.hbm_bytes, other.hbm_bytes),
    )
    machine = simple_machine()
    assert sustained_clock_ghz(machine, more) <= sustained_clock_ghz(machine, one)
