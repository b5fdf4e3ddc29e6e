"""How long the commands take, start-up included, beside the targets of the project.

    python benchmarks/speed.py [--quick]

Each figure is the median of five runs after a warm-up (--quick: one run and no warm-up), each in a
process of its own. All but the search of grid orders run on one core where the system can tie a
process to a core. Targets are shown, never enforced: a shared machine may miss them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RUNS = 5
TILE = (256, 256, 64)


@dataclass(frozen=True)
class Run:
    """One process from start to end: wall time (s), largest resident size (MB), its stdout."""

    wall_s: float
    peak_mb: float
    out: str


@dataclass(frozen=True)
class Row:
    """One line of the table; a figure meets its target by being at most that large."""

    name: str
    value: float
    unit: str
    target: float | None = None

    def cells(self) -> tuple[str, ...]:
        value = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:.2f}"
        if self.target is None:
            return self.name, value, self.unit, "-", ""
        verdict = "ok" if self.value <= self.target else "miss"
        return self.name, value, self.unit, f"{self.target:g}", verdict


def cdnasim(*arguments: str) -> list[str]:
    """The command line of this interpreter's cdnasim."""
    return [sys.executable, "-m", "cdnasim.cli", *arguments]


def cube(size: int) -> list[str]:
    tile = "x".join(str(side) for side in TILE)
    return [f"m={size}", f"n={size}", f"k={size}", f"tile={tile}"]


def run(command: Sequence[str], cores: int) -> Run:
    """Run a command on the first `cores` of the cores that this process may use."""
    with tempfile.TemporaryFile() as out:
        mine = None
        if hasattr(os, "sched_setaffinity"):
            mine = os.sched_getaffinity(0)
            os.sched_setaffinity(0, sorted(mine)[:cores])  # inherited by the process
        try:
            begin = time.perf_counter()
            process = subprocess.Popen(command, stdout=out)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - begin
        finally:
            if mine is not None:
                os.sched_setaffinity(0, mine)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
        out.seek(0)
        text = out.read().decode()
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, else in KiB
    return Run(wall_s, usage.ru_maxrss * unit / 1e6, text)


def repeat(command: Sequence[str], cores: int, quick: bool) -> list[Run]:
    """The measured runs of a command; what a first run leaves in caches does not count."""
    if not quick:
        run(command, cores)
    return [run(command, cores) for _ in range(1 if quick else RUNS)]


def median_s(runs: Sequence[Run]) -> float:
    return statistics.median(r.wall_s for r in runs)


def import_rows(quick: bool) -> list[Row]:
    bare = median_s(repeat([sys.executable, "-c", "pass"], 1, quick))
    rows = []
    for module in ("cdnasim", "cdnasim.cli"):
        loaded = median_s(repeat([sys.executable, "-c", f"import {module}"], 1, quick))
        rows.append(
            Row(f"import {module}, interpreter start left out", max(0.0, loaded - bare), "s", 0.3)
        )
    return rows


def simulate_rows(size: int, target_s: float, quick: bool) -> tuple[list[Row], float]:
    """Time and rate of `simulate` for a cube, and the largest memory of its runs (MB)."""
    runs = repeat(cdnasim("simulate", "gemm", *cube(size), "--json"), 1, quick)
    steps = (size // TILE[0]) * (size // TILE[1]) * (size // TILE[2])
    inside = statistics.median(json.loads(r.out)["wall_s"] for r in runs)
    rows = [
        Row(f"simulate {size} cubed", median_s(runs), "s", target_s),
        Row(f"  workgroup-steps per second of it ({steps:,} steps)", steps / median_s(runs), "1/s"),
        Row("  workgroup-steps per second of simulation alone", steps / inside, "1/s"),
    ]
    return rows, max(r.peak_mb for r in runs)


PROFILE = """
import time
from cdnasim.cu.profile import cu_profile
from hk_kernels.catalog import gemm_trace
slowest = 0.0
for arch, schedule, dtype, tile in (
    ("gfx950", "pingpong8", "bf16", (256, 256, 64)),
    ("gfx950", "interleave4", "bf16", (256, 256, 64)),
    ("gfx950", "interleave4", "fp8", (256, 256, 128)),
    ("gfx950", "specialized:p=4,c=12", "bf16", (192, 256, 64)),
    ("gfx942", "pingpong8", "bf16", (256, 256, 64)),
):
    trace = gemm_trace(schedule, arch, dtype, tile)
    begin = time.perf_counter()
    cu_profile(trace)
    slowest = max(slowest, time.perf_counter() - begin)
print(slowest)
"""


def profile_rows(quick: bool) -> list[Row]:
    """The profile of a kernel, and `simulate` when no profile is kept yet."""
    runs = repeat([sys.executable, "-c", PROFILE], 1, quick)
    slowest = statistics.median(float(r.out) for r in runs)
    colds = []
    for number in range(1 if quick else 1 + RUNS):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["CDNASIM_CACHE"] = folder
            done = run(cdnasim("simulate", "gemm", *cube(8192), "--json"), 1)
            del os.environ["CDNASIM_CACHE"]
        if quick or number:
            colds.append(done)
    return [
        Row("profile of a kernel, slowest of five", slowest, "s", 1.0),
        Row("simulate 8192 cubed, no profile kept", median_s(colds), "s", 2.5),
    ]


def search_rows(quick: bool) -> tuple[list[Row], float]:
    """Time of `best-order` on two cores, each run with a folder of its own so that none is kept."""
    runs = []
    for number in range(1 if quick else 1 + RUNS):
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "out")
            command = cdnasim(
                "best-order", "gemm", *cube(8192), "--jobs", "2", "--out", out, "--json"
            )
            done = run(command, cores=2)
        if quick or number:  # the first one warms up
            runs.append(done)
    orders = len(json.loads(runs[0].out)["ranking"])
    row = Row(f"best-order 8192 cubed ({orders} orders, 2 processes)", median_s(runs), "s", 45)
    return [row], max(r.peak_mb for r in runs)


def print_table(rows: Sequence[Row]) -> None:
    cells = [("", "median", "unit", "target", ""), *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(5)]
    for name, value, unit, target, verdict in cells:
        line = (
            f"{name:<{widths[0]}}  {value:>{widths[1]}}  {unit:<{widths[2]}}"
            f"  {target:>{widths[3]}}  {verdict}"
        )
        print(line.rstrip())


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Measure the speed of cdnasim's commands.")
    parser.add_argument("--quick", action="store_true", help="one run of each, no warm-up")
    quick = parser.parse_args().quick
    rows = import_rows(quick)
    peaks = []
    for size, target_s in ((8192, 1.0), (16384, 5.0)):
        measured, peak = simulate_rows(size, target_s, quick)
        rows += measured
        peaks.append(peak)
    rows += profile_rows(quick)
    measured, peak = search_rows(quick)
    rows += measured
    rows.append(Row("peak memory of simulate", max(peaks), "MB", 500))
    rows.append(Row("peak memory of best-order, largest process", peak, "MB", 500))
    print_table(rows)


if __name__ == "__main__":
    main()
