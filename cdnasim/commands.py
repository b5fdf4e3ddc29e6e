"""What the commands do between the library and the terminal: run, print, write reports."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdnasim.errors import InputError
from cdnasim.experiment.best_order import BASELINE, candidate_cases
from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.experiment.store import ResultStore
from cdnasim.experiment.sweep import run_cases
from cdnasim.terminal import print_table, progress_bar

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from cdnasim.experiment.scenario import Group, Scenario
    from cdnasim.gpu.result import Result
    from cdnasim.validation.calibrate import Calibration
    from cdnasim.validation.run import Report as Validation

HEAD_CHARS = 100_000  # in which a profiler's header stands, after what the application printed
MAX_GANTTS = 8  # kernels of a group that are drawn
MAX_SHOWN_TILES = 1_000_000
# heading, key of Result.summary(), factor, format
COLUMNS = (
    ("time us", "time_us", 1.0, ".1f"),
    ("TFLOPS", "tflops", 1.0, ".0f"),
    ("clock MHz", "clock_mhz", 1.0, ".0f"),
    ("L2 hit %", "l2_hit", 100.0, ".1f"),
    ("LLC hit %", "llc_hit", 100.0, ".1f"),
    ("HBM read GB", "hbm_read_bytes", 1e-9, ".2f"),
    ("MFMA busy %", "mfma_utilisation", 100.0, ".1f"),
)


def print_result(case: GemmCase, record: Mapping[str, Any]) -> None:
    """One simulated launch, for people."""
    params = " ".join(f"{key}={value}" for key, value in record["params"].items())
    rows = [
        ["time", f"{record['time_us']:.1f}", "us", "launch included"],
        ["rate", f"{record['tflops']:.0f}", "TFLOPS", "2·m·n·k over the time"],
        ["sustained clock", f"{record['clock_mhz']:.0f}", "MHz", "from the power model"],
        ["core clocks", f"{record['cycles']:.0f}", "clk", "first start to last end"],
        ["L2 read", f"{record['l2_read_bytes'] / 1e9:.2f}", "GB", "requests that reach the L2s"],
        ["L2 hit", f"{100 * record['l2_hit']:.1f}", "%", "slabs in flight count as hits"],
        ["LLC read", f"{record['llc_read_bytes'] / 1e9:.2f}", "GB", "L2 misses"],
        ["LLC hit", f"{100 * record['llc_hit']:.1f}", "%", f"{case.params['caches']} start"],
        ["HBM read", f"{record['hbm_read_bytes'] / 1e9:.2f}", "GB", ""],
        ["HBM write", f"{record['hbm_write_bytes'] / 1e9:.2f}", "GB", "C, once"],
        ["MFMA busy", f"{100 * record['mfma_utilisation']:.1f}", "%", "of all CUs' clocks"],
        ["occupancy", f"{100 * record['occupancy']:.1f}", "%", "CU slots with a workgroup"],
    ]
    rows.append(["k-step", f"{record['k_step_clk']:.0f}", "clk", "with loads that come in time"])
    for operand, clk in zip(
        case.profile().operands, record["load_latency_clk"].values(), strict=True
    ):
        text = f"on the mean; the schedule tolerates {operand.lead_clk:.0f}"
        rows.append([f"loads of {operand.name}", f"{clk:.0f}", "clk", text])
    for name, part in record["stalls"].items():
        rows.append([f"clocks: {name}", f"{100 * part:.1f}", "%", STALL_HELP[name]])
    if "lines" in record:
        lines = record["lines"]
        rows += [
            ["L2 hit, 128 B lines", f"{100 * lines['l2_hit']:.1f}", "%", "same requests, in order"],
            ["LLC hit, 128 B lines", f"{100 * lines['llc_hit']:.1f}", "%", ""],
            ["L2 channel imbalance", f"{lines['l2_channel_imbalance']:.2f}", "", "busiest / mean"],
        ]
    print_table(
        f"{record['machine']}: {record['kernel']} {params}", ("", "value", "unit", ""), rows
    )
    guesses = [p.key for p in case.machine.provenance if p.confidence == "assumed"]
    print(
        f"\nRests on {len(guesses)} assumed machine values: `cdnasim machine show "
        f"{case.machine.name}`. How wrong it was: `cdnasim validate`."
    )


STALL_HELP = {
    "hbm": "waiting for slabs still coming from HBM",
    "llc": "waiting for slabs coming from the LLC",
    "prologue_epilogue": "before the first and after the last k-step of each workgroup",
    "no_workgroup": "CU slots without a workgroup: start and last round",
    "loop_overhead": "k-step clocks in which the matrix pipe is idle",
    "busy": "matrix pipe busy",
}


def report_scenario(scenario: Scenario, out: Path, *, jobs: int, seed: int) -> Path:
    """Run a scenario's cases, print a table a group, write rows.csv and report.html into `out`."""
    from cdnasim.experiment.scenario import measured_for, measured_of

    found = measured_for(scenario)
    cases = [case for group in scenario.groups for case in group.cases]
    store = ResultStore(out / "cases")
    with progress_bar(scenario.name) as progress:
        results = iter(run_cases(cases, seed=seed, jobs=jobs, store=store, progress=progress))
    print(scenario.title)
    pages = []
    from cdnasim.experiment.explain import limit
    from cdnasim.plots.scenario_page import LaunchGroup, labels_of, scenario_report

    for group in scenario.groups:
        group_results = [next(results) for _ in group.cases]
        measured = measured_of(group.cases, found)
        labels, by = labels_of(group_results)
        _print_group(group.title, by, labels, [r.summary() for r in group_results], measured)
        kernels = _print_kernels(group, by, labels)
        limits = [limit(c, r) for c, r in zip(group.cases, group_results, strict=True)]
        print()
        for label, text in zip(labels, limits, strict=True):
            print(f"{label}: {text}.")
        pages.append(
            LaunchGroup(
                title=group.title,
                results=group_results,
                blocks=[case.launch().blocks for case in group.cases],
                tiles=[case.gemm.grid for case in group.cases],
                measured=measured,
                limits=limits,
                kernels=kernels,
                gantts=_gantts(group.cases, group_results),
            )
        )
    _write_rows(out / "rows.csv", [r for page in pages for r in page.results])
    return scenario_report(scenario.title, scenario.question, pages, out / "report.html")


