"""The command line: parses, calls the library, prints. Exit code 2 for bad input, in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from cdnasim import __version__
from cdnasim.errors import InputError

app = typer.Typer(
    help="Predict what a wave schedule or a grid order does on AMD CDNA GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
machine_app = typer.Typer(help="Machine descriptions.", no_args_is_help=True)
order_app = typer.Typer(help="Grid orders.", no_args_is_help=True)
app.add_typer(machine_app, name="machine")
app.add_typer(order_app, name="order")
kernel_app = typer.Typer(help="Kernels: listing, reference, trace, figures.", no_args_is_help=True)
lds_app = typer.Typer(help="LDS instructions: banks, phases, swizzles.", no_args_is_help=True)
app.add_typer(kernel_app, name="kernel")
app.add_typer(lds_app, name="lds")
native_app = typer.Typer(help="Kernels on hardware: build, run, profile.", no_args_is_help=True)
app.add_typer(native_app, name="native")

Params = Annotated[
    list[str] | None, typer.Argument(help="key=value, such as m=8192", show_default=False)
]
MachineName = Annotated[str, typer.Option("--machine", help="Name or .toml file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Seed = Annotated[int, typer.Option(help="Seed of the random part of workgroup speeds.", min=0)]
Jobs = Annotated[int, typer.Option(help="Processes to use.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for report and results.")]
CORES = os.cpu_count() or 1
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
Schedule = Annotated[str, typer.Argument(help="As in `kernel list`, such as pingpong8.")]
KernelParams = Annotated[
    list[str] | None, typer.Argument(help="tile= dtype= registers=", show_default=False)
]
LdsName = Annotated[str, typer.Argument(help="As in `lds list`, such as ds_read_b128.")]
Target = Annotated[str, typer.Option("--target", help="gfx950, gfx942 or sm_90.")]
OutFile = Annotated[Path, typer.Option("--out", help="File to write.")]


def main() -> None:
    """Entry point of the `cdnasim` command."""
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
    except InputError as error:
        code = _complain(str(error))
    except TyperException as error:  # misused options and arguments
        message = error.format_message()
        code = _complain(message) if message else 2  # without: help was printed
    except SystemExit as stop:  # typer's own way out of an interrupt
        code = stop.code if isinstance(stop.code, int) else 1
    if code == INTERRUPTED:
        print("cdnasim: interrupted (run and best-order keep finished cases)", file=sys.stderr)
    sys.exit(code or 0)


def _complain(message: str) -> int:
    print(f"cdnasim: {' '.join(message.split())}", file=sys.stderr)
    return 2


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"cdnasim {__version__}")
        raise typer.Exit


@app.command()
def simulate(
    kernel: Annotated[str, typer.Argument(help="gemm")],
    params: Params = None,
    machine: MachineName = "mi355x",
    as_json: Json = False,
    seed: Seed = 0,
    lines: Annotated[
        bool, typer.Option("--lines", help="Check the hit rates at 128 B lines (needs numba).")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Write all workgroups and one CU's waves as a Chrome trace."),
    ] = None,
) -> None:
    """Simulate one launch.

    gemm takes m= n= k= and optionally dtype= tile= schedule= order= registers= caches=.
    """
    from cdnasim.experiment.case import check_case, parse_params
    from cdnasim.experiment.linecheck import check_lines

    case = check_case(machine, kernel, parse_params(params or []))
    result = case.run(seed)
    record = result.summary()
    if lines:
        counts = check_lines(case, seed)
        record["lines"] = {
            "l2_hit": counts.l2_hit,
            "llc_hit": counts.llc_hit,
            "hbm_read_bytes": counts.hbm_read_bytes,
            "l2_channel_imbalance": counts.l2_channel_imbalance,
        }
    if timeline:
        from cdnasim.commands import write_text
        from cdnasim.experiment.timeline import launch_timeline

        write_text(timeline, json.dumps(launch_timeline(case, result)))
    if as_json:
        print(json.dumps(record))
        return
    from cdnasim.commands import print_result

    print_result(case, record)
    if timeline:
        print(f"Timeline: {timeline}, 1 ns of it is 1 clk")


@app.command()
def run(
    name: Annotated[
        str, typer.Argument(help="A scenario's name or .toml file; `list` names them.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="key=value for all cases; machine=NAME too.")
    ] = None,
    out: Out = None,
    jobs: Jobs = CORES,
    seed: Seed = 0,
) -> None:
    """Run a scenario: tables here, an HTML report in the output folder.

    Finished cases are kept there, so a run that was stopped goes on where it was.
    """
    from cdnasim.commands import report_scenario
    from cdnasim.experiment.case import parse_params
    from cdnasim.experiment.scenario import load_scenario, scenario_names

    if name == "list":
        rows = [[n, load_scenario(n).title] for n in scenario_names()]
        _table("Scenarios", ("name", "title"), rows)
        return
    scenario = load_scenario(name, parse_params(changes or []))
    report = report_scenario(scenario, out or Path("out") / scenario.name, jobs=jobs, seed=seed)
    print(f"\nReport: {report}")


@app.command()
def validate(
    suites: Annotated[list[str] | None, typer.Argument(help="Suites; all if none.")] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Measured rows in long-format CSV.")
    ] = None,
    as_json: Json = False,
    out: Out = None,
    jobs: Jobs = CORES,
) -> None:
    """Compare predictions with measurements; write the report with all misses."""
    from cdnasim.commands import print_validation, write_validation
    from cdnasim.experiment.store import check_folder
    from cdnasim.terminal import progress_bar
    from cdnasim.validation.run import validate as compare

    folder = out or (None if as_json else Path("out") / "validate")
    if folder:
        check_folder(folder)  # before the work, not after it
    with progress_bar("validate") as progress:
        report = compare(suites or [], measured, jobs=jobs, progress=progress)
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        print_validation(report)
    if folder:
        path = write_validation(report, folder)
        print(f"\nReport: {path}", file=sys.stderr if as_json else sys.stdout)


@app.command("import")
def import_profile(
    kernel: Annotated[str, typer.Argument(help="gemm")],
    words: Annotated[
        list[str],
        typer.Argument(help="Files or a folder of rocprofv3, or an ncu --csv file; key=value."),
    ],
    out: OutFile,
    machine: MachineName = "mi355x",
    suite: Annotated[str, typer.Option(help="Name of the rows' suite.")] = "imported",
    source: Annotated[str, typer.Option(help="Where the figures come from.")] = "own measurement",
    pattern: Annotated[
        str | None, typer.Option(help="Regular expression of the kernel's name.")
    ] = None,
    skip_first: Annotated[int, typer.Option(help="Launches to leave out.", min=0)] = 0,
) -> None:
    """Turn a profiler's files into measured rows, for `validate --measured`."""
    from cdnasim.commands import import_rows

    import_rows(
        kernel,
        words,
        out,
        machine=machine,
        suite=suite,
        source=source,
        pattern=pattern,
        skip_first=skip_first,
    )


