"""CSV files of rocprofv3: kernel traces, counters of one or more passes, and the agents."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from cdnasim.errors import InputError
from cdnasim.validation.importers.dispatch import Agent, Dispatch, Pass, choose_kernels
from cdnasim.validation.table import Row, Table, read_table, shown

TRACE, COUNTERS, AGENTS = KINDS = ("kernel_trace", "counter_collection", "agent_info")
NEEDED = {
    TRACE: ("Kernel_Name", "Dispatch_Id", "Start_Timestamp", "End_Timestamp"),
    COUNTERS: ("Kernel_Name", "Dispatch_Id", "Counter_Name", "Counter_Value"),
    AGENTS: ("Node_Id", "Agent_Type"),
}
TELLING = {  # any of these columns tells the kind; the first that fits
    COUNTERS: ("Counter_Name", "Counter_Value"),
    AGENTS: ("Node_Id", "Agent_Type"),
    TRACE: ("Kernel_Name",),
}
HINT = "expected a kernel_trace, counter_collection or agent_info CSV of rocprofv3 (option -f csv)"
_AXES = ("X", "Y", "Z")
_SIMDS_PER_CU = 4


@dataclass(frozen=True)
class _Run:
    """The launches in one file, in order."""

    path: Path
    launches: list[Dispatch]


def read_rocprof(
    folder_or_files: Sequence[Path], kernel_pattern: str | None = None
) -> list[Dispatch]:
    """The launches that rocprofv3 recorded, in order, with durations and counters.

    Files in a folder (and those below) are found by their names, files given one by one are told by
    their headers. kernel_pattern: a regular expression that some part of a kernel's name matches;
    other kernels are left out. Every file of counters is one pass, a run of its own: launches are
    matched by their order and kernel name. Durations come from a kernel trace without counters
    beside it; failing that, from the first pass's trace.

    Raises InputError (file, line, what is expected) for damaged and foreign files, several traces
    without counters, and files that do not have the same launches.
    """
    paths = [file for given in folder_or_files for file in _files(Path(given))]
    if not paths:
        raise InputError(f"no file is given; {HINT}")
    tables: dict[str, list[Table]] = {kind: [] for kind in KINDS}
    for path in dict.fromkeys(paths):
        table = _table(path)
        tables[_kind(table.columns)].append(table)
    traces = [_run(t, _trace_launches(t)) for t in tables[TRACE]]
    passes = [_run(t, _counted_launches(t)) for t in tables[COUNTERS]]
    trace = _timing(traces, passes)
    runs = ([trace] if trace else []) + passes
    if not runs:
        raise InputError(f"{paths[0]}: neither a kernel trace nor counters are given; {HINT}")
    runs = [_Run(r.path, choose_kernels(r.launches, kernel_pattern, str(r.path))) for r in runs]
    devices = _devices(tables[AGENTS])
    return [replace(d, device=_device(devices, d.agent)) for d in _merged(runs)]


def _files(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    found = [p for p in given.rglob("*.csv") if p.is_file() and p.stem.endswith(KINDS)]
    if not any(p.stem.endswith((TRACE, COUNTERS)) for p in found):
        raise InputError(
            f"{given}: holds no *_{TRACE}.csv or *_{COUNTERS}.csv; rocprofv3 writes them with "
            "-f csv"
        )
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts pass_2 before pass_10."""
    parts = re.split("([0-9]+)", str(path))
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)]


def _table(path: Path) -> Table:
    named = next((kind for kind in KINDS if path.stem.endswith(kind)), None)

    def needed(columns: Sequence[str]) -> Sequence[str]:
        kind = _kind(columns)
        if not kind and not named:
            have = shown(",".join(columns))
            raise InputError(f"{path}:1: the header is {have}; {HINT}")
        return NEEDED[kind or str(named)]

    return read_table(path, HINT, needed)


def _kind(columns: Sequence[str]) -> str:
    """Which file has such a header; empty if none has."""
    for kind, telling in TELLING.items():
        if any(column in columns for column in telling):
            return kind
    return ""


def _run(table: Table, launches: Iterable[Dispatch]) -> _Run:
    return _Run(table.path, sorted(launches, key=lambda d: d.dispatch_id))


def _trace_launches(table: Table) -> list[Dispatch]:
    seen: dict[int, str] = {}
    found = []
    for row in table.rows:
        launch = _launch(row)
        first = seen.setdefault(launch.dispatch_id, row.where)
        if first != row.where:
            raise InputError(
                f"{row.where}: dispatch {launch.dispatch_id} is already given at {first}"
            )
        workgroups, size = _grid(row)
        duration = _duration_us(row)
        found.append(
            replace(launch, duration_us=duration, workgroups=workgroups, workgroup_size=size)
        )
    return found


def _counted_launches(table: Table) -> list[Dispatch]:
    """One line is one counter of one launch."""
    launches: dict[int, Dispatch] = {}
    for row in table.rows:
        dispatch_id = row.whole("Dispatch_Id")
        if dispatch_id not in launches:
            launches[dispatch_id] = _first_counted(row)
        launch = launches[dispatch_id]
        kernel, name = row.text("Kernel_Name"), row.text("Counter_Name")
        if kernel != launch.kernel:
            raise InputError(
                f"{row.where}: dispatch {dispatch_id} is of kernel {shown(kernel)}, but of "
                f"{shown(launch.kernel)} at {launch.where}"
            )
        counters = launch.passes[0].counters
        if name in counters:
            raise InputError(
                f"{row.where}: counter {shown(name)} of dispatch {dispatch_id} is given twice"
            )
        counters[name] = row.number("Counter_Value")
    return list(launches.values())