def _print_kernels(group: Group, by: str, labels: Sequence[str]) -> list[list[str]]:
    """What the kernels of a group ask for, if they differ; a row a case, empty without a kernel."""
    from cdnasim.experiment.kernel_facts import HEADINGS, kernel_facts

    if len({case.kernel for case in group.cases}) == 1:
        return []
    rows = [kernel_facts(case) or [] for case in group.cases]
    shown = [[label, *row] for label, row in zip(labels, rows, strict=True) if row]
    if shown:
        print_table(f"{group.title}: the kernels", (by, *HEADINGS), shown)
    return rows


def _gantts(cases: Sequence[GemmCase], results: Sequence[Result]) -> list[Figure | None]:
    """The waves of a CU for each kernel of a group, at its first case."""
    from cdnasim.experiment.timeline import replay_with_latency
    from cdnasim.plots.gantt import cu_gantt

    figures: list[Figure | None] = []
    seen: set[object] = set()
    for case, result in zip(cases, results, strict=True):
        trace = None if case.kernel in seen or len(seen) == MAX_GANTTS else case.trace()
        figures.append(cu_gantt(trace, replay_with_latency(trace, result)) if trace else None)
        if trace:
            seen.add(case.kernel)
    return figures


def _print_group(
    title: str,
    label: str,
    labels: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, float]],
) -> None:
    headings, cells = [label], [[text] for text in labels]
    for heading, key, factor, form in COLUMNS:
        known = any(key in m for m in measured)
        headings += [heading, "measured"] if known else [heading]
        for row, record, m in zip(cells, records, measured, strict=True):
            row.append(f"{factor * record[key]:{form}}")
            if known:
                row.append(f"{factor * m[key]:{form}}" if key in m else "-")
    headings.append("largest stall")
    for row, record in zip(cells, records, strict=True):
        stalls = {k: v for k, v in record["stalls"].items() if k != "busy"}
        worst = max(stalls, key=lambda name: stalls[name])
        row.append(f"{worst} {100 * stalls[worst]:.1f} %")
    print_table(title, headings, cells)


