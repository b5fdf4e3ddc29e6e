"""Running the cases of measured figures, with a stand-in for the simulator."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from cdnasim.errors import InputError
from cdnasim.gpu.result import Result, TimeSeries, Traffic, WorkgroupLog
from cdnasim.validation.run import Report, validate

HEADER = "suite,machine,kernel,params,metric,value,unit,source"
BASE = "m=64;order=row-major"
WINDOW = "m=64;order=window:w=2"
ROWS = [
    f"s,h200,gemm,{BASE},tflops,50,TFLOPS,x",
    f"s,h200,gemm,{BASE},time_us,8,us,x",
    f"s,h200,gemm,{BASE},l2_hit,0.5,fraction,x",
    f"s,h200,gemm,{WINDOW},tflops,80,TFLOPS,x",
    "t,h200,gemm,m=65;order=row-major,tflops,1,TFLOPS,x",
]
SUITES = """
[s]
title = "t"
question = "q"
notes = "n"
files = ["s.csv"]
calibration = [{ machine = "h200", params = "order=row-major", metrics = ["tflops"] }]
[t]
title = "t"
question = "q"
notes = "n"
files = ["t.csv"]
calibration = []
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "suites.toml").write_text(SUITES, encoding="utf-8")
    for suite in "st":
        lines = [HEADER, *(row for row in ROWS if row.startswith(suite))]
        (tmp_path / f"{suite}.csv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def fake(machine: str, kernel: str, params: Mapping[str, str]) -> Result:
    """Tiles must divide by 64; row-major gets 60 TFLOPS, any other order 66."""
    if int(params["m"]) % 64:
        raise InputError(f"m={params['m']} must be a multiple of 64")
    none, ints = np.zeros(0), np.zeros(0, dtype=np.int64)
    slots = np.zeros(0, dtype=np.int32)
    return Result(
        machine=machine,
        kernel=kernel,
        params=dict(params),
        time_us=10.0,
        tflops=60.0 if params.get("order") == "row-major" else 66.0,
        clock_mhz=1000.0,
        cycles=10_000.0,
        traffic=Traffic(100, 100, 75, 0, 25, 5, 20, 7),
        mfma_utilisation=0.5,
        occupancy=1.0,
        stalls={},
        k_step_clk=100.0,
        load_latency_clk={},
        series=TimeSeries(none, ints, ints, ints, ints, ints, none),
        log=WorkgroupLog(slots, slots, none, none, none, none),
    )


def broken(machine: str, kernel: str, params: Mapping[str, str]) -> Result:
    raise ZeroDivisionError("a fault of the model")


def by_figure(report: Report) -> dict[tuple[str, str], dict[str, object]]:
    cases = report.to_json()["cases"]
    return {(case["params"], case["metric"]): case for case in cases}


def test_predictions_come_beside_measurements(root: Path) -> None:
    cases = by_figure(validate(root=root, runner=fake))
    assert cases[BASE, "tflops"] == {
        "suite": "s",
        "machine": "h200",
        "kernel": "gemm",
        "params": BASE,
        "metric": "tflops",
        "predicted": 60.0,
        "measured": 50.0,
        "unit": "TFLOPS",
        "error": pytest.approx(0.2),
        "role": "calibration",
    }
    assert cases[BASE, "time_us"]["error"] == pytest.approx(0.25)
    assert cases[BASE, "l2_hit"]["error"] == pytest.approx(0.25)  # 0.75 against 0.5: points
    assert {cases[BASE, "time_us"]["role"], cases[WINDOW, "tflops"]["role"]} == {"test"}


def test_a_case_that_cannot_be_expressed_has_no_prediction_but_a_reason(root: Path) -> None:
    case = by_figure(validate(["t"], root=root, runner=fake))["m=65;order=row-major", "tflops"]
    assert case["predicted"] is None and case["error"] is None
    assert case["reason"] == "m=65 must be a multiple of 64"


def test_each_distinct_case_runs_once_and_progress_counts_them(root: Path) -> None:
    ran: list[tuple[str, str]] = []
    seen: list[tuple[int, int]] = []

    def runner(machine: str, kernel: str, params: Mapping[str, str]) -> Result:
        ran.append((params["m"], params["order"]))
        return fake(machine, kernel, params)

    validate(root=root, runner=runner, progress=lambda done, total: seen.append((done, total)))
    assert sorted(ran) == [("64", "row-major"), ("64", "window:w=2"), ("65", "row-major")]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_processes_give_the_same_report(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    pooled = validate(
        root=root, runner=fake, jobs=2, progress=lambda done, total: seen.append((done, total))
    )
    assert pooled.to_json() == validate(root=root, runner=fake).to_json()
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_faults_of_the_model_are_not_hidden(root: Path, jobs: int) -> None:
    with pytest.raises(ZeroDivisionError, match="a fault of the model"):
        validate(root=root, runner=broken, jobs=jobs)


def test_suites_are_chosen_by_name_once_each(root: Path) -> None:
    report = validate(["t", "t"], root=root, runner=fake)
    assert [c.measurement.suite for c in report.cases] == ["t"]
    with pytest.raises(InputError, match="suite 'u' is unknown; allowed: s, t"):
        validate(["u"], root=root, runner=fake)
    with pytest.raises(InputError, match="jobs must be 1 or more, got 0"):
        validate(root=root, runner=fake, jobs=0)


def test_a_file_of_the_user_replaces_the_suites_files(root: Path) -> None:
    mine = root / "mine.csv"
    rows = [f"s,h200,gemm,{BASE},tflops,120,TFLOPS,x", f"new,h200,gemm,{BASE},tflops,60,TFLOPS,x"]
    mine.write_text("\n".join([HEADER, *rows]), encoding="utf-8")
    report = validate(measured_file=mine, root=root, runner=fake)
    # A figure of a known suite keeps its role; another suite has no calibration figures.
    assert [(c.measurement.suite, c.error, c.role) for c in report.cases] == [
        ("s", -0.5, "calibration"),
        ("new", 0.0, "test"),
    ]
    report = validate(["new"], mine, root=root, runner=fake)
    assert [c.measurement.suite for c in report.cases] == ["new"]
    with pytest.raises(InputError, match=r"mine\.csv: suite 't' is unknown; allowed: s, new"):
        validate(["t"], mine, root=root, runner=fake)


def test_the_report_is_strict_json_with_a_summary_for_each_suite_metric_and_role(
    root: Path,
) -> None:
    report = validate(root=root, runner=fake)
    again = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert list(again) == ["cases", "summary"]
    summary = {(row["suite"], row["metric"], row["role"]): row for row in again["summary"]}
    assert list(summary) == [
        ("s", "l2_hit", "all"),
        ("s", "l2_hit", "test"),
        ("s", "tflops", "all"),
        ("s", "tflops", "calibration"),
        ("s", "tflops", "test"),
        ("s", "time_us", "all"),
        ("s", "time_us", "test"),
        ("t", "tflops", "all"),
        ("t", "tflops", "test"),
    ]
    row = summary["s", "tflops", "all"]
    assert (row["n"], row["best_picked"], row["choices"]) == (2, 1, 1)
    (judged,) = row["groups"]
    assert judged["gain_measured"] == pytest.approx(0.6)
    assert judged["gain_predicted"] == pytest.approx(0.1)
    assert summary["t", "tflops", "all"]["not_predicted"] == 1


def test_the_table_has_a_line_of_texts_for_each_summary(root: Path) -> None:
    report = validate(root=root, runner=fake)
    header, *lines = report.table()
    assert len(lines) == len(report.summary)
    assert {len(line) for line in lines} == {len(header)}
    table = {line[:3]: dict(zip(header, line, strict=True)) for line in lines}
    assert table["s", "l2_hit", "all"]["mean error"] == "25.0 pt"
    assert table["s", "tflops", "calibration"]["worst error"] == "+20.0 %"
    assert table["s", "tflops", "all"]["best picked"] == "1 of 1"
    assert table["t", "tflops", "all"]["n"] == "0 of 1"
    assert table["t", "tflops", "all"]["mean error"] == "-"


def test_the_shipped_suites_run_whole() -> None:
    """Every figure of the project's own suites can be paired with a prediction."""

    def runner(machine: str, kernel: str, params: Mapping[str, str]) -> Result:
        return fake(machine, kernel, {**params, "m": "64"})

    report = validate(runner=runner)
    assert all(c.predicted is not None for c in report.cases)
    h200 = next(s for s in report.summary if (s.suite, s.metric) == ("h200_grid_order", "tflops"))
    assert [g.orders for g in h200.groups] == [7, 7, 7, 7]