@app.command()
def calibrate(
    machine: Annotated[str, typer.Argument(help="Name or .toml file.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="New .toml file for the fitted machine.")
    ] = None,
    jobs: Jobs = CORES,
) -> None:
    """Fit machine values to the figures that the suites mark as calibration, and to no others.

    validation/calibration.toml names the values. The machine's own description is not changed.
    """
    from cdnasim.commands import print_calibration
    from cdnasim.terminal import progress_bar
    from cdnasim.validation.calibrate import calibrate as fit
    from cdnasim.validation.calibrate import check_new_file, write_machine

    if out:
        check_new_file(out)
    with progress_bar("calibrate") as progress:
        calibration = fit(machine, jobs=jobs, progress=progress)
    print_calibration(calibration)
    if out:
        write_machine(calibration.fitted, out)
        print(f"\nMachine: {out}")


@app.command("best-order")
def best_order(
    kernel: Annotated[str, typer.Argument(help="gemm")],
    params: Params = None,
    machine: MachineName = "mi355x",
    as_json: Json = False,
    out: Out = None,
    jobs: Jobs = CORES,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(help="How many orders to print.", min=1)] = 20,
) -> None:
    """Search the grid orders of a GEMM, w and c included, and rank them by predicted time."""
    from cdnasim.commands import rank_orders
    from cdnasim.experiment.case import check_case, parse_params

    chosen = parse_params(params or [])
    if "order" in chosen:
        raise InputError("best-order: parameter 'order' is what is searched; leave it out")
    case = check_case(machine, kernel, chosen)
    ranking = rank_orders(case, out or Path("out") / "best-order", jobs=jobs, seed=seed)
    if as_json:
        print(json.dumps(ranking.to_json()))
    else:
        ranking.print(top)