def _write_rows(path: Path, results: Sequence[Result]) -> None:
    """The summaries as CSV, one row a case."""
    rows = []
    for result in results:
        record = result.summary()
        del record["wall_s"]  # the only thing that differs from run to run
        params, stalls = record.pop("params"), record.pop("stalls")
        latency = record.pop("load_latency_clk")
        record |= {f"load_latency_clk_{name}": clk for name, clk in latency.items()}
        rows.append({**record, **params, **{f"stall_{k}": v for k, v in stalls.items()}})
    write_text(path, _csv_text(rows))


def _csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write a file, its folder made if need be; raises InputError if that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


@dataclass(frozen=True)
class Ranking:
    """Candidate orders of one GEMM by predicted time; `report` is the page that shows them."""

    case: GemmCase
    records: list[dict[str, Any]]
    report: Path

    @property
    def baseline_us(self) -> float:
        """Time of the plain row-major order (us)."""
        return next(float(r["time_us"]) for r in self.records if r["params"]["order"] == BASELINE)

    def gain(self, record: Mapping[str, Any]) -> float:
        """How much faster than row-major (fraction)."""
        return float(self.baseline_us / record["time_us"]) - 1.0

    def to_json(self) -> dict[str, Any]:
        """What `best-order --json` prints."""
        ranking = [{**r, "gain_over_row_major": self.gain(r)} for r in self.records]
        return {"machine": self.case.machine.name, "best": ranking[0], "ranking": ranking}

    def print(self, top: int) -> None:
        """The best `top` orders and the baseline."""
        shown = self.records[:top]
        shown += [r for r in self.records[top:] if r["params"]["order"] == BASELINE]
        rows = []
        for record in shown:
            cells = [f"{factor * record[key]:{form}}" for _, key, factor, form in COLUMNS]
            gain = f"{100 * self.gain(record):+.1f}"
            rows.append(
                [str(self.records.index(record) + 1), record["params"]["order"], gain, *cells]
            )
        params = " ".join(f"{k}={v}" for k, v in self.case.params.items() if k != "order")
        title = f"{self.case.machine.name}: gemm {params}; {len(self.records)} orders"
        headings = ("rank", "order", "gain %", *(heading for heading, *_ in COLUMNS))
        print_table(title, headings, rows)
        best = self.records[0]["params"]["order"]
        print(f"\nUse order={best}: {100 * self.gain(self.records[0]):+.1f} % over row-major.")
        print(f"Report: {self.report}")


def rank_orders(case: GemmCase, out: Path, *, jobs: int, seed: int) -> Ranking:
    """Simulate `case` in all candidate orders; results and the report go into `out`."""
    from cdnasim.plots.figures import Row, gain_ranking, hit_rates_by_order, time_by_order
    from cdnasim.plots.report import Report

    candidates = candidate_cases(case)
    with progress_bar("best-order") as progress:
        results = run_cases(
            candidates, seed=seed, jobs=jobs, store=ResultStore(out / "cases"), progress=progress
        )
    records = [result.summary() for result in results]
    records.sort(key=lambda r: (r["time_us"], r["hbm_read_bytes"], r["llc_read_bytes"]))
    rows = [Row(r["params"]["order"], r, {}) for r in records]
    params = " ".join(f"{k}={v}" for k, v in case.params.items() if k != "order")
    page = Report(
        f"Grid orders of a GEMM on {case.machine.name}",
        f"{params}: {len(records)} orders by predicted time.",
        {"machine": case.machine.name, "case": f"cdnasim best-order gemm {params}"},
    )
    headings = ["rank", "order", *(heading for heading, *_ in COLUMNS)]
    cells = [
        [i, r["params"]["order"], *(factor * r[key] for _, key, factor, _ in COLUMNS)]
        for i, r in enumerate(records, 1)
    ]
    page.add_figure("Gain", gain_ranking(rows))
    page.add_figure("Time", time_by_order(rows[:20]))
    page.add_figure("Hit rates", hit_rates_by_order(rows[:20]))
    page.add_table("All orders", headings, cells)
    return Ranking(case, records, page.write(out / "report.html"))


