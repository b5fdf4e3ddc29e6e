"""Fits the machine values that calibration.toml names to the figures that the suites mark."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from cdnasim.errors import InputError
from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.experiment.sweep import Progress, run_cases
from cdnasim.machine.loader import HEADER, check_keys, load_machine, machine_names, read_toml
from cdnasim.machine.model import Machine
from cdnasim.validation.measured import FRACTION, Measurement
from cdnasim.validation.metrics import Comparison
from cdnasim.validation.suites import load_suites, read_suite, validation_root

Vector = NDArray[np.float64]

CALIBRATION_FILE = "calibration.toml"
DIGITS = 4  # of a fitted value; the fit itself runs on values rounded so, as the file has them
PRIOR_WEIGHT = 0.05  # see `calibrate`
PROBE = 0.03  # step of the derivatives, in logarithms: below it the model's noise would show
DAMPINGS = (1e-6, 0.01, 0.1, 1.0)  # against squared sensitivities, which are 1 or less
LONGEST_STEP = 0.7  # of a logarithm in one iteration: a factor of 2
LEAST_GAIN = 0.01  # of the sum of squares; an iteration that gains less is the last
MOST_ITERATIONS = 6
SEEDS = (0, 1, 2)  # a figure is predicted as the mean over these


@dataclass(frozen=True)
class Plan:
    """values: keys `section.field` to fit. shared_with: machines that they hold for as well."""

    values: tuple[str, ...]
    shared_with: tuple[str, ...]
    suites: tuple[str, ...]


@dataclass(frozen=True)
class Calibration:
    """keys: the fitted values. before, after: the marked figures, predicted by `source`, `fitted`.

    Figures of machines that share the values are predicted with those of `source` and `fitted`.
    """

    keys: tuple[str, ...]
    source: Machine
    fitted: Machine
    before: tuple[Comparison, ...]
    after: tuple[Comparison, ...]


def load_plans(root: Path) -> dict[str, Plan]:
    """The plans of `root`/calibration.toml by machine.

    Raises InputError for a malformed file, or a value, machine or suite that does not exist.
    """
    path, suites = root / CALIBRATION_FILE, load_suites(root)
    plans = {}
    for machine, table in read_toml(path).items():
        where = f"{path}: [{machine}]"
        check_keys(where, table, ("values", "shared_with", "suites"))
        plans[machine] = Plan(
            values=_names(f"{where}: values", table["values"], _keys()),
            shared_with=_names(f"{where}: shared_with", table["shared_with"], machine_names()),
            suites=_names(f"{where}: suites", table["suites"], suites),
        )
        if not plans[machine].values:
            raise InputError(f"{where}: values: must name at least one")
    return plans


def calibrate(
    machine: str, *, jobs: int = 1, progress: Progress | None = None, root: Path | None = None
) -> Calibration:
    """Fit the values that the plan of `machine` (a name or .toml file) names to its marked figures.

    Damped Gauss-Newton on the logarithms of the values. Residuals are log(predicted / measured),
    for fractions the difference, so that 1 % and 1 point weigh the same. To them comes
    PRIOR_WEIGHT · log(value / value now) for each value, so that a value or a combination of values
    that no figure depends on stays. Its size: the figures are trusted to about 1.5 % (they repeat
    to 0.2-1.5 %), the present values to about 30 %, and 0.015 / 0.3 = 0.05.

    A prediction is the mean over SEEDS, since memory-bound launches scatter by up to 2 % from seed
    to seed; the same files give the same fit. `progress(done, started)` is called after each of the
    runs, which take `jobs` processes. `root`: the folder with suites.toml and calibration.toml.

    Raises InputError for an unknown machine, one without a plan or without marked figures, a value
    of 0 (it has no logarithm), malformed files, or a marked case that cannot be run.
    """
    root = root or validation_root()
    source = load_machine(machine)
    plans = load_plans(root)
    if source.name not in plans:
        raise InputError(
            f"{root / CALIBRATION_FILE}: no calibration of '{source.name}'; "
            f"allowed: {', '.join(plans)}"
        )
    plan = plans[source.name]
    figures = _marked(root, plan, source.name)
    cases = {m.case: _case(m, machine if m.machine == source.name else m.machine) for m in figures}
    now = {key: _value(source, key) for key in plan.values}
    for key, value in now.items():
        if value == 0:
            raise InputError(f"{source.name}: {key} is 0 and cannot be fitted")
    ran = 0

    def predict(points: Sequence[Vector]) -> list[Vector]:
        """The figures at each point (logarithms of value / value now)."""
        nonlocal ran
        batch = [
            dataclasses.replace(case, machine=_with_values(case.machine, _moved(now, point)))
            for point in points
            for case in cases.values()
        ]

        def count(done: int, _: int) -> None:
            if progress:
                progress(ran + done, ran + len(batch))

        predicted = np.zeros((len(points), len(figures)))
        for seed in SEEDS:
            results = iter(run_cases(batch, seed=seed, jobs=jobs, progress=count))
            ran += len(batch)
            for row in predicted:
                summaries = {key: next(results).summary() for key in cases}
                row += [float(summaries[m.case][m.metric]) / len(SEEDS) for m in figures]
        return list(predicted)

    def residuals(points: Sequence[Vector]) -> list[Vector]:
        return [
            np.append(
                [_residual(m, p) for m, p in zip(figures, predicted, strict=True)],
                PRIOR_WEIGHT * point,
            )
            for point, predicted in zip(points, predict(points), strict=True)
        ]

    start = np.zeros(len(now))
    end = least_squares(residuals, start)
    before, after = (
        tuple(Comparison(m, float(p), "calibration") for m, p in zip(figures, found, strict=True))
        for found in predict([start, end])
    )
    fitted = _with_values(source, _moved(now, end))
    return Calibration(plan.values, source, _with_sources(fitted, plan, figures), before, after)


def least_squares(
    residuals: Callable[[Sequence[Vector]], Sequence[Vector]], start: Vector
) -> Vector:
    """The point of the least sum of squared residuals that a damped Gauss-Newton search has seen.

    residuals: those at each of several points (a batch, so that they can be computed in parallel).
    An iteration probes each direction by PROBE, then steps with the least of DAMPINGS that helps.
    """

    def evaluate(points: Sequence[Vector]) -> list[tuple[float, Vector, Vector]]:
        found = residuals(points)
        return [(float(r @ r), point, r) for point, r in zip(points, found, strict=True)]

    (best,) = evaluate([start])
    for _ in range(MOST_ITERATIONS):
        cost, point, here = best
        probes = evaluate([point + PROBE * axis for axis in np.eye(len(point))])
        jacobian = np.stack([r - here for _, _, r in probes], axis=1) / PROBE
        seen = [best, *probes]
        for damping in DAMPINGS:
            normal = jacobian.T @ jacobian + damping * np.eye(len(point))
            step = np.linalg.solve(normal, -jacobian.T @ here)
            seen += evaluate([point + step.clip(-LONGEST_STEP, LONGEST_STEP)])
            if seen[-1][0] < cost:
                break
        best = min(seen, key=lambda s: s[0])
        if best[0] >= (1.0 - LEAST_GAIN) * cost:
            break
    return best[1]


def check_new_file(path: Path) -> None:
    """Raise InputError unless `path` is a .toml file that does not exist yet."""
    if path.suffix != ".toml":
        raise InputError(f"{path}: the name of a machine description must end in .toml")
    if path.exists():
        raise InputError(f"{path}: exists already; choose a new file")


def write_machine(machine: Machine, path: Path) -> None:
    """Write the description of `machine` to the new file `path`, as `load_machine` reads it.

    Raises InputError if the file exists or cannot be written.
    """
    check_new_file(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(machine_toml(machine))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def machine_toml(machine: Machine) -> str:
    """The TOML text that describes `machine`: all its values are in its provenance."""
    lines = [f"{key} = {_quoted(getattr(machine, key))}" for key in HEADER]
    section = ""
    for p in machine.provenance:
        if not p.key.startswith(f"{section}."):
            section = p.key.partition(".")[0]
            lines += ["", f"[{section}]"]
        texts = {"unit": p.unit, "source": p.source, "confidence": p.confidence, "note": p.note}
        entries = [f"value = {p.value!r}"]
        entries += [f"{key} = {_quoted(text)}" for key, text in texts.items() if text]
        lines.append(f"{p.key.partition('.')[2]} = {{{', '.join(entries)}}}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string; JSON escapes the same way, but lets DEL through."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _keys() -> list[str]:
    """Keys of all machine values that may be fitted: those that are not whole numbers."""
    return [
        f"{section}.{field}"
        for section, record in get_type_hints(Machine).items()
        if dataclasses.is_dataclass(record)
        for field, kind in get_type_hints(record).items()
        if kind is float
    ]


def _names(where: str, value: Any, allowed: Collection[str]) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where}: must be a list of texts")
    for name in value:
        if name not in tuple(allowed):
            raise InputError(f"{where}: {name!r} is unknown; allowed: {', '.join(allowed)}")
    if len(set(value)) < len(value):
        raise InputError(f"{where}: names one twice")
    return tuple(value)


def _marked(root: Path, plan: Plan, machine: str) -> list[Measurement]:
    suites = load_suites(root)
    found = [
        m
        for name in plan.suites
        for m in read_suite(suites[name])
        if m.machine in (machine, *plan.shared_with) and suites[name].role(m) == "calibration"
    ]
    if not found:
        raise InputError(
            f"{root / CALIBRATION_FILE}: [{machine}]: its suites mark no calibration figure"
        )
    return found


def _case(m: Measurement, machine: str) -> GemmCase:
    try:
        return check_case(machine, m.kernel, m.params)
    except InputError as error:
        raise InputError(f"{m.where}: {error}") from None


def _value(machine: Machine, key: str) -> float:
    section, _, field = key.partition(".")
    return float(getattr(getattr(machine, section), field))


def _moved(now: Mapping[str, float], point: Vector) -> dict[str, float]:
    """The values at `point`; one that has not moved keeps all its digits."""
    return {
        key: value if log == 0 else float(f"{value * math.exp(log):.{DIGITS}g}")
        for (key, value), log in zip(now.items(), point, strict=True)
    }


def _with_values(machine: Machine, values: Mapping[str, float]) -> Machine:
    for key, value in values.items():
        section, _, field = key.partition(".")
        part = dataclasses.replace(getattr(machine, section), **{field: value})
        machine = dataclasses.replace(machine, **{section: part})
    return machine


def _with_sources(fitted: Machine, plan: Plan, figures: Sequence[Measurement]) -> Machine:
    """`fitted` with a provenance that states its new values and the figures behind them."""
    rows = "; ".join(_row_name(m) for m in figures)
    source = f"cdnasim calibrate: {', '.join(plan.values)} fitted together to {rows}"
    provenance = tuple(
        dataclasses.replace(p, value=_value(fitted, p.key), source=source, confidence="calibrated")
        if p.key in plan.values
        else p
        for p in fitted.provenance
    )
    return dataclasses.replace(fitted, provenance=provenance)


def _residual(m: Measurement, predicted: float) -> float:
    if m.unit == FRACTION:
        return predicted - m.value
    if predicted <= 0:
        raise InputError(
            f"{m.where}: {m.metric} is predicted as 0, which no value can be fitted to"
        )
    return math.log(predicted / m.value)


def _row_name(m: Measurement) -> str:
    shape = "x".join(m.params.get(key, "?") for key in ("m", "n", "k"))
    return f"{m.suite} {m.machine} {shape} {m.params.get('order', '')} {m.metric}"
