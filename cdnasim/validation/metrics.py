"""How far predictions are off, and whether they rank grid orders as the measurements do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdnasim.validation.measured import FRACTION, METRICS, Measurement
from cdnasim.validation.suites import Role

BASELINE = "row-major"
MIN_RANKED = 3  # two values correlate by +1 or -1 whatever they are


@dataclass(frozen=True)
class Comparison:
    """One measured figure and its prediction; `predicted` is None for the `reason` given."""

    measurement: Measurement
    predicted: float | None
    role: Role
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Predicted - measured, over measured unless the metric is a fraction (0.01 = 1 point)."""
        if self.predicted is None:
            return None
        m = self.measurement
        return (self.predicted - m.value) / (1 if m.unit == FRACTION else m.value)


@dataclass(frozen=True)
class OrderGroup:
    """Cases that differ only in grid order, judged on one metric.

    rank: Spearman correlation over the orders (None for fewer than three). best_*: the order that
    is best by prediction and by measurement. pick_loss: how much worse the order predicted best
    measured than the measured best (fraction of the latter). gain_*: by how much the best order
    beats row-major (fraction of the row-major figure). None where the metric has no better end or
    row-major is not in the group.
    """

    machine: str
    kernel: str
    params: str
    orders: int
    rank: float | None
    best_predicted: str | None = None
    best_measured: str | None = None
    pick_loss: float | None = None
    gain_predicted: float | None = None
    gain_measured: float | None = None


@dataclass(frozen=True)
class Summary:
    """One suite, metric and role ("all", "calibration" or "test").

    n: figures with a prediction; not_predicted: those without. Errors as in Comparison.error;
    worst_error is the one of largest size. rank_overall: Spearman correlation over all n figures;
    rank_in_groups and pick_loss: means over `groups`. best_picked: how many groups lost nothing by
    the predicted choice, of the `choices` groups that have a better end. None: not defined.
    """

    suite: str
    metric: str
    role: str
    n: int
    not_predicted: int
    mean_abs_error: float | None
    median_abs_error: float | None
    worst_error: float | None
    worst_case: str | None
    rank_overall: float | None
    rank_in_groups: float | None
    best_picked: int
    choices: int
    pick_loss: float | None
    groups: tuple[OrderGroup, ...]


def summarise(comparisons: Sequence[Comparison]) -> list[Summary]:
    """A summary for each suite and metric: over all figures, then for each role that occurs."""
    rows = []
    for (suite, metric), figures in _grouped(
        comparisons, lambda c: (c.measurement.suite, c.measurement.metric)
    ):
        rows.append(_summary(suite, metric, "all", figures))
        for (role,), part in _grouped(figures, lambda c: (c.role,)):
            rows.append(_summary(suite, metric, role, part))
    return rows


def spearman(predicted: ArrayLike, measured: ArrayLike) -> float | None:
    """Spearman's rank correlation of two equally long series, ties at their average rank.

    None for fewer than three values or equal measurements (nothing to rank); 0 for equal
    predictions of measurements that differ: they say nothing about the ranking.
    """
    x, y = average_ranks(predicted), average_ranks(measured)
    if len(x) < MIN_RANKED or np.ptp(y) == 0:
        return None
    if np.ptp(x) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1, equal values sharing the mean of their ranks; shape (len(values),)."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def _summary(suite: str, metric: str, role: str, figures: Sequence[Comparison]) -> Summary:
    known = [c for c in figures if c.predicted is not None]
    errors = np.array([c.error for c in known], dtype=np.float64)
    worst = known[int(np.argmax(np.abs(errors)))] if known else None
    groups = _order_groups(known)
    losses = [g.pick_loss for g in groups if g.pick_loss is not None]
    return Summary(
        suite=suite,
        metric=metric,
        role=role,
        n=len(known),
        not_predicted=len(figures) - len(known),
        mean_abs_error=_mean(np.abs(errors)),
        median_abs_error=float(np.median(np.abs(errors))) if known else None,
        worst_error=worst.error if worst else None,
        worst_case=_case_text(worst.measurement) if worst else None,
        rank_overall=spearman(*_series(known)),
        rank_in_groups=_mean([g.rank for g in groups if g.rank is not None]),
        best_picked=sum(loss == 0 for loss in losses),
        choices=len(losses),
        pick_loss=_mean(losses),
        groups=tuple(groups),
    )


def _case_text(m: Measurement) -> str:
    return f"{m.machine} {m.kernel} {m.params_text}"


def _order_groups(known: Sequence[Comparison]) -> list[OrderGroup]:
    """A judgement for each set of two or more predicted cases that differ only in `order`."""

    def without_order(c: Comparison) -> tuple[str, ...]:
        m = c.measurement
        rest = sorted(f"{key}={value}" for key, value in m.params.items() if key != "order")
        return m.machine, m.kernel, ";".join(rest)

    ordered = [c for c in known if "order" in c.measurement.params]
    return [
        _order_group(machine, kernel, params, members)
        for (machine, kernel, params), members in _grouped(ordered, without_order)
        if len(members) > 1
    ]


def _order_group(
    machine: str, kernel: str, params: str, members: Sequence[Comparison]
) -> OrderGroup:
    predicted, measured = _series(members)
    rank = spearman(predicted, measured)
    better = METRICS[members[0].measurement.metric].best
    if better is None:
        return OrderGroup(machine, kernel, params, len(members), rank)
    orders = [c.measurement.params["order"] for c in members]
    sign = 1 if better == "high" else -1
    best = int(np.argmax(sign * measured))
    # Of orders predicted equally good the user may take any: count the one that measured worst.
    tied = np.flatnonzero(predicted == (sign * predicted).max() * sign)
    pick = int(tied[np.argmin(sign * measured[tied])])
    base = orders.index(BASELINE) if BASELINE in orders else None
    return OrderGroup(
        machine=machine,
        kernel=kernel,
        params=params,
        orders=len(members),
        rank=rank,
        best_predicted=orders[pick],
        best_measured=orders[best],
        pick_loss=_share(sign * (measured[best] - measured[pick]), measured[best]),
        gain_predicted=_gain(predicted, pick, base, sign),
        gain_measured=_gain(measured, best, base, sign),
    )


def _gain(values: NDArray[np.float64], best: int, base: int | None, sign: int) -> float | None:
    return None if base is None else _share(sign * (values[best] - values[base]), values[base])


def _share(part: float, whole: float) -> float | None:
    """`part` / `whole`; None if `whole` is 0, as a hit rate may be."""
    return float(part / whole) if whole else None


def _series(known: Sequence[Comparison]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predicted and measured values, each of shape (len(known),)."""
    predicted = np.array([c.predicted for c in known], dtype=np.float64)
    return predicted, np.array([c.measurement.value for c in known], dtype=np.float64)


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _grouped(
    comparisons: Iterable[Comparison], key: Callable[[Comparison], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], list[Comparison]]]:
    """The comparisons by key, sorted by it; within a group they keep their order."""
    by_key = itertools.groupby(sorted(comparisons, key=key), key)
    return [(value, list(members)) for value, members in by_key]