def print_validation(report: Validation) -> None:
    """Predicted beside measured for every figure, then errors by suite and metric."""
    rows = []
    for case in report.to_json()["cases"]:
        predicted, error = case["predicted"], case["error"]
        is_fraction = case["unit"] == "fraction"
        rows.append(
            [
                case["suite"],
                case["machine"],
                _short(case["params"]),
                case["metric"],
                "-" if predicted is None else f"{predicted:.4g}",
                f"{case['measured']:.4g}",
                "-" if error is None else f"{100 * error:+.1f} {'pt' if is_fraction else '%'}",
                case["role"] if predicted is not None else case["reason"],
            ]
        )
    headings = ("suite", "machine", "case", "metric", "predicted", "measured", "error", "role")
    print_table("Predicted and measured", headings, rows)
    header, *summary = report.table()
    print_table("Errors by suite and metric", header, summary)


def import_rows(
    kernel: str,
    words: Sequence[str],
    out: Path,
    *,
    machine: str,
    suite: str,
    source: str,
    pattern: str | None,
    skip_first: int,
) -> None:
    """Write the measured rows of a profiler's files; `words` are the files and key=value."""
    from cdnasim.experiment.case import parse_params
    from cdnasim.validation.importers import read_ncu, read_rocprof, to_measured, write_measured

    paths = [Path(word) for word in words if "=" not in word]
    if not paths:
        raise InputError("import: needs a file or folder of rocprofv3, or an ncu --csv file")
    is_ncu = len(paths) == 1 and _is_ncu(paths[0])
    launches = read_ncu(paths[0], pattern) if is_ncu else read_rocprof(paths, pattern)
    rows = to_measured(
        launches,
        suite=suite,
        machine=machine,
        kernel=kernel,
        params=parse_params(word for word in words if "=" in word),
        source=source,
        skip_first=skip_first,
    )
    write_measured(out, rows)
    cells = [[m.metric, f"{m.value:.6g}", m.unit] for m in rows]
    print_table(f"{len(launches)} launches", ("metric", "median", "unit"), cells)
    print(f"\nRows: {out}; compare with: cdnasim validate --measured {out}")


def _is_ncu(path: Path) -> bool:
    """Whether a file has Nsight Compute's columns rather than rocprofv3's."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(HEAD_CHARS)
    except OSError:
        return False  # a folder, or what the reader will complain about
    return '"ID"' in head or "==PROF==" in head


def print_calibration(calibration: Calibration) -> None:
    """The fitted values beside the present ones, then the marked figures with either."""
    old = {p.key: p for p in calibration.source.provenance}
    new = {p.key: p.value for p in calibration.fitted.provenance}
    rows = [
        [
            key,
            f"{old[key].value:.4g}",
            f"{new[key]:.4g}",
            f"{100 * (new[key] / old[key].value - 1):+.1f} %",
            old[key].unit,
        ]
        for key in calibration.keys
    ]
    title = f"{calibration.source.name}: fitted values"
    print_table(title, ("key", "file", "fitted", "change", "unit"), rows)
    rows = []
    for before, after in zip(calibration.before, calibration.after, strict=True):
        m = before.measurement
        figures = [f"{x:.4g}" for x in (m.value, before.predicted or 0.0, after.predicted or 0.0)]
        errors = [
            f"{100 * (c.error or 0.0):+.1f} {'pt' if m.unit == 'fraction' else '%'}"
            for c in (before, after)
        ]
        rows.append([m.suite, m.machine, _short(m.params_text), m.metric, *figures, *errors])
    headings = ("suite", "machine", "case", "metric", "measured", "file", "fitted")
    print_table(
        "Calibration figures, predicted with the values of the file and the fitted ones",
        (*headings, "error, file", "error, fitted"),
        rows,
    )


USUAL = ("bf16", "pingpong8", "pipelined:s=4", "warm")  # not worth their room in a table


def _short(params: str) -> str:
    """Params without names, and without the usual dtype, schedule and caches."""
    pairs = dict(pair.split("=", 1) for pair in params.split(";"))
    shape = "x".join(pairs.pop(key, "?") for key in ("m", "n", "k"))
    return " ".join([shape, *(value for value in pairs.values() if value not in USUAL)])


def write_validation(report: Validation, out: Path) -> Path:
    """Write cases.csv, summary.json and report.html into `out`; returns the page's path."""
    from cdnasim.plots.figures import predicted_measured_scatter
    from cdnasim.plots.report import Report

    record = report.to_json()
    cases = [{"reason": "", **case} for case in record["cases"]]
    write_text(out / "cases.csv", _csv_text(cases))
    write_text(out / "summary.json", json.dumps(record["summary"], indent=1) + "\n")
    page = Report(
        "Predicted against measured",
        "Every measured figure of the suites with its prediction, misses included. Calibration "
        "figures were used to fit machine values, test figures were not.",
        {"command": "cdnasim validate"},
    )
    page.add_figure("Scatter", predicted_measured_scatter(cases))
    header, *rows = report.table()
    page.add_table("Errors by suite and metric", list(header), [list(row) for row in rows])
    columns = ["suite", "machine", "case", "metric", "predicted", "measured", "error %", "role"]
    by_error = sorted(cases, key=lambda c: -abs(c["error"] or 0.0))
    page.add_table(
        "All figures, largest error first",
        columns,
        [_figure_row(c) for c in by_error],
    )
    return page.write(out / "report.html")


