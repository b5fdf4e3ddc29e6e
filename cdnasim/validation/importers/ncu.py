"""CSV output of Nsight Compute: the raw page (a line per kernel) and details (one per metric)."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdnasim.errors import InputError
from cdnasim.validation.importers.dispatch import Agent, Dispatch, Pass, choose_kernels
from cdnasim.validation.table import Row, Table, read_table, shown

TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"
RATES = ("sm__cycles_elapsed.max.per_second", "sm__cycles_elapsed.avg.per_second")
HIT_RATE = "lts__t_sector_hit_rate.pct"
LOOKUPS = tuple(  # hits and misses, of the SMs' reads if counted, else of the SMs, else of all
    (f"lts__t_sectors_{which}lookup_hit.sum", f"lts__t_sectors_{which}lookup_miss.sum")
    for which in ("srcunit_tex_op_read_", "srcunit_tex_", "")
)
READ_BYTES, WRITE_BYTES = "dram__bytes_read.sum", "dram__bytes_write.sum"
SM_COUNT = "launch__sm_count"
HINT = "expected the output of ncu --csv --page raw, or --page details"
_NEEDED = ("ID", "Kernel Name")
_DETAILS = ("Metric Name", "Metric Unit", "Metric Value")
_LABELS = {  # what the sections of the details page call these metrics
    "Duration": TIME,
    "Elapsed Cycles": CYCLES,
    "SM Frequency": RATES[1],
    "L2 Hit Rate": HIT_RATE,
    "# SMs": SM_COUNT,
}
_ABSENT = ("", "n/a")  # of a metric that the device does not count
_NUMBER = re.compile(r"[+-]?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES = {"s": 1.0, "second": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9} | {
    "msecond": 1e-3,  # older releases spell them out
    "usecond": 1e-6,
    "nsecond": 1e-9,
}
_SIZES = {f"{prefix}byte": factor for prefix, factor in _PREFIXES.items()}
_RATES = {f"{prefix}hz": factor for prefix, factor in _PREFIXES.items()}
_SECTORS = {"sector": 1.0, "": 1.0}
_CYCLES_PER = {f"cycle/{unit}": 1 / factor for unit, factor in _TIMES.items()}
_UNITS = {  # of the metrics that figures are made of: the units allowed, each in base units
    TIME: _TIMES,
    CYCLES: {"cycle": 1.0},
    **dict.fromkeys(RATES, _RATES | _CYCLES_PER),
    HIT_RATE: {"%": 1.0},
    **{name: _SECTORS for pair in LOOKUPS for name in pair},
    SM_COUNT: {"sm": 1.0, "": 1.0},
    READ_BYTES: _SIZES,
    WRITE_BYTES: _SIZES,
}


@dataclass(frozen=True)
class _Cell:
    """One metric of one launch as the file gives it."""

    where: str
    metric: str
    unit: str
    text: str


def read_ncu(path: Path, kernel_pattern: str | None = None) -> list[Dispatch]:
    """The launches in Nsight Compute's CSV output, in order, with all metrics that are numbers.

    Lines before the header (of ncu and of the application) are skipped. Values are converted to
    bytes, seconds and hertz (also within rates); other units stay. The details page rounds to two
    digits and calls the metrics of sections by labels, of which those of time, cycles, clock and
    L2 hit rate are known. kernel_pattern: a regular expression that some part of a kernel's name
    matches; other kernels are left out.

    Raises InputError (file, line, what is expected) for damaged and foreign files.
    """
    table = read_table(Path(path), HINT, _needed, _from_header, may_lack_last=True)
    page = _details_page if _DETAILS[0] in table.columns else _raw_page
    return choose_kernels(page(table), kernel_pattern, str(path))


def _from_header(text: str) -> str:
    """The text with everything blank that is not of the table; the count of lines stays."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if _is_header(line)), 0)
    table = ["" if line.startswith("==") else line for line in lines[start:]]
    return "\n".join([""] * start + table)


def _is_header(line: str) -> bool:
    try:
        return "Kernel Name" in next(csv.reader([line]), [])
    except csv.Error:
        return False


def _needed(columns: Sequence[str]) -> Sequence[str]:
    """A line of details may end after its metric, where rules would follow; a raw one may not."""
    if any(column in columns for column in _DETAILS):
        return (*_NEEDED, *_DETAILS)
    return (*_NEEDED, columns[-1])


