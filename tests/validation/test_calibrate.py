"""The fit: it finds values that made the figures, uses marked figures only, and writes them."""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from cdnasim import cli
from cdnasim.errors import InputError
from cdnasim.experiment.case import run_case
from cdnasim.machine.loader import load_machine
from cdnasim.machine.model import Machine
from cdnasim.validation.calibrate import (
    SEEDS,
    Calibration,
    Vector,
    calibrate,
    check_new_file,
    least_squares,
    load_plans,
    machine_toml,
    write_machine,
)
from cdnasim.validation.suites import load_suites, read_suite, validation_root

# 132 workgroups of 16 k-steps (cold starts tell) and of 64 (the power limit tells).
SHORT = {"m": "1408", "n": "3072", "k": "1024", "tile": "128x256x64", "caches": "cold"}
LONG = {**SHORT, "k": "4096"}
KEYS = ("power.matrix_w", "dispatch.cold_start_clk")
MARKS = [("h200", SHORT, "cycles"), ("h200", LONG, "tflops")]
UNITS = {"cycles": "clk", "tflops": "TFLOPS", "time_us": "us", "hbm_read_bytes": "B"}
Figure = tuple[str, Mapping[str, str], str, float]  # machine, params, metric, value


def text(params: Mapping[str, str]) -> str:
    return ";".join(f"{key}={value}" for key, value in params.items())


