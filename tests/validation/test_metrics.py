"""Error metrics against hand-made cases whose answers are known exactly."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdnasim.validation.measured import METRICS, Measurement
from cdnasim.validation.metrics import (
    Comparison,
    OrderGroup,
    average_ranks,
    spearman,
    summarise,
)
from cdnasim.validation.suites import Role


def compare(
    measured: float,
    predicted: float | None,
    metric: str = "tflops",
    order: str = "row-major",
    m: int = 64,
    role: Role = "test",
) -> Comparison:
    params = {"m": str(m), "order": order}
    unit = METRICS[metric].unit
    figure = Measurement("s", "h200", "gemm", params, metric, measured, unit, "x", "f:2")
    return Comparison(figure, predicted, role)


def group(metric: str, **orders: tuple[float, float]) -> OrderGroup:
    """The judgement on orders given as name=(measured, predicted); `base` means row-major."""
    names = {name: "row-major" if name == "base" else name for name in orders}
    cases = [compare(*pair, metric, names[name]) for name, pair in orders.items()]
    summary = summarise(cases)[0]
    (judged,) = summary.groups
    return judged


def test_errors_are_relative_but_points_for_fractions() -> None:
    assert compare(200, 150).error == -0.25
    assert compare(0.5, 0.75, "l2_hit").error == 0.25
    assert compare(0.0, 0.5, "llc_hit").error == 0.5
    assert compare(200, None).error is None


def test_summary_of_errors() -> None:
    cases = [compare(100, p, m=i) for i, p in enumerate((110, 70, 100, None))]
    row = summarise(cases)[0]
    assert (row.n, row.not_predicted) == (3, 1)
    assert row.mean_abs_error == pytest.approx(0.4 / 3)
    assert row.median_abs_error == pytest.approx(0.1)
    assert row.worst_error == pytest.approx(-0.3)
    assert row.worst_case == "h200 gemm m=1;order=row-major"


def test_roles_split_the_figures_of_a_suite_and_metric() -> None:
    cases = [
        compare(100, 100, m=1, role="calibration"),
        compare(100, 120, m=2),
        compare(100, 140, m=3),
        compare(0.5, 0.5, "l2_hit"),
    ]
    rows = {(row.metric, row.role): row for row in summarise(cases)}
    assert list(rows) == [
        ("l2_hit", "all"),
        ("l2_hit", "test"),
        ("tflops", "all"),
        ("tflops", "calibration"),
        ("tflops", "test"),
    ]
    assert rows["tflops", "calibration"].mean_abs_error == 0
    assert rows["tflops", "test"].mean_abs_error == pytest.approx(0.3)
    assert rows["tflops", "all"].n == 3


def test_nothing_predicted_leaves_every_metric_undefined() -> None:
    row = summarise([compare(100, None), compare(100, None, order="col-major")])[0]
    values = dataclasses.asdict(row)
    assert (row.n, row.not_predicted, row.choices, row.groups) == (0, 2, 0, ())
    undefined = [key for key, value in values.items() if value is None]
    assert undefined == [
        "mean_abs_error",
        "median_abs_error",
        "worst_error",
        "worst_case",
        "rank_overall",
        "rank_in_groups",
        "pick_loss",
    ]


def test_the_best_order_is_picked() -> None:
    judged = group("tflops", base=(100, 90), a=(120, 99), b=(110, 95))
    assert judged.rank == 1.0
    assert (judged.best_predicted, judged.best_measured, judged.pick_loss) == ("a", "a", 0)
    assert judged.gain_measured == pytest.approx(0.20)
    assert judged.gain_predicted == pytest.approx(0.10)


def test_a_wrong_pick_costs_its_measured_difference() -> None:
    judged = group("tflops", base=(100, 99), a=(125, 90), b=(110, 95))
    assert judged.rank == -1.0
    assert (judged.best_predicted, judged.best_measured) == ("row-major", "a")
    assert judged.pick_loss == pytest.approx(0.2)
    assert judged.gain_predicted == 0


def test_less_is_better_for_time_and_bytes() -> None:
    for metric in ("time_us", "cycles", "hbm_read_bytes"):
        judged = group(metric, base=(100, 100), a=(80, 60), b=(100, 50))
        assert (judged.best_predicted, judged.best_measured) == ("b", "a")
        assert judged.pick_loss == pytest.approx(0.25)
        assert judged.gain_measured == pytest.approx(0.2)
        assert judged.gain_predicted == pytest.approx(0.5)


def test_orders_predicted_equally_good_count_as_the_worst_of_them() -> None:
    judged = group("tflops", a=(100, 50), b=(80, 50), c=(90, 40))
    assert judged.best_predicted == "b" and judged.pick_loss == pytest.approx(0.2)


def test_without_row_major_there_is_no_gain_and_llc_hits_have_no_best() -> None:
    judged = group("tflops", a=(1, 1), b=(2, 2))
    assert judged.gain_measured is None and judged.gain_predicted is None
    assert judged.rank is None  # two orders only
    judged = group("llc_hit", base=(0.1, 0.1), a=(0.2, 0.2), b=(0.3, 0.3))
    assert (judged.rank, judged.best_measured, judged.pick_loss) == (1.0, None, None)


def test_hit_rates_of_zero_give_no_ratio() -> None:
    judged = group("l2_hit", base=(0, 0), a=(0, 0))
    assert judged.pick_loss is None and judged.gain_measured is None


def test_groups_hold_cases_that_differ_only_in_order() -> None:
    first = [compare(v, v, order=o) for v, o in ((1, "row-major"), (2, "a"), (3, "b"))]
    other = [compare(v, -v, order=o, m=128) for v, o in ((1, "row-major"), (2, "a"), (3, "b"))]
    alone = [compare(9, 9, m=256), compare(9, None, order="a", m=256)]
    row = summarise([*first, *other, *alone])[0]
    assert [(g.params, g.orders, g.rank) for g in row.groups] == [
        ("m=128", 3, -1.0),
        ("m=64", 3, 1.0),
    ]
    assert row.rank_in_groups == 0
    assert (row.best_picked, row.choices) == (1, 2)
    assert row.pick_loss == pytest.approx((2 / 3) / 2)


def test_the_order_of_the_figures_does_not_matter() -> None:
    cases = [compare(v, p, order=o) for v, p, o in ((1, 3, "row-major"), (2, 2, "a"), (3, 5, "b"))]
    assert summarise(cases) == summarise(cases[::-1])


def test_ties_share_the_mean_of_their_ranks() -> None:
    assert average_ranks([30, 10, 20, 20]).tolist() == [4, 1, 2.5, 2.5]


def test_spearman_of_known_series() -> None:
    assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)  # 1 - 6*4/(5*24)
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 2, 3], [5, 5, 5]) is None
    assert spearman([5, 5, 5], [1, 2, 3]) == 0


SERIES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=20)


@given(SERIES)
def test_spearman_is_bounded_and_sees_only_the_order(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, dtype=float).T
    value = spearman(x, y)
    if value is None:
        assert len(set(y)) == 1
        return
    assert -1 - 1e-12 <= value <= 1 + 1e-12
    assert spearman(np.exp(x), y**3) == pytest.approx(value)
    assert spearman(-x, y) == pytest.approx(-value)
    assert spearman(y, y) == pytest.approx(1)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_ranks_sum_as_without_ties(values: list[int]) -> None:
    assert average_ranks(values).sum() == len(values) * (len(values) + 1) / 2