@machine_app.command("list")
def machine_list() -> None:
    """Name the machines that come with cdnasim."""
    from cdnasim.machine.loader import load_machine, machine_names

    machines = [load_machine(name) for name in machine_names()]
    _table(
        "Machines",
        ("name", "arch", "description"),
        [[m.name, m.arch, m.description] for m in machines],
    )


@machine_app.command("show")
def machine_show(
    name: Annotated[str, typer.Argument(help="Name or .toml file.")], as_json: Json = False
) -> None:
    """Print every value of a machine with unit, confidence and source."""
    import dataclasses

    from cdnasim.machine.loader import load_machine

    machine = load_machine(name)
    if as_json:
        values = [dataclasses.asdict(p) for p in machine.provenance]
        print(json.dumps({"name": machine.name, "arch": machine.arch, "values": values}))
        return
    rows = [
        [
            p.key,
            f"{p.value:.12g}",
            p.unit,
            p.confidence,
            p.source + (f" ({p.note})" if p.note else ""),
        ]
        for p in machine.provenance
    ]
    _table(machine.description, ("key", "value", "unit", "confidence", "source"), rows)


@order_app.command("list")
def order_list() -> None:
    """Name the grid orders."""
    from cdnasim.gpu.orders import ORDER_HELP

    _table("Grid orders", ("order", "meaning"), [[name, text] for name, text in ORDER_HELP.items()])


@order_app.command("show")
def order_show(
    spec: Annotated[str, typer.Argument(help="An order, such as xcd:w=8,c=64.")],
    params: Params = None,
    machine: MachineName = "mi355x",
    round_: Annotated[
        int, typer.Option("--round", help="Round of workgroups to print.", min=0)
    ] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also plot all rounds to this file.")
    ] = None,
) -> None:
    """Print which XCD gets which tile of a GEMM in a round; takes m= n= tile=."""
    from cdnasim.commands import show_order
    from cdnasim.experiment.case import parse_params

    show_order(spec, parse_params(params or []), machine, round_, html)


@kernel_app.command("list")
def kernel_list() -> None:
    """Name the schedules, their targets and options."""
    from cdnasim.kernel_commands import list_kernels

    list_kernels()


@kernel_app.command("show")
def kernel_show(
    schedule: Schedule,
    params: KernelParams = None,
    target: Target = "gfx950",
    as_json: Json = False,
) -> None:
    """Print what a workgroup needs and what each role does in a k-step."""
    from cdnasim.kernel_commands import choose, show_kernel

    show_kernel(choose(schedule, params or [], target), as_json=as_json)


