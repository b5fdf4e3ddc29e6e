"""Launches as measured figures: medians in the project's metrics, and the long-format CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from cdnasim.errors import InputError
from cdnasim.experiment.case import check_case
from cdnasim.machine.loader import load_machine
from cdnasim.machine.model import Machine
from cdnasim.trace.model import SIMDS
from cdnasim.validation.importers import ncu
from cdnasim.validation.importers.dispatch import Dispatch, kernel_names
from cdnasim.validation.measured import (
    COLUMNS,
    FRACTION,
    METRICS,
    Measurement,
    parse_params,
    refuse_duplicates,
)
from cdnasim.validation.table import shown

ACTIVE = "GRBM_GUI_ACTIVE"  # summed over XCDs
MATRIX_BUSY = "SQ_VALU_MFMA_BUSY_CYCLES"  # summed over SIMDs
L2_HITS, L2_MISSES = "TCC_HIT_sum", "TCC_MISS_sum"
_NOT_TEXT = ("params", "value")  # of COLUMNS
# Hits and look-ups are counted in different replays of a kernel, so a rate may come out above 1.
_MOST_HITS = 1.05
_NEEDED = (
    f"a kernel trace, {ACTIVE}, {MATRIX_BUSY}, {L2_HITS} with {L2_MISSES}; of ncu {ncu.TIME}, "
    f"{ncu.CYCLES}, {' with '.join(ncu.LOOKUPS[-1])} or {ncu.HIT_RATE}, {ncu.READ_BYTES}, "
    f"{ncu.WRITE_BYTES}"
)


def to_measured(
    dispatches: Sequence[Dispatch],
    *,
    suite: str,
    machine: str,
    kernel: str,
    params: Mapping[str, str | int],
    source: str,
    skip_first: int = 0,
) -> list[Measurement]:
    """One figure of the case for each metric that the launches tell, in the order of METRICS.

    Figures are medians over the launches but the first `skip_first`; those that come out as 0 are
    left out, as the format has none (only fractions may be 0).

    * time_us: durations without counters (ncu: under its replay); tflops: 2mnk over time_us.
    * cycles, clock_mhz: of rocprofv3 the active clocks of one XCD, over the duration of the same
      launch, which may differ from time_us as counters slow kernels down; of ncu the slowest SM's.
    * l2_hit: hits over look-ups, of requests (rocprofv3) or of sectors (ncu: of the
      SMs' reads if they were counted).
    * mfma_utilisation: busy clocks of the SIMDs' matrix pipes over all their clocks (rocprofv3).
    * hbm_read_bytes, hbm_write_bytes: of ncu only. rocprofv3 counts requests from L2 to the fabric
      but no misses of the last-level cache, so its bytes are not those of HBM.

    params: as on the command line. Raises InputError for a case that cannot be expressed, launches
    of different kernels, grids or GPUs, a GPU other than `machine`, fractions above 1, and launches
    that tell no figure.
    """
    check_case(machine, kernel, params)
    described = load_machine(machine)
    kept = _kept(dispatches, skip_first)
    for d in kept:
        _check_device(d, machine, described)
    medians = _medians(kept, described)
    sizes = [_size(params, key) for key in ("m", "n", "k")]
    if "time_us" in medians and all(sizes):
        medians["tflops"] = 2 * math.prod(sizes) / medians["time_us"] / 1e6
    rows = [
        Measurement(
            suite=_filled("suite", suite),
            machine=machine,
            kernel=kernel,
            params={key: str(value) for key, value in params.items()},
            metric=name,
            value=medians[name],
            unit=metric.unit,
            source=_filled("source", source),
            where=kept[0].where,
        )
        for name, metric in METRICS.items()
        if name in medians and (0 < medians[name] < math.inf or metric.unit == FRACTION)
    ]
    if not rows:
        raise InputError(f"{kept[0].where}: no figure can be made; it takes {_NEEDED}")
    return rows


def write_measured(path: Path, rows: Sequence[Measurement]) -> None:
    """Write the long-format CSV that `read_measured` reads, values to ten digits.

    Raises InputError for no row, a figure given twice, texts that the format cannot hold, and a
    path that cannot be written.
    """
    if not rows:
        raise InputError(f"{path}: there is no measured figure to write")
    refuse_duplicates(replace(m, where=f"{path}:{line}") for line, m in enumerate(rows, 2))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(m) for m in rows)
    try:
        path.write_bytes(text.getvalue().encode("utf-8"))
    except UnicodeEncodeError as error:
        bad = shown(error.object[error.start : error.end])
        raise InputError(f"{path}: {bad} cannot be written as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _cells(m: Measurement) -> list[str]:
    if parse_params(m.params_text, m.where) != m.params:
        raise InputError(f"{m.where}: params {shown(m.params_text)} must be key=value;key=value")
    texts = {name: _filled(name, getattr(m, name)) for name in COLUMNS if name not in _NOT_TEXT}
    cells = texts | {"params": m.params_text, "value": f"{m.value:.10g}"}
    return [cells[column] for column in COLUMNS]


def _filled(name: str, text: str) -> str:
    if not text.strip():
        raise InputError(f"{name} must be a text that is not empty")
    return text.strip()


def _kept(dispatches: Sequence[Dispatch], skip_first: int) -> Sequence[Dispatch]:
    if not dispatches:
        raise InputError("there is no launch to take figures from")
    if not 0 <= skip_first < len(dispatches):
        raise InputError(
            f"skip_first={skip_first} must be from 0 to {len(dispatches) - 1}: there are "
            f"{len(dispatches)} launches"
        )
    kept = dispatches[skip_first:]
    if len({d.kernel for d in kept}) > 1:
        raise InputError(
            f"{kept[0].where}: launches of several kernels; choose one by a pattern: "
            f"{kernel_names(kept)}"
        )
    _check_one("workgroups", {d.workgroups for d in kept}, kept[0].where)
    _check_one("workgroup sizes", {d.workgroup_size for d in kept}, kept[0].where)
    return kept


def _check_one(what: str, found: Iterable[int | None], where: str) -> None:
    known = sorted(value for value in found if value is not None)
    if len(known) > 1:
        listed = ", ".join(str(value) for value in known)
        raise InputError(
            f"{where}: launches of different {what} ({listed}); expected those of one case"
        )


def _check_device(d: Dispatch, name: str, machine: Machine) -> None:
    """The machine's XCDs and CUs go into figures, so they must be those of the GPU."""
    if d.device is None:
        return
    pairs = {
        "architecture": (d.device.arch, machine.arch),
        "XCDs": (d.device.xcds, machine.compute.xcds),
        "CUs": (d.device.cus, machine.cus),
    }
    for what, (had, described) in pairs.items():
        if had is not None and had != described:
            raise InputError(
                f"{d.where}: ran on a GPU with {what} {had!r}, but machine {name} has {described!r}"
            )


def _medians(dispatches: Sequence[Dispatch], machine: Machine) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for d in dispatches:
        for metric, value in _figures(d, machine).items():
            values[metric].append(_checked(d, metric, value))
    return {metric: median(found) for metric, found in values.items()}


def _figures(d: Dispatch, machine: Machine) -> dict[str, float]:
    """What one launch tells, by metric."""
    time = {} if d.duration_us is None else {"time_us": d.duration_us}
    return time | _clocks(d, machine) | _l2_hit(d) | _matrix_busy(d, machine) | _hbm(d)


def _clocks(d: Dispatch, machine: Machine) -> dict[str, float]:
    counters = d.counters
    found = {}
    active = d.counted(ACTIVE)
    if active is not None:
        cycles = active.counters[ACTIVE] / machine.compute.xcds
        duration_us = active.duration_us or d.duration_us
    elif ncu.CYCLES in counters:
        cycles, duration_us = counters[ncu.CYCLES], d.duration_us
    else:
        rates = [counters[rate] / 1e6 for rate in ncu.RATES if rate in counters]
        return {"clock_mhz": rates[0]} if rates else {}
    found["cycles"] = cycles
    if duration_us is not None:
        found["clock_mhz"] = cycles / duration_us
    return found


def _l2_hit(d: Dispatch) -> dict[str, float]:
    for hits, misses in ((L2_HITS, L2_MISSES), *ncu.LOOKUPS):
        counted = d.counted(hits, misses)
        if counted is not None:
            hit, miss = counted.counters[hits], counted.counters[misses]
            return {"l2_hit": hit / (hit + miss)} if hit + miss else {}
    rate = d.counters.get(ncu.HIT_RATE)
    if rate is None:
        return {}
    fraction = rate / 100
    return {"l2_hit": min(fraction, 1.0) if fraction <= _MOST_HITS else fraction}


def _matrix_busy(d: Dispatch, machine: Machine) -> dict[str, float]:
    counted = d.counted(MATRIX_BUSY, ACTIVE)
    if counted is None or not counted.counters[ACTIVE]:
        return {}
    clocks = counted.counters[ACTIVE] / machine.compute.xcds
    busy = counted.counters[MATRIX_BUSY]
    return {"mfma_utilisation": busy / (clocks * machine.cus * SIMDS)}


def _hbm(d: Dispatch) -> dict[str, float]:
    names = {"hbm_read_bytes": ncu.READ_BYTES, "hbm_write_bytes": ncu.WRITE_BYTES}
    return {metric: d.counters[n] for metric, n in names.items() if n in d.counters}


def _checked(d: Dispatch, metric: str, value: float) -> float:
    if METRICS[metric].unit == FRACTION and value > 1:
        raise InputError(
            f"{d.where}: {metric} is {value:.4g}, more than 1: the counters do not belong together "
            "or the GPU is not the machine given"
        )
    return value


def _size(params: Mapping[str, str | int], key: str) -> int:
    """A dimension; 0 if params do not give it."""
    text = str(params.get(key, ""))
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