def _first_counted(row: Row) -> Dispatch:
    size = row.whole_if_given("Workgroup_Size", 1)
    items = row.whole_if_given("Grid_Size", 1)
    timed = row.cells.get("Start_Timestamp") and row.cells.get("End_Timestamp")
    return replace(
        _launch(row),
        workgroups=-(-items // size) if items and size else None,
        workgroup_size=size,
        passes=(Pass({}, _duration_us(row) if timed else None),),
    )


def _launch(row: Row) -> Dispatch:
    """What both kinds of file tell in the same columns."""
    return Dispatch(
        kernel=row.text("Kernel_Name"),
        dispatch_id=row.whole("Dispatch_Id"),
        where=row.where,
        agent=row.cells.get("Agent_Id", ""),
        vgprs=row.whole_if_given("VGPR_Count"),
        agprs=row.whole_if_given("Accum_VGPR_Count"),
        sgprs=row.whole_if_given("SGPR_Count"),
        lds_bytes=row.whole_if_given("LDS_Block_Size"),
        scratch_bytes=row.whole_if_given("Scratch_Size"),
    )


def _duration_us(row: Row) -> float:
    start, end = (row.whole(f"{edge}_Timestamp") for edge in ("Start", "End"))
    if end <= start:
        raise InputError(
            f"{row.where}: End_Timestamp {end} must be after Start_Timestamp {start} (ns)"
        )
    return (end - start) / 1e3


def _grid(row: Row) -> tuple[int | None, int | None]:
    """Workgroups, and work-items of one; the file gives the work-items of the grid."""
    sizes = [row.whole_if_given(f"Workgroup_Size_{axis}", 1) for axis in _AXES]
    items = [row.whole_if_given(f"Grid_Size_{axis}", 1) for axis in _AXES]
    known = [size for size in sizes if size]
    size = math.prod(known) if len(known) == len(_AXES) else None
    groups = [-(-g // s) for g, s in zip(items, sizes, strict=True) if g and s]
    return (math.prod(groups) if len(groups) == len(_AXES) else None), size


def _timing(traces: list[_Run], passes: list[_Run]) -> _Run | None:
    """The trace to take durations from: counters change how kernels run."""
    counted = {_prefix(run.path, COUNTERS) for run in passes}
    alone = [run for run in traces if _prefix(run.path, TRACE) not in counted]
    if len(alone) > 1:
        raise InputError(
            f"{alone[1].path}: is a second kernel trace without counters beside {alone[0].path}; "
            "allowed: one run's"
        )
    return next(iter(alone + traces), None)


def _prefix(path: Path, kind: str) -> tuple[Path, str]:
    """What files of one run share: their folder and how their names begin."""
    return path.parent, path.stem.removesuffix(kind)


def _merged(runs: list[_Run]) -> list[Dispatch]:
    """The launches of the first run with the passes of all."""
    first, *others = runs
    merged = first.launches
    for other in others:
        _check_same_launches(first, other)
        merged = [_joined(a, b) for a, b in zip(merged, other.launches, strict=True)]
    return merged


def _check_same_launches(first: _Run, other: _Run) -> None:
    for i, (a, b) in enumerate(zip_longest(first.launches, other.launches), 1):
        if a is None or b is None:
            raise InputError(
                f"{other.path}: holds {len(other.launches)} launches, but {first.path} holds "
                f"{len(first.launches)}; expected the same launches in every run"
            )
        if a.kernel != b.kernel:
            raise InputError(
                f"{b.where}: launch {i} is of kernel {shown(b.kernel)}, but of {shown(a.kernel)} "
                f"at {a.where}; expected the same launches in every run"
            )
        shapes = [(d.workgroups, d.workgroup_size) for d in (a, b)]
        if any(x and y and x != y for x, y in zip(*shapes, strict=True)):
            mine, theirs = (f"{g} workgroups of {s} work-items" for g, s in shapes)
            raise InputError(
                f"{b.where}: launch {i} has {theirs}, but {mine} at {a.where}; "
                "expected the same launches in every run"
            )


def _joined(a: Dispatch, b: Dispatch) -> Dispatch:
    known = {name: getattr(b, name) for name in a.unknown() if name != "duration_us"}
    return replace(a, **known, agent=a.agent or b.agent, passes=a.passes + b.passes)


def _devices(tables: list[Table]) -> dict[str, Agent]:
    """The GPUs by node number; those that two files describe differently are refused."""
    found: dict[str, Agent] = {}
    for table in tables:
        for row in table.rows:
            node = str(row.whole("Node_Id"))
            if row.text("Agent_Type") != "GPU":
                continue
            agent = _agent(row)
            if found.setdefault(node, agent) != agent:
                raise InputError(
                    f"{row.where}: agent {node} is {agent}, but {found[node]} before; "
                    "expected files of one machine"
                )
    return found


def _agent(row: Row) -> Agent:
    # Not Cu_Count or a product of engines: those may count disabled CUs.
    simds = row.whole_if_given("Simd_Count", 1)
    per_cu = row.whole_if_given("Simd_Per_Cu", 1) or _SIMDS_PER_CU
    arch = row.cells.get("Name", "").partition(":")[0]
    return Agent(
        arch=arch or None,
        xcds=row.whole_if_given("Num_Xcc", 1),
        cus=simds // per_cu if simds else None,
    )


def _device(devices: dict[str, Agent], agent: str) -> Agent | None:
    """The GPU that "Agent 2", or in older files "2", names."""
    return devices.get(agent.removeprefix("Agent ").strip())