def make_root(
    folder: Path, plan: str, marked: Sequence[Figure], tests: Sequence[Figure] = ()
) -> Path:
    """A validation folder with one suite `s`, whose `marked` figures are for calibration."""
    marks = [
        f'{{machine = "{machine}", params = "{text(params)}", metrics = ["{metric}"]}}'
        for machine, params, metric, _ in marked
    ]
    texts = 'title = "t"\nquestion = "q"\nnotes = "n"\nfiles = ["s.csv"]\n'
    suites = f"[s]\n{texts}calibration = [{', '.join(marks)}]\n"
    rows = [
        f"s,{machine},gemm,{text(params)},{metric},{value!r},{UNITS[metric]},made"
        for machine, params, metric, value in (*marked, *tests)
    ]
    header = "suite,machine,kernel,params,metric,value,unit,source"
    folder.mkdir(exist_ok=True)
    (folder / "suites.toml").write_text(suites, encoding="utf-8")
    (folder / "calibration.toml").write_text(plan, encoding="utf-8")
    (folder / "s.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    return folder


def plan(machine: str, values: Sequence[str], shared: Sequence[str] = ()) -> str:
    lists = f"values = {json.dumps(values)}\nshared_with = {json.dumps(shared)}"
    return f'[{machine}]\n{lists}\nsuites = ["s"]\n'


def predicted(machine: str, params: Mapping[str, str], metric: str) -> float:
    return float(
        np.mean([run_case(machine, "gemm", params, seed=s).summary()[metric] for s in SEEDS])
    )


def value(machine: Machine, key: str) -> float:
    section, field = key.split(".")
    return float(getattr(getattr(machine, section), field))


def moved(name: str, factors: Mapping[str, float], path: Path) -> Path:
    """The machine `name` with some values multiplied, as a file."""
    machine = load_machine(name)
    provenance = tuple(
        dataclasses.replace(p, value=p.value * factors.get(p.key, 1)) for p in machine.provenance
    )
    write_machine(dataclasses.replace(machine, provenance=provenance), path)
    return path


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Figures that the H200 as described would give, and a machine with two values off."""
    folder = tmp_path_factory.mktemp("synthetic")
    marked = [(m, p, metric, predicted(m, p, metric)) for m, p, metric in MARKS]
    start = moved("h200", dict(zip(KEYS, (1.25, 0.7), strict=True)), folder / "start.toml")
    return make_root(folder, plan("h200", KEYS), marked), start


@pytest.fixture(scope="module")
def fit(synthetic: tuple[Path, Path]) -> Calibration:
    root, start = synthetic
    ran: list[tuple[int, int]] = []
    found = calibrate(str(start), root=root, progress=lambda done, all_: ran.append((done, all_)))
    assert [done for done, _ in ran] == list(range(1, len(ran) + 1))
    assert all(done <= started for done, started in ran)
    return found


def test_the_fit_recovers_the_values_that_made_the_figures(fit: Calibration) -> None:
    truth = load_machine("h200")
    for key in KEYS:
        assert value(fit.source, key) != pytest.approx(value(truth, key), rel=0.15)
        assert value(fit.fitted, key) == pytest.approx(value(truth, key), rel=0.03), key
    assert all(abs(c.error or 0) > 0.05 for c in fit.before)
    assert all(abs(c.error or 0) < 0.01 for c in fit.after)
    others = {p.key for p in truth.provenance} - set(KEYS)
    assert {k: value(fit.fitted, k) for k in others} == {k: value(truth, k) for k in others}


def test_figures_that_are_not_marked_change_nothing_and_processes_neither(
    synthetic: tuple[Path, Path], fit: Calibration, tmp_path: Path
) -> None:
    root, start = synthetic
    marked = [(m.machine, m.params, m.metric, m.value) for m in read_suite(load_suites(root)["s"])]
    wild = [("h200", SHORT, "tflops", 1.0), ("h200", {**LONG, "order": "col-major"}, "cycles", 9.0)]
    other = make_root(tmp_path / "wild", plan("h200", KEYS), marked, wild)
    again = calibrate(str(start), root=other, jobs=2)
    assert again.fitted == fit.fitted
    assert [c.predicted for c in again.after] == [c.predicted for c in fit.after]
    assert len(again.after) == len(marked)


def test_the_values_hold_for_the_machines_that_share_them(tmp_path: Path) -> None:
    """The MI350X keeps its own clock and power limit, but has the launch cost of the MI355X."""
    small = {"m": "256", "n": "256", "k": "256"}
    marked = [
        (name, small, "time_us", 2 * predicted(name, small, "time_us"))
        for name in ("mi355x", "mi350x")
    ]
    root = make_root(tmp_path, plan("mi355x", ["dispatch.launch_us"], ["mi350x"]), marked)
    fit = calibrate("mi355x", root=root)
    key = "dispatch.launch_us"
    factor = value(fit.fitted, key) / value(load_machine("mi350x"), key)
    assert factor > 1.1
    fitted = moved("mi350x", {key: factor}, tmp_path / "m.toml")
    assert [c.measurement.machine for c in fit.after] == ["mi355x", "mi350x"]
    again = predicted(str(fitted), small, "time_us")
    assert fit.after[1].predicted == pytest.approx(again, rel=1e-6)
    assert fit.after[0].predicted != fit.after[1].predicted


def test_the_written_machine_is_the_fitted_one(fit: Calibration, tmp_path: Path) -> None:
    write_machine(fit.fitted, tmp_path / "deep" / "fitted.toml")
    again = load_machine(str(tmp_path / "deep" / "fitted.toml"))
    assert again == fit.fitted and again.provenance == fit.fitted.provenance
    entries = {p.key: p for p in again.provenance}
    for key in KEYS:
        assert entries[key].value == value(again, key)
        assert entries[key].confidence == "calibrated"
        assert "s h200 1408x3072x4096" in entries[key].source


@pytest.mark.parametrize("name", ["h200", "mi300x", "mi325x", "mi350x", "mi355x"])
def test_every_machine_survives_the_round_trip(name: str, tmp_path: Path) -> None:
    machine = load_machine(name)
    write_machine(machine, tmp_path / "m.toml")
    again = load_machine(str(tmp_path / "m.toml"))
    assert again == machine and again.provenance == machine.provenance


def test_odd_texts_survive_the_round_trip(tmp_path: Path) -> None:
    odd = 'quote " backslash \\ line\nbreak tab\t del \x7f control \x01 · µ 𝄞'
    machine = load_machine("h200")
    provenance = tuple(dataclasses.replace(p, note=odd) for p in machine.provenance)
    machine = dataclasses.replace(machine, description=odd, provenance=provenance)
    (tmp_path / "m.toml").write_text(machine_toml(machine), encoding="utf-8")
    again = load_machine(str(tmp_path / "m.toml"))
    assert again.description == odd and again.provenance == provenance


def test_a_file_that_exists_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.toml: exists already"):
        write_machine(load_machine("h200"), path)
    with pytest.raises(InputError, match=r"must end in \.toml"):
        check_new_file(tmp_path / "machine.txt")
    monkeypatch.setattr(sys, "argv", ["cdnasim", "calibrate", "h200", "--out", str(path)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2 and "exists already" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"


def test_machines_without_a_plan_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="machine 'h100' is unknown"):
        calibrate("h100")
    with pytest.raises(InputError, match="no calibration of 'mi300x'; allowed: h200, mi355x"):
        calibrate("mi300x")
    marked = [("h200", SHORT, "cycles", 1e6)]
    root = make_root(tmp_path, plan("mi355x", ["dispatch.launch_us"]), marked)
    with pytest.raises(InputError, match=r"\[mi355x\]: its suites mark no calibration figure"):
        calibrate("mi355x", root=root)


def test_what_cannot_be_fitted_or_run_is_refused(tmp_path: Path) -> None:
    marked = [("h200", SHORT, "cycles", 1e6)]
    root = make_root(tmp_path / "a", plan("h200", ["llc.read_tbs"]), marked)
    with pytest.raises(InputError, match=r"h200: llc\.read_tbs is 0 and cannot be fitted"):
        calibrate("h200", root=root)
    root = make_root(tmp_path / "b", plan("h200", KEYS), [("h200", {"m": "1"}, "cycles", 1e6)])
    with pytest.raises(InputError, match=r"s\.csv:2: gemm: parameter 'n' is missing"):
        calibrate("h200", root=root)
    cached = {"m": "256", "n": "256", "k": "256"}  # all of it is in a warm LLC
    marked = [("mi355x", cached, "hbm_read_bytes", 1e6)]
    root = make_root(tmp_path / "c", plan("mi355x", ["dispatch.launch_us"]), marked)
    with pytest.raises(InputError, match=r"s\.csv:2: hbm_read_bytes is predicted as 0"):
        calibrate("mi355x", root=root)


BAD = {
    "[h200": "is not valid TOML",
    "h200 = 1": "[h200]: must be a table",
    '[h200]\nvalues = ["hbm.stream_tbs"]\nshared_with = []': "key 'suites' is missing",
    plan("h200", ["hbm.tbs"]): "values: 'hbm.tbs' is unknown; allowed: compute.clock_max_ghz",
    plan("h200", ["l2.bytes"]): "values: 'l2.bytes' is unknown",
    plan("h200", []): "values: must name at least one",
    plan("h200", [KEYS[0], KEYS[0]]): "values: names one twice",
    plan("h200", KEYS, ["h100"]): "shared_with: 'h100' is unknown; allowed: h200",
    plan("h200", KEYS).replace('["s"]', '["t"]'): "suites: 't' is unknown; allowed: s",
    plan("h200", KEYS).replace('["s"]', '"s"'): "suites: must be a list",
    plan("h200", KEYS).replace('["s"]', '[["s"]]'): "suites: ['s'] is unknown",
}


@pytest.mark.parametrize("content", BAD)
def test_a_bad_calibration_file_is_refused_with_one_line(tmp_path: Path, content: str) -> None:
    root = make_root(tmp_path, content, [("h200", SHORT, "cycles", 1e6)])
    with pytest.raises(InputError) as caught:
        load_plans(root)
    message = str(caught.value)
    assert message.startswith(f"{root / 'calibration.toml'}: ") and BAD[content] in message
    assert len(message.splitlines()) == 1


def test_the_shipped_plans_fit_what_the_machines_call_calibrated() -> None:
    plans = load_plans(validation_root())
    assert plans.keys() == {"h200", "mi355x"}
    for name, described in plans.items():
        confidence = {p.key: p.confidence for p in load_machine(name).provenance}
        assert {confidence[key] for key in described.values} == {"calibrated"}


def batch(points: Sequence[Vector]) -> list[Vector]:
    """Zero at (1, -2); the third coordinate matters only through its own small weight."""
    return [
        np.array([np.exp(x) - np.exp(1), np.exp(x + y) - np.exp(-1), 0.05 * z])
        for x, y, z in points
    ]


def test_least_squares_finds_the_minimum_and_leaves_free_directions_alone() -> None:
    found = least_squares(batch, np.zeros(3))
    assert found == pytest.approx([1, -2, 0], abs=0.02)


def test_least_squares_never_ends_worse_than_it_began() -> None:
    """Even where noise hides the slope."""

    def noisy(points: Sequence[Vector]) -> list[Vector]:
        return [np.sin(1e4 * (1 + point)) + 2 for point in points]

    for start in np.linspace(0, 1, 7):
        end = least_squares(noisy, np.array([start]))
        (before,), (after,) = noisy([np.array([start])]), noisy([end])
        assert after @ after <= before @ before
