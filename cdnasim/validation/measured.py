"""Measured figures from long-format CSV files, read strictly: one figure a line, with its source.

Columns: suite, machine, kernel, params (`key=value;key=value` with the keys of the command line),
metric, value, unit, source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cdnasim.errors import InputError
from cdnasim.validation.table import csv_lines, read_text, shown

COLUMNS = ("suite", "machine", "kernel", "params", "metric", "value", "unit", "source")
FRACTION = "fraction"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

CaseKey = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Metric:
    """unit: the unit that files must state. best: the better end, None if neither end is better."""

    unit: str
    best: Literal["high", "low"] | None = None


# Named as in Result.summary(). An LLC hit rate has no better end, as it is high when L2 misses a
# lot; nor have written bytes, as every order writes the output once.
METRICS = {
    "tflops": Metric("TFLOPS", "high"),
    "time_us": Metric("us", "low"),
    "cycles": Metric("clk", "low"),
    "k_step_clk": Metric("clk", "low"),
    "clock_mhz": Metric("MHz"),
    "l2_hit": Metric(FRACTION, "high"),
    "llc_hit": Metric(FRACTION),
    "hbm_read_bytes": Metric("B", "low"),
    "hbm_write_bytes": Metric("B"),
    "mfma_utilisation": Metric(FRACTION, "high"),
}


@dataclass(frozen=True)
class Measurement:
    """One measured figure of one case; `where` is the file and line it stands in."""

    suite: str
    machine: str
    kernel: str
    params: dict[str, str]
    metric: str
    value: float
    unit: str
    source: str
    where: str

    @property
    def params_text(self) -> str:
        """The params as `key=value;key=value`, in the file's order."""
        return ";".join(f"{key}={value}" for key, value in self.params.items())

    @property
    def case(self) -> CaseKey:
        """What a run needs: machine, kernel and params, whatever their order in the file."""
        return self.machine, self.kernel, tuple(sorted(self.params.items()))


def read_measured(path: Path, suite: str | None = None) -> list[Measurement]:
    """The figures in `path`; with `suite` given, every line must belong to that suite.

    Raises InputError (file, line, reason) for text that is not UTF-8 CSV with exactly COLUMNS, a
    ragged line, an empty cell, an unknown suite, metric or unit, a value that is not a number in
    range, malformed params, no figure at all, or two figures for the same case and metric.
    """
    lines = csv_lines(path, read_text(path, f"columns must be {','.join(COLUMNS)}"))
    line, header = next(lines, (1, []))
    if sorted(header) != sorted(COLUMNS):
        got = shown(",".join(header))
        raise InputError(f"{path}:{line}: columns must be {','.join(COLUMNS)}, got {got}")
    found = []
    for line, cells in lines:
        where = f"{path}:{line}"
        if len(cells) != len(header):
            raise InputError(f"{where}: {len(cells)} cells, but the header has {len(header)}")
        row = dict(zip(header, cells, strict=True))
        if suite is not None and row["suite"] != suite:
            raise InputError(f"{where}: suite {shown(row['suite'])} is unknown; allowed: {suite}")
        found.append(_measurement(row, where))
    if not found:
        raise InputError(f"{path}: holds no measured figure")
    refuse_duplicates(found)
    return found


def refuse_duplicates(measurements: Iterable[Measurement]) -> None:
    """Raise InputError if two figures are of the same suite, case and metric."""
    seen: dict[tuple[str, CaseKey, str], str] = {}
    for m in measurements:
        first = seen.setdefault((m.suite, m.case, m.metric), m.where)
        if first != m.where:
            raise InputError(f"{m.where}: {m.metric} of this case is already given at {first}")


def parse_params(text: str, where: str) -> dict[str, str]:
    """The settings of `key=value;key=value`; raises InputError, which starts with `where`."""
    params: dict[str, str] = {}
    for item in text.split(";"):
        key, _, value = (part.strip() for part in item.partition("="))
        if not key or not value:
            raise InputError(f"{where}: params: {shown(item)} is not key=value")
        if key in params:
            raise InputError(f"{where}: params: key {shown(key)} is given twice")
        params[key] = value
    return params


def _measurement(row: dict[str, str], where: str) -> Measurement:
    for column, cell in row.items():
        if not cell:
            raise InputError(f"{where}: column '{column}' is empty")
    name, unit = row["metric"], row["unit"]
    if name not in METRICS:
        raise InputError(f"{where}: metric {shown(name)} is unknown; allowed: {', '.join(METRICS)}")
    if unit != METRICS[name].unit:
        allowed = METRICS[name].unit
        raise InputError(f"{where}: unit {shown(unit)} is wrong for {name}; allowed: {allowed}")
    return Measurement(
        suite=row["suite"],
        machine=row["machine"],
        kernel=row["kernel"],
        params=parse_params(row["params"], where),
        metric=name,
        value=_value(row["value"], unit, where),
        unit=unit,
        source=row["source"],
        where=where,
    )


def _value(text: str, unit: str, where: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise InputError(f"{where}: value {shown(text)} is not a number")
    value = float(text)
    if unit == FRACTION and not 0 <= value <= 1:
        raise InputError(f"{where}: value {shown(text)} must be a fraction from 0 to 1")
    if unit != FRACTION and not (value > 0 and math.isfinite(value)):
        raise InputError(f"{where}: value {shown(text)} must be finite and above 0")
    return value