@app.command()
def listing(
    schedule: Annotated[
        str, typer.Argument(help="A schedule (`kernel list` names them) or a trace file (*.gz).")
    ],
    params: KernelParams = None,
    target: Target = "gfx950",
    wave: Annotated[int, typer.Option(help="A wave of the role to list.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="K-steps to simulate.", min=4, max=256)] = 12,
    workgroups: Annotated[int, typer.Option(help="Side by side on the CU.", min=1, max=8)] = 1,
    cold: Annotated[
        bool, typer.Option("--cold", help="Scalar and instruction caches are empty.")
    ] = False,
    assume_unknown: Annotated[
        bool, typer.Option("--assume-unknown", help="Pessimistic clocks for unknown instructions.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write all waves as a Chrome trace, for Perfetto.")
    ] = None,
    att: Annotated[
        Path | None,
        typer.Option(
            help="Write a folder as rocprofv3's thread trace, for rocprof-compute-viewer."
        ),
    ] = None,
) -> None:
    """Replay a kernel on one compute unit: its hot loop with clocks and stalls.

    Takes tile=, dtype= and registers=. Loads come at once: what is left is the schedule's own.
    """
    from cdnasim.kernel_commands import Replay, print_hot_loop, traced_kernel

    replay = Replay(wave, steps, workgroups, cold, assume_unknown, timeline, att)
    print_hot_loop(*traced_kernel(schedule, params or [], target), replay)


@kernel_app.command("listing")
def kernel_listing(
    schedule: Schedule,
    params: KernelParams = None,
    target: Target = "gfx950",
    wave: Annotated[int, typer.Option(help="A wave of the role to print.", min=0)] = 0,
) -> None:
    """Print the lowered k-loop: one instruction a line with the kernel's line."""
    from cdnasim.kernel_commands import choose, print_listing

    print_listing(choose(schedule, params or [], target), wave)


@kernel_app.command("check")
def kernel_check(
    schedule: Schedule,
    params: KernelParams = None,
    target: Target = "gfx950",
    grid: Annotated[str, typer.Option(help="Workgroups, rows x columns of C.")] = "1x1",
    seed: Annotated[int, typer.Option(help="Seed of the data.", min=0)] = 0,
) -> None:
    """Run workgroups in the reference: wrong results, races, missed waits. Exit code 1 if any."""
    from cdnasim.kernel_commands import check_kernel, choose

    raise typer.Exit(check_kernel(choose(schedule, params or [], target), grid, seed))


@kernel_app.command("trace")
def kernel_trace(
    schedule: Schedule, out: OutFile, params: KernelParams = None, target: Target = "gfx950"
) -> None:
    """Write the kernel's trace (gzip JSON)."""
    from cdnasim.kernel_commands import choose, write_trace

    write_trace(choose(schedule, params or [], target), out)


@kernel_app.command("trace-info")
def kernel_trace_info(file: Annotated[Path, typer.Argument(help="A saved trace.")]) -> None:
    """Print what a saved trace says."""
    from cdnasim.kernel_commands import print_trace_file

    print_trace_file(file)


@kernel_app.command("figure")
def kernel_figure(
    kind: Annotated[str, typer.Argument(help="layout, swizzle or registers")],
    schedule: Schedule,
    out: OutFile,
    params: KernelParams = None,
    target: Target = "gfx950",
) -> None:
    """Draw an MFMA's layout, the LDS banks of the shared tile, or the register map, as SVG."""
    from cdnasim.kernel_commands import choose, write_figure

    write_figure(kind, choose(schedule, params or [], target), out)


@lds_app.command("list")
def lds_list() -> None:
    """Name the LDS instructions with banks, phases and how sure they are."""
    from cdnasim.kernel_commands import list_lds

    list_lds()


@lds_app.command("check")
def lds_check(
    instruction: LdsName,
    params: Annotated[
        list[str] | None,
        typer.Argument(help="tile= dtype= swizzle= operand= stride= part=", show_default=False),
    ] = None,
    target: Target = "gfx950",
    svg: Annotated[Path | None, typer.Option("--svg", help="Also draw it to this file.")] = None,
) -> None:
    """Print the clocks and conflicts of an operand's access to a swizzled tile."""
    from cdnasim.kernel_commands import check_lds

    check_lds(instruction, params or [], target, svg)


@lds_app.command("search")
def lds_search(
    words: Annotated[list[str], typer.Argument(help="Instructions, and tile= dtype= stride=")],
    target: Target = "gfx950",
    top: Annotated[int, typer.Option(help="How many swizzles to print.", min=1)] = 10,
) -> None:
    """Find swizzles free of conflicts for instructions on a tile, or prove that there are none."""
    from cdnasim.kernel_commands import search_lds

    search_lds(words, target, top)


@lds_app.command("solve")
def lds_solve(
    instruction: LdsName,
    target: Target = "gfx950",
    counters: Annotated[
        Path | None, typer.Option("--counters", help="rocprofv3's counter_collection.csv.")
    ] = None,
) -> None:
    """Find phases and banks from conflicts of lane pairs: the model's, or those counted."""
    from cdnasim.kernel_commands import solve_lds

    solve_lds(instruction, target, counters)


@lds_app.command("microbenchmark")
def lds_microbenchmark(instruction: LdsName, out: OutFile, target: Target = "gfx950") -> None:
    """Write the HIP program that measures which lanes conflict."""
    from cdnasim.kernel_commands import write_microbenchmark

    write_microbenchmark(instruction, target, out)


NativeOut = Annotated[Path, typer.Option("--out", help="Folder for what is built.")]
NativeKernel = Annotated[str, typer.Argument(help="gemm")]
NativeMachine = Annotated[
    str | None, typer.Option("--machine", help="That the rows belong to; default: of the target.")
]
IN_OUT = Path("out") / "native"


@native_app.command("build")
def native_build(
    kernel: NativeKernel, params: Params = None, target: Target = "gfx950", out: NativeOut = IN_OUT
) -> None:
    """Print the program of a case as HIP or CUDA source and compile it.

    With hipcc or nvcc a program that runs, times and checks itself; else with the `compile` extra
    assembly and code object of gfx950 or gfx942.
    """
    from cdnasim.native_commands import build, native_case

    build(native_case(kernel, params or [], target), out)


@native_app.command("compare-isa")
def native_compare(kernel: NativeKernel, params: Params = None, target: Target = "gfx950") -> None:
    """Compile the kernel and compare its hot loop with the trace. Exit code 1 if they differ."""
    from cdnasim.native_commands import compare, native_case

    raise typer.Exit(compare(native_case(kernel, params or [], target)))


@native_app.command("run")
def native_run(
    kernel: NativeKernel,
    params: Params = None,
    target: Target = "gfx950",
    out: NativeOut = IN_OUT,
    warmup: Annotated[int, typer.Option(help="Launches before times are taken.", min=0)] = 500,
    runs: Annotated[int, typer.Option(help="Launches that are timed.", min=1)] = 100,
    rotate: Annotated[
        float, typer.Option(help="Bytes of inputs that take turns; 0: always the same.", min=0)
    ] = 0.0,
    seed: Seed = 0,
) -> None:
    """Build and run a case on this machine's GPU: times, and the error against a plain product."""
    from cdnasim.native_commands import native_case, run

    options = ["--warmup", warmup, "--runs", runs, "--rotate", rotate, "--seed", seed]
    run(native_case(kernel, params or [], target), out, [str(option) for option in options])


@native_app.command("sweep")
def native_sweep(
    suite: Annotated[str, typer.Argument(help="A validation suite: its cases are run.")],
    rows: Annotated[Path, typer.Option(help="CSV file for the measured rows.")],
    target: Target = "gfx950",
    machine: NativeMachine = None,
    source: Annotated[str, typer.Option(help="Where the figures come from.")] = "own measurement",
    out: NativeOut = IN_OUT,
) -> None:
    """Run all cases of a suite on this machine's GPU; a sweep that was stopped goes on."""
    from cdnasim.native_commands import sweep

    sweep(suite, target, out, rows, machine, source)


@native_app.command("profile")
def native_profile(
    kernel: NativeKernel,
    rows: Annotated[Path, typer.Option(help="CSV file for the measured rows.")],
    params: Params = None,
    target: Target = "gfx950",
    machine: NativeMachine = None,
    source: Annotated[str, typer.Option(help="Where the figures come from.")] = "own measurement",
    out: NativeOut = IN_OUT,
) -> None:
    """Run a case under rocprofv3 or Nsight Compute; write rows for `validate --measured`."""
    from cdnasim.native_commands import native_case, profile

    profile(native_case(kernel, params or [], target), out, rows, machine, source)


def _table(title: str, columns: tuple[str, ...], rows: list[list[Any]]) -> None:
    from cdnasim.terminal import print_table

    print_table(title, columns, rows)


if __name__ == "__main__":
    main()
