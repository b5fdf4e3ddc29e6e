"""The page of a scenario: tables and figures of launches that are compared with each other."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cdnasim.experiment.kernel_facts import HEADINGS
from cdnasim.gpu.result import Result
from cdnasim.plots.figures import (
    Row,
    hit_rates_by_order,
    stall_breakdown,
    time_by_order,
    traffic_by_order,
)
from cdnasim.plots.launch_figures import hit_rate_over_time, rounds_of, xcd_map, xcds_per_block
from cdnasim.plots.report import Report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

DETAILED = 8  # results that get a section with their own figures
LABEL_CHARS = 60
# Columns of the summary table: metric, heading, factor from its unit to the heading's.
_SUMMARY = (
    ("time_us", "time (us)", 1.0),
    ("tflops", "TFLOPS", 1.0),
    ("clock_mhz", "clock (MHz)", 1.0),
    ("l2_hit", "L2 hit (%)", 100.0),
    ("llc_hit", "LLC hit (%)", 100.0),
    ("hbm_read_bytes", "HBM read (GB)", 1e-9),
)


@dataclass(frozen=True)
class LaunchGroup:
    """Launches to compare with each other, which differ in a key or two, such as the grid order.

    The sequences have an entry per result. blocks: the block of A and of B that each workgroup
    reads (`Launch.blocks`), shape (workgroups, 2). tiles: how many blocks A and B have
    (`Launch.block_counts`), which for a GEMM is the shape of the tile grid. measured: metric ->
    value in the unit of `Result.summary()`, empty if nothing is known. limits: what limits each.
    kernels: a row of `kernel_facts` each, or none at all. gantts: the waves of a CU, where shown.
    """

    title: str
    results: Sequence[Result]
    blocks: Sequence[NDArray[np.integer]]
    tiles: Sequence[tuple[int, int]]
    measured: Sequence[Mapping[str, float]]
    limits: Sequence[str] = ()
    kernels: Sequence[Sequence[str]] = ()
    gantts: Sequence[Figure | None] = ()


def scenario_report(
    title: str, question: str, groups: Sequence[LaunchGroup], path: Path | str
) -> Path:
    """Write the page of a scenario, a part per group; InputError if `path` cannot be written."""
    report = Report(title, question, _facts([r for group in groups for r in group.results]))
    for number, group in enumerate(groups):
        _add_group(report, group, is_open=number == 0)
    return report.write(path)


def _add_group(report: Report, group: LaunchGroup, *, is_open: bool) -> None:
    labels, by = labels_of(group.results)
    known = zip(labels, group.results, group.measured, strict=True)
    rows = [Row(label, result.summary(), measured) for label, result, measured in known]
    report.add_heading(group.title)
    _add_summary(report, rows, by)
    if group.limits:
        report.add_heading("What limits each")
        pairs = zip(labels, group.limits, strict=True)
        report.add_text("\n\n".join(f"{label}: {text}." for label, text in pairs))
    if any(group.kernels):
        facts = [[label, *row] for label, row in zip(labels, group.kernels, strict=True) if row]
        report.add_table("The kernels", (by, *HEADINGS), facts)
    report.add_figure("Time", time_by_order(rows, by))
    report.add_figure("Cache hit rates", hit_rates_by_order(rows, by))
    report.add_figure("Traffic", traffic_by_order(rows, by))
    report.add_figure("Stalls", stall_breakdown(rows, by))
    for label, gantt in zip(labels, group.gantts, strict=False):
        if gantt:
            with report.details(f"The waves of a CU over two k-steps, {by}: {label}"):
                report.add_figure("Waves of a CU", gantt)
    details = list(zip(labels, group.results, group.blocks, group.tiles, strict=True))[:DETAILED]
    cut = f"; the first {DETAILED} of {len(labels)}" if len(labels) > DETAILED else ""
    report.add_heading(f"{group.title}: launch by launch{cut}")
    for number, (label, result, block, counts) in enumerate(details):
        xcd = result.log.xcd
        with report.details(f"{by}: {label}", is_open=is_open and number == 0):
            if len(block) == counts[0] * counts[1]:  # a workgroup for each pair of blocks
                report.add_figure("XCD map", xcd_map(block, xcd, rounds_of(result.log), counts))
            report.add_figure("Operand blocks", xcds_per_block(block, xcd, counts))
            report.add_figure("Over time", hit_rate_over_time(result))


def labels_of(results: Sequence[Result]) -> tuple[list[str], str]:
    """A unique label for each result from what differs between them, and the name of that."""
    facts = [{"machine": r.machine, "kernel": r.kernel, **r.params} for r in results]
    keys = list(dict.fromkeys(key for fact in facts for key in fact))
    keys = [key for key in keys if len({str(fact.get(key)) for fact in facts}) > 1]
    keys.sort(key=lambda key: key != "schedule")  # what a reader looks for first
    keys = keys or ["order" if all("order" in fact for fact in facts) else "kernel"]
    labels: list[str] = []
    for fact in facts:
        texts = [str(fact.get(key, "-")) for key in keys]
        # A bare number needs its key, other values speak for themselves.
        pairs = zip(keys, texts, strict=True)
        named = [f"{key}={text}" if text.isdigit() else text for key, text in pairs]
        label = texts[0] if len(keys) == 1 else ", ".join(named)
        if len(label) > LABEL_CHARS:
            half = LABEL_CHARS // 2 - 1
            label = f"{label[:half]}…{label[-half:]}"
        base, copy = label, 1
        while label in labels:
            copy += 1
            label = f"{base} ({copy})"
        labels.append(label)
    return labels, ", ".join(keys)


def _facts(results: Sequence[Result]) -> dict[str, str]:
    """The footer: machines, and the command that makes each result."""
    commands = [
        shlex.join(
            ["cdnasim", "simulate", r.kernel]
            + [f"{key}={value}" for key, value in r.params.items()]
            + ["--machine", r.machine]
        )
        for r in results
    ]
    numbers = "simulated by the chip model; measured values are marked as such"
    facts = {"machine": ", ".join(dict.fromkeys(r.machine for r in results)), "numbers": numbers}
    return facts | {f"case {i}": command for i, command in enumerate(commands, start=1)}


def _add_summary(report: Report, rows: Sequence[Row], by: str) -> None:
    columns = [by]
    cells: list[list[str | float | None]] = [[row.label for row in rows]]
    for metric, heading, factor in _SUMMARY:
        columns.append(heading)
        cells.append([factor * row.summary[metric] for row in rows])
        if any(metric in row.measured for row in rows):
            columns.append(f"measured {heading}")
            known = [row.measured.get(metric) for row in rows]
            cells.append([None if value is None else factor * value for value in known])
    columns.append("largest stall")
    cells.append([_largest_stall(row) for row in rows])
    report.add_table("Summary", columns, list(zip(*cells, strict=True)))


def _largest_stall(row: Row) -> str:
    stalls = {name: part for name, part in row.summary["stalls"].items() if name != "busy"}
    if not stalls:
        return "–"
    name = max(stalls, key=lambda name: stalls[name])
    return f"{name} ({100 * stalls[name]:.1f} %)"
