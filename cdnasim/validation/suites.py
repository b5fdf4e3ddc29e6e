"""The named validation suites: which measured files answer which question, and what was fitted."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from cdnasim.errors import InputError
from cdnasim.machine.loader import check_keys, read_toml
from cdnasim.validation.measured import (
    METRICS,
    Measurement,
    parse_params,
    read_measured,
    refuse_duplicates,
)

Role = Literal["calibration", "test"]
SUITES_FILE = "suites.toml"
_TEXTS = ("title", "question", "notes")


@dataclass(frozen=True)
class Selector:
    """Marks the figures of one machine and metric whose params include all of `params`."""

    machine: str
    params: dict[str, str]
    metric: str

    def matches(self, m: Measurement) -> bool:
        """Whether the selector marks `m`."""
        same = (self.machine, self.metric) == (m.machine, m.metric)
        return same and self.params.items() <= m.params.items()


@dataclass(frozen=True)
class Suite:
    """One suite; `calibration` marks the figures that machine parameters were fitted to."""

    name: str
    title: str
    question: str
    notes: str
    files: tuple[Path, ...]
    calibration: tuple[Selector, ...]

    def role(self, m: Measurement) -> Role:
        """Whether `m` was used to fit parameters or tests them."""
        return "calibration" if any(s.matches(m) for s in self.calibration) else "test"


def validation_root() -> Path:
    """The folder with suites.toml: the package data of a wheel, else `validation/` of the checkout.

    Raises InputError if there is neither.
    """
    package = Path(str(resources.files("cdnasim")))
    places = (package / "_data" / "validation", package.parent / "validation")
    for place in places:
        if (place / SUITES_FILE).is_file():
            return place
    looked = " nor ".join(str(place) for place in places)
    raise InputError(f"no {SUITES_FILE} in {looked}")


def load_suites(root: Path) -> dict[str, Suite]:
    """The suites that `root`/suites.toml describes, by name; InputError if it is malformed."""
    path = root / SUITES_FILE
    return {name: _suite(path, name, table) for name, table in read_toml(path).items()}


def read_suite(suite: Suite) -> list[Measurement]:
    """All figures of the suite's files.

    Raises InputError for a malformed file, a figure given twice, or a calibration selector that
    marks nothing (a misspelt one would pass a fitted figure off as a test).
    """
    found = [m for path in suite.files for m in read_measured(path, suite.name)]
    refuse_duplicates(found)
    for selector in suite.calibration:
        if not any(selector.matches(m) for m in found):
            raise InputError(
                f"{SUITES_FILE}: [{suite.name}]: no figure matches the calibration {selector}"
            )
    return found


def _suite(path: Path, name: str, table: Any) -> Suite:
    where = f"{path}: [{name}]"
    check_keys(where, table, (*_TEXTS, "files", "calibration"))
    for key in _TEXTS:
        _check_text(f"{where}: {key}", table[key])
    files = _texts(f"{where}: files", table["files"])
    marks = table["calibration"]
    if not isinstance(marks, list):
        raise InputError(f"{where}: calibration must be a list of tables")
    selectors = [s for mark in marks for s in _selectors(f"{where}: calibration", mark)]
    return Suite(
        name=name,
        **{key: table[key] for key in _TEXTS},
        files=tuple(path.parent / file for file in files),
        calibration=tuple(selectors),
    )


def _selectors(where: str, table: Any) -> list[Selector]:
    """One selector for each metric of a calibration table."""
    check_keys(where, table, ("machine", "params", "metrics"))
    for key in ("machine", "params"):
        _check_text(f"{where}: {key}", table[key])
    metrics = _texts(f"{where}: metrics", table["metrics"])
    for metric in metrics:
        if metric not in METRICS:
            raise InputError(
                f"{where}: metric '{metric}' is unknown; allowed: {', '.join(METRICS)}"
            )
    params = parse_params(table["params"], where)
    return [Selector(table["machine"], params, metric) for metric in metrics]


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: must be a list of texts that is not empty")
    for text in value:
        _check_text(where, text)
    return tuple(value)


def _check_text(where: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: must be a text that is not empty")