def _figure_row(case: Mapping[str, Any]) -> list[str | float | None]:
    return [
        *(case["suite"], case["machine"], _short(case["params"]), case["metric"]),
        *(_number(case["predicted"]), _number(case["measured"])),
        *(_percent(case["error"]), case["role"]),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _percent(error: float | None) -> float | None:
    return None if error is None else 100.0 * error


def show_order(
    spec: str, params: Mapping[str, str], machine: str, round_: int, html: Path | None
) -> None:
    """Print the XCD of each tile that round `round_` computes; plot all rounds to `html`."""
    for key in params:
        if key not in ("m", "n", "tile"):
            raise InputError(f"order show: unknown parameter '{key}'; allowed: m, n, tile")
    depth = str(params.get("tile", "256x256x64")).rpartition("x")[2]
    case = check_case(machine, "gemm", {**params, "k": depth, "order": spec})
    rows, cols = case.gemm.grid
    if rows * cols > MAX_SHOWN_TILES:
        raise InputError(f"order show: {rows} x {cols} tiles; allowed: at most {MAX_SHOWN_TILES}")
    compute = case.machine.compute
    tiles = case.order.tiles(rows, cols, compute.xcds)
    ids = np.arange(len(tiles))
    xcd = ids % compute.xcds
    rounds = ids // compute.xcds // compute.cus_per_xcd
    if round_ > rounds[-1]:
        raise InputError(f"--round {round_}: the last round is {rounds[-1]}")
    here = np.full((rows, cols), "·")
    resident = rounds == round_
    here[tiles[resident, 0], tiles[resident, 1]] = (xcd[resident] % 10).astype(str)
    print(
        f"{case.order.spec} on {rows} x {cols} tiles, {case.machine.name}: "
        f"XCD of each tile in round {round_} of {rounds[-1] + 1}"
    )
    for line in here:
        print("".join(line))
    for x in range(compute.xcds):
        mine = tiles[resident & (xcd == x)]
        if len(mine):
            a, b = len(np.unique(mine[:, 0])), len(np.unique(mine[:, 1]))
            print(f"XCD {x}: {len(mine)} tiles of {a} row blocks of A and {b} column blocks of B")
    if html:
        from cdnasim.plots.launch_figures import xcd_map
        from cdnasim.plots.report import Report

        facts = {"machine": case.machine.name, "order": case.order.spec}
        page = Report(
            f"Grid order {case.order.spec}", f"{rows} x {cols} tiles in lock step.", facts
        )
        page.add_figure("XCD map", xcd_map(tiles, xcd, rounds, (rows, cols)))
        print(f"Report: {page.write(html)}")