def _raw_page(table: Table) -> list[Dispatch]:
    metrics = [column for column in table.columns if "__" in column]
    if not metrics:
        raise InputError(f"{table.path}: the table has no column of a metric; {HINT}")
    units, *rows = table.rows
    if units.cells["ID"] or units.cells["Kernel Name"]:
        raise InputError(f"{units.where}: the line of units is missing below the header; {HINT}")
    if not rows:
        raise InputError(f"{units.where}: the table holds no kernel; {HINT}")
    seen: dict[tuple[str, str], str] = {}
    found = []
    for row in rows:
        first = seen.setdefault(_key(row), row.where)
        if first != row.where:
            raise InputError(
                f"{row.where}: kernel ID {row.cells['ID']} is already given at {first}"
            )
        cells = [_Cell(row.where, name, units.cells[name], row.cells[name]) for name in metrics]
        found.append(_dispatch(row, cells))
    return found


def _details_page(table: Table) -> list[Dispatch]:
    launches: dict[tuple[str, str], tuple[Row, list[_Cell]]] = {}
    for row in table.rows:
        first, cells = launches.setdefault(_key(row), (row, []))
        if row.text("Kernel Name") != first.cells["Kernel Name"]:
            raise InputError(
                f"{row.where}: kernel ID {row.cells['ID']} is {shown(row.cells['Kernel Name'])}, "
                f"but {shown(first.cells['Kernel Name'])} at {first.where}"
            )
        name, unit, text = (row.cells[column] for column in _DETAILS)
        if name:  # none on the line of a rule
            cells.append(_Cell(row.where, _LABELS.get(name, name), unit, text))
    return [_dispatch(row, cells) for row, cells in launches.values()]


def _key(row: Row) -> tuple[str, str]:
    return row.cells.get("Process ID", ""), str(row.whole("ID"))


def _dispatch(row: Row, cells: list[_Cell]) -> Dispatch:
    counters: dict[str, float] = {}
    for cell in cells:
        value = _value(cell)
        if value is None:
            continue
        if counters.setdefault(cell.metric, value) != value and cell.metric in _UNITS:
            raise InputError(f"{cell.where}: {cell.metric} is given twice with different values")
    seconds = counters.get(TIME)
    if seconds == 0:
        raise InputError(f"{row.where}: {TIME} is 0; expected a duration above 0")
    return Dispatch(
        kernel=row.text("Kernel Name"),
        dispatch_id=row.whole("ID"),
        where=row.where,
        agent=row.cells.get("Device", ""),
        device=_device(row, counters),
        duration_us=None if seconds is None else seconds * 1e6,
        workgroups=_volume(row, "Grid Size"),
        workgroup_size=_volume(row, "Block Size"),
        passes=(Pass(counters),),
    )


def _device(row: Row, counters: dict[str, float]) -> Agent:
    capability = row.cells.get("CC", "")  # compute capability, such as 9.0
    sms = counters.get(SM_COUNT)
    return Agent(
        arch=f"sm_{capability.replace('.', '')}" if capability else None,
        cus=None if sms is None else int(sms),
    )


def _volume(row: Row, column: str) -> int | None:
    """The product of a size such as (2, 66, 1)."""
    text = row.cells.get(column, "")
    if not text:
        return None
    if not re.fullmatch(r"\(?[0-9]{1,10}([, x]+[0-9]{1,10}){0,2}\)?", text):
        raise InputError(f"{row.where}: {column} {shown(text)} must read (x, y, z)")
    return math.prod(int(size) for size in re.findall("[0-9]+", text))


def _value(cell: _Cell) -> float | None:
    """The value in base units; None for texts, and for metrics that the device does not count."""
    number = _NUMBER.fullmatch(cell.text)
    value = float(cell.text.replace(",", "")) if number else math.nan
    if cell.metric not in _UNITS:
        return value * _factor(cell.unit) if math.isfinite(value) else None
    if cell.text in _ABSENT:
        return None
    allowed = _UNITS[cell.metric]
    if cell.unit.lower() not in allowed:
        units = ", ".join(unit or "none" for unit in allowed)
        raise InputError(
            f"{cell.where}: unit {shown(cell.unit)} is wrong for {cell.metric}; allowed: {units}"
        )
    value *= allowed[cell.unit.lower()]
    if not 0 <= value < math.inf:
        raise InputError(
            f"{cell.where}: {cell.metric} {shown(cell.text)} must be a finite number from 0, such "
            "as 1,234.5"
        )
    return value


def _factor(unit: str) -> float:
    """From any unit to base units, also of rates; 1 if it is unknown."""
    known = _TIMES | _SIZES | _RATES
    above, _, below = unit.lower().partition("/")
    return known.get(above, 1.0) / known.get(below, 1.0)
