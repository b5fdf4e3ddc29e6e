"""Runs the cases of measured figures and sets prediction beside measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cdnasim.errors import InputError
from cdnasim.gpu.result import Result
from cdnasim.validation.measured import FRACTION, METRICS, CaseKey, Measurement, read_measured
from cdnasim.validation.metrics import Comparison, Summary, summarise
from cdnasim.validation.suites import Suite, load_suites, read_suite, validation_root

Runner = Callable[[str, str, Mapping[str, str]], Result]
Progress = Callable[[int, int], None]
HEADER = (
    "suite",
    "metric",
    "role",
    "n",
    "mean error",
    "median error",
    "worst error",
    "rank overall",
    "rank in groups",
    "best picked",
    "pick loss",
)


@dataclass(frozen=True)
class Prediction:
    """The metrics of one run, or the reason why the case cannot be run."""

    values: dict[str, float]
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """Every measured figure with its prediction."""

    cases: tuple[Comparison, ...]

    @cached_property
    def summary(self) -> list[Summary]:
        """A row for each suite, metric and role."""
        return summarise(self.cases)

    def to_json(self) -> dict[str, Any]:
        """What `validate --json` prints: plain lists, tables, texts and numbers."""
        return {
            "cases": [_case_json(c) for c in self.cases],
            "summary": [dataclasses.asdict(row) for row in self.summary],
        }

    def table(self) -> list[tuple[str, ...]]:
        """The summary as texts, HEADER first; errors in % or, for fractions, in points (pt)."""
        return [HEADER, *(_table_row(row) for row in self.summary)]


def validate(
    suites: Sequence[str] = (),
    measured_file: Path | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    runner: Runner | None = None,
    root: Path | None = None,
) -> Report:
    """Predict every figure of the named suites (all if none is named) and compare.

    With `measured_file` the figures come from that file, `suites` picks among the suites it names,
    and suites.toml says which of them are calibration. Each distinct case runs once, in `jobs`
    processes; `progress(done, cases)` is called after each. `runner` (default
    experiment.case.run_case) must be picklable if jobs > 1. `root`: the folder with suites.toml.

    Raises InputError for an unknown suite, malformed files, or jobs < 1. A case for which the
    runner raises InputError gets no prediction and that reason; any other exception propagates.
    """
    if jobs < 1:
        raise InputError(f"jobs must be 1 or more, got {jobs}")
    known = load_suites(root or validation_root())
    measurements = _measurements(suites, measured_file, known)
    cases = list(dict.fromkeys(m.case for m in measurements))
    predictions = _predict_all(cases, runner or _default_runner(), jobs, progress)
    return Report(tuple(_compare(m, predictions[m.case], known) for m in measurements))


def _measurements(
    names: Sequence[str], measured_file: Path | None, known: Mapping[str, Suite]
) -> list[Measurement]:
    if measured_file is None:
        _check_names(names, known, "")
        return [m for name in dict.fromkeys(names or known) for m in read_suite(known[name])]
    found = read_measured(measured_file)
    _check_names(names, dict.fromkeys(m.suite for m in found), f"{measured_file}: ")
    return [m for m in found if not names or m.suite in names]


def _check_names(names: Sequence[str], allowed: Iterable[str], where: str) -> None:
    for name in names:
        if name not in allowed:
            raise InputError(f"{where}suite '{name}' is unknown; allowed: {', '.join(allowed)}")


def _default_runner() -> Runner:
    from cdnasim.experiment.case import run_case  # the simulator is loaded only when it runs

    return run_case


def _predict_all(
    cases: Sequence[CaseKey], runner: Runner, jobs: int, progress: Progress | None
) -> dict[CaseKey, Prediction]:
    predict = partial(_predict, runner)
    found: dict[CaseKey, Prediction] = {}

    def store(case: CaseKey, prediction: Prediction) -> None:
        found[case] = prediction
        if progress:
            progress(len(found), len(cases))

    workers = min(jobs, len(cases))
    if workers < 2:
        for case in cases:
            store(case, predict(case))
        return found
    with ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(predict, case): case for case in cases}
        try:
            for future in as_completed(futures):
                store(futures[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)  # do not finish the rest before the error is seen
            raise
    return found


def _predict(runner: Runner, case: CaseKey) -> Prediction:
    """One case's metrics only: a Result carries time series, too much to pass between processes."""
    machine, kernel, params = case
    try:
        summary = runner(machine, kernel, dict(params)).summary()
    except InputError as error:
        return Prediction({}, str(error))
    return Prediction({metric: float(summary[metric]) for metric in METRICS})


def _compare(m: Measurement, prediction: Prediction, known: Mapping[str, Suite]) -> Comparison:
    role = known[m.suite].role(m) if m.suite in known else "test"
    return Comparison(m, prediction.values.get(m.metric), role, prediction.reason)


def _case_json(c: Comparison) -> dict[str, Any]:
    m = c.measurement
    record: dict[str, Any] = {
        "suite": m.suite,
        "machine": m.machine,
        "kernel": m.kernel,
        "params": m.params_text,
        "metric": m.metric,
        "predicted": c.predicted,
        "measured": m.value,
        "unit": m.unit,
        "error": c.error,
        "role": c.role,
    }
    return {**record, "reason": c.reason} if c.reason else record


def _table_row(row: Summary) -> tuple[str, ...]:
    unit = "pt" if METRICS[row.metric].unit == FRACTION else "%"
    return (
        row.suite,
        row.metric,
        row.role,
        f"{row.n}" if not row.not_predicted else f"{row.n} of {row.n + row.not_predicted}",
        _hundredths(row.mean_abs_error, unit),
        _hundredths(row.median_abs_error, unit),
        _hundredths(row.worst_error, unit, sign="+"),
        *("-" if r is None else f"{r:.2f}" for r in (row.rank_overall, row.rank_in_groups)),
        f"{row.best_picked} of {row.choices}" if row.choices else "-",
        _hundredths(row.pick_loss, "%"),
    )


def _hundredths(value: float | None, unit: str, sign: str = "") -> str:
    return "-" if value is None else f"{100 * value:{sign}.1f} {unit}"
