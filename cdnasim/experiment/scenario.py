"""Scenarios: a what-if question in a TOML file, as groups of cases to compare."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from cdnasim.errors import InputError
from cdnasim.experiment.case import GEMM_KEYS, KERNELS, GemmCase, check_case
from cdnasim.machine.loader import check_keys, read_toml
from cdnasim.validation.measured import CaseKey

TEXTS = ("title", "question", "machine", "kernel")


@dataclass(frozen=True)
class Group:
    """Cases that answer one part of the question, to be compared with each other."""

    title: str
    cases: tuple[GemmCase, ...]


@dataclass(frozen=True)
class Scenario:
    """A question and its cases. measured: validation suites whose figures stand beside them."""

    name: str
    title: str
    question: str
    machine: str
    kernel: str
    measured: tuple[str, ...]
    groups: tuple[Group, ...]


def scenario_root() -> Path:
    """The folder of the scenarios that come with cdnasim: package data, else the checkout's."""
    package = Path(str(resources.files("cdnasim")))
    packaged = package / "_data" / "scenarios"
    return packaged if packaged.is_dir() else package.parent / "scenarios"


def scenario_names() -> list[str]:
    """Names of the scenarios that come with cdnasim."""
    return sorted(path.stem for path in scenario_root().glob("*.toml"))


def load_scenario(name: str, overrides: Mapping[str, str] | None = None) -> Scenario:
    """The scenario `name`, or the one in the TOML file `name`.

    overrides: parameters (or `machine`) set for all cases. Raises InputError (file, key, allowed).
    """
    if name in scenario_names():
        path = scenario_root() / f"{name}.toml"
    elif name.endswith(".toml"):
        path = Path(name)
    else:
        known = ", ".join(scenario_names())
        raise InputError(f"scenario '{name}' is unknown; allowed: {known}, or a .toml file")
    table = read_toml(path)
    check_keys(str(path), table, (*TEXTS, "group"), ("measured",))
    for key in TEXTS:
        if not isinstance(table[key], str) or not table[key]:
            raise InputError(f"{path}: key '{key}' must be a text that is not empty")
    if table["kernel"] not in KERNELS:
        raise InputError(f"{path}: kernel '{table['kernel']}' is unknown; allowed: {KERNELS[0]}")
    changes = dict(overrides or {})
    machine = changes.pop("machine", table["machine"])
    for key in changes:
        if key not in GEMM_KEYS:
            raise InputError(f"--set {key}: unknown; allowed: machine, {', '.join(GEMM_KEYS)}")
    groups = table["group"]
    if not isinstance(groups, list) or not groups:
        raise InputError(f"{path}: needs one [[group]] or more")
    return Scenario(
        name=path.stem,
        title=table["title"],
        question=table["question"],
        machine=machine,
        kernel=table["kernel"],
        measured=_texts(path, "measured", table.get("measured", [])),
        groups=tuple(_group(path, i, g, machine, changes) for i, g in enumerate(groups, 1)),
    )


def _group(path: Path, number: int, table: Any, machine: str, changes: Mapping[str, str]) -> Group:
    where = f"{path}: group {number}"
    check_keys(where, table, ("title", "params"), ("sweep", "cases"))
    if not isinstance(table["title"], str):
        raise InputError(f"{where}: title must be a text")
    listed = table.get("cases", [{}])
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{where}: cases must be a list of tables that is not empty")
    swept = table.get("sweep", {})
    parts = [("params", table["params"]), ("sweep", swept), *(("cases", c) for c in listed)]
    for part, content in parts:
        check_keys(f"{where}: {part}", content, (), GEMM_KEYS)
    sweep = {key: _texts(path, f"group {number}: sweep.{key}", v) for key, v in swept.items()}
    for key, values in sweep.items():
        if not values:
            raise InputError(f"{where}: sweep.{key} must not be empty")
    points = [dict(zip(sweep, point, strict=True)) for point in itertools.product(*sweep.values())]
    cases = []
    for one, point in itertools.product(listed, points):
        params = {**table["params"], **one, **point, **changes}
        try:
            cases.append(check_case(machine, "gemm", params))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    return Group(table["title"], tuple({repr(c.params): c for c in cases}.values()))


def _texts(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str | int) for v in value):
        raise InputError(f"{path}: {key} must be a list of texts or numbers")
    return tuple(str(v) for v in value)


def measured_for(scenario: Scenario) -> dict[CaseKey, dict[str, float]]:
    """Measured figures of the scenario's suites: case → metric → value."""
    from cdnasim.validation.suites import load_suites, read_suite, validation_root

    if not scenario.measured:
        return {}
    known = load_suites(validation_root())
    found: dict[CaseKey, dict[str, float]] = {}
    for name in scenario.measured:
        if name not in known:
            allowed = ", ".join(known)
            raise InputError(
                f"{scenario.name}: measured suite '{name}' is unknown; allowed: {allowed}"
            )
        for m in read_suite(known[name]):
            case = check_case(m.machine, m.kernel, m.params)
            found.setdefault(case_key(case), {})[m.metric] = m.value
    return found


def case_key(case: GemmCase) -> CaseKey:
    """The identity of a case for look-up: machine, kernel, canonical params."""
    return case.machine.name, "gemm", tuple(sorted((k, str(v)) for k, v in case.params.items()))


def measured_of(
    cases: Sequence[GemmCase], found: Mapping[CaseKey, dict[str, float]]
) -> list[dict[str, float]]:
    """The measured figures of each case, empty where nothing is known."""
    return [found.get(case_key(case), {}) for case in cases]
