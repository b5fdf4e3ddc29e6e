"""What the `kernel` and `lds` commands do: ask the kernels or the LDS model, print, write files."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cdnasim.commands import write_text
from cdnasim.errors import InputError
from cdnasim.experiment.case import REGISTERS, parse_params
from cdnasim.experiment.kernel_facts import hot_loop_lines
from cdnasim.isa import phase_solver
from cdnasim.isa.lds import LANES, LdsInstruction, lane_ranges, lds_instructions, phases_of, picture
from cdnasim.isa.swizzle import check_tile, search, swizzle_named
from cdnasim.terminal import print_table, progress_bar
from cdnasim.trace.model import (
    KernelTrace,
    TraceInstruction,
    TraceLoop,
    TraceNode,
    TraceRole,
    load_trace,
    save_trace,
)
from hk_kernels.catalog import GEMM_SCHEDULES, gemm_program, gemm_trace, parse_schedule
from hk_kernels.lower.figures import (
    LdsTile,
    layout_figure,
    lds_figure,
    program_lds,
    program_mfma,
    registers_figure,
)
from hk_kernels.lower.program import Instruction, Loop, Node, Program
from hk_kernels.lower.reference import KernelError, execute
from hk_kernels.lower.registers import RegisterNeed, register_needs, steady_loop
from hk_kernels.lower.target import target_named
from hk_kernels.tile.dtypes import DTYPES, DType
from hk_kernels.tile.language import Kernel

FIGURES = ("layout", "swizzle", "registers")
ROW_BITS = 1024  # a row of a k-step by default, as in the published kernels
MAX_WORKGROUPS = 64  # of a check: each takes about a second
LISTING_WIDTH = 120
COMMENT_COLUMN = 62  # where a listing names the kernel's line

RoleRow = tuple[str, Sequence[object], str]  # name, a value a role, unit or note


@dataclass(frozen=True)
class Choice:
    """A kernel as the command line names it: schedule, target, element type, tile, registers."""

    schedule: str
    target: str
    dtype: str
    tile: tuple[int, int, int]
    registers: str

    @property
    def definition(self) -> Kernel:
        """The kernel's definition."""
        return parse_schedule(self.schedule)[0].kernels[self.target]

    def program(self, grid: tuple[int, int] = (1, 1)) -> Program:
        """The lowered program; raises InputError for what target or kernel do not allow."""
        spills = self.registers == "compiler"
        kernel = self.schedule, self.target, self.dtype, self.tile
        return gemm_program(*kernel, grid, allow_spills=spills)

    def trace(self) -> KernelTrace:
        """Its trace."""
        return gemm_trace(self.schedule, self.target, self.dtype, self.tile, self.registers)

    def __str__(self) -> str:
        return f"{self.schedule} on {self.target}: {self.dtype}, tile {_by(self.tile)}"


def choose(schedule: str, pairs: Sequence[str], target: str) -> Choice:
    """The kernel of `schedule` with parameters tile=, dtype=, registers=; raises InputError.

    The default tile has the definition's rows and columns and rows of 128 B.
    """
    params = _params(pairs, ("tile", "dtype", "registers"))
    registers = params.get("registers", REGISTERS[0])
    if registers not in REGISTERS:
        raise InputError(f"registers={registers} is unknown; allowed: {', '.join(REGISTERS)}")
    entry, _ = parse_schedule(schedule)
    limits = target_named(target)
    if target not in entry.kernels:
        raise InputError(
            f"schedule '{schedule}' has no kernel for {target}; allowed: {', '.join(entry.kernels)}"
        )
    dtype = _dtype(params.get("dtype", "bf16"))
    limits.mfma(dtype)  # refuses a type that the target does not multiply
    if "tile" in params:
        rows, cols, depth = _sizes("tile", params["tile"], ("rows", "columns", "depth"), 16)
    else:
        defaults = entry.kernels[target].parameters()
        rows, cols, depth = defaults["bm"], defaults["bn"], ROW_BITS // dtype.bits
    return Choice(schedule, target, dtype.name, (rows, cols, depth), registers)


# kernels -----------------------------------------------------------------------------------------


def list_kernels() -> None:
    """Print schedules, targets and options."""
    rows = [
        [
            name,
            ", ".join(entry.kernels),
            ",".join(f"{key}={value}" for key, value in entry.options.items()),
            entry.note,
        ]
        for name, entry in GEMM_SCHEDULES.items()
    ]
    print_table("Kernels", ("schedule", "targets", "options", "what it does"), rows)
    print("\nOptions follow a colon, such as specialized:p=4,c=8. Parameters: tile=, dtype=.")


def show_kernel(choice: Choice, *, as_json: bool) -> None:
    """Print what a workgroup needs and what it does in a k-step."""
    program = choice.program()
    traced = choice.trace()
    needs = register_needs(program)
    loops = [steady_loop(program.of_wave(need.waves[0])) for need in needs]
    lines = [hot_loop_lines(choice.definition, loop.line) for loop in loops]
    if as_json:
        roles = zip(traced.roles, needs, lines, strict=True)
        record = {
            "schedule": choice.schedule,
            **_without(dataclasses.asdict(traced), "version", "roles", "lines"),
            "roles": [_role_record(*role) for role in roles],
        }
        print(json.dumps(record))
        return
    _print_trace(str(choice), traced)
    rows: list[RoleRow] = [
        ("values alive at most", [need.live for need in needs], "registers of a lane"),
        ("lane addresses", [need.addresses for need in needs], "registers of a lane"),
        ("budget", [need.budget for need in needs], "registers of a lane"),
        ("waves a SIMD can hold", [need.occupancy for need in needs], "by registers"),
        ("hot loop", lines, "lines of the definition, helpers included"),
    ]
    _print_roles("Registers and source", traced.roles, rows)


def print_listing(choice: Choice, wave: int) -> None:
    """Print the k-loop of a wave, one instruction a line with the kernel's line."""
    program = choice.program()
    if wave >= program.waves:
        raise InputError(f"--wave {wave}: allowed: 0 to {program.waves - 1}")
    waves = next(waves for waves in program.roles() if wave in waves)
    print(f"{choice}: k-loop of waves {waves[0]}-{waves[-1]}")
    for line in _listing([steady_loop(program.of_wave(wave))]):
        print(line)


@dataclass(frozen=True)
class Replay:
    """How `listing` replays a kernel on a compute unit, and what it writes.

    wave: whose role is listed. steps: k-steps. workgroups: side by side. is_cold: scalar and
    instruction caches are empty. timeline: file for the Chrome trace of all waves; att: folder in
    the shape of a thread trace.
    """

    wave: int
    steps: int
    workgroups: int
    is_cold: bool
    assume_unknown: bool
    timeline: Path | None
    att: Path | None


def traced_kernel(schedule: str, pairs: Sequence[str], target: str) -> tuple[str, KernelTrace]:
    """Title and trace of a schedule, or of the trace file that `schedule` names (*.gz)."""
    if not schedule.endswith(".gz"):
        choice = choose(schedule, pairs, target)
        return str(choice), choice.trace()
    if pairs:
        raise InputError(f"{pairs[0]}: a trace file takes no parameters")
    trace = load_trace(Path(schedule))
    return f"{trace.kernel} on {trace.arch}: {trace.dtype}, tile {_by(trace.tile)}", trace


def print_hot_loop(title: str, trace: KernelTrace, replay: Replay) -> None:
    """Print the k-loop of a wave with clocks and stalls, replayed with loads that come at once."""
    from cdnasim.cu.att import write_att
    from cdnasim.cu.listing import list_loop, stall_shares
    from cdnasim.cu.model import PATTERN
    from cdnasim.cu.profile import resident_workgroups, run_steps
    from cdnasim.cu.timeline import chrome_trace, wave_events

    if replay.wave >= trace.waves:
        raise InputError(f"--wave {replay.wave}: allowed: 0 to {trace.waves - 1}")
    if replay.steps < trace.k_steps:
        raise InputError(f"--steps {replay.steps}: this kernel needs {trace.k_steps} or more")
    fit = resident_workgroups(trace, target_named(trace.arch).lds_bytes)
    if replay.workgroups > fit:
        raise InputError(f"--workgroups {replay.workgroups}: a CU holds {fit} of this kernel")
    run = partial(
        run_steps,
        trace,
        workgroups=replay.workgroups,
        is_cold=replay.is_cold,
        assume_unknown=replay.assume_unknown,
    )
    result = run(replay.steps, keep_spans=bool(replay.timeline or replay.att))
    rows = []
    for listed in list_loop(trace, result, replay.wave):
        causes = ", ".join(f"{cause} {clk:.0f}" for cause, clk in listed.stalls.items() if clk >= 1)
        cells = [listed.mnemonic, str(listed.hits), f"{listed.clocks:.1f}", causes]
        rows.append([*cells, listed.line[:60]])
    headings = ("instruction", "hits", "clk", "stalls", "line")
    print_table(f"{title}: k-loop of wave {replay.wave}", headings, rows)
    k_step = result.iteration_clk()
    if replay.workgroups > 1:  # which need not advance alike: what counts is what all of them need
        k_step = (run(replay.steps + PATTERN).end - result.end) / PATTERN
    shares = sorted(stall_shares(result).items(), key=lambda item: -item[1])
    busy = replay.workgroups * trace.matrix_clocks / k_step
    print(
        f"\nA k-step takes {k_step:.0f} clk, of which the matrix pipe is busy {100 * busy:.1f} %."
    )
    print("All waves' time: " + ", ".join(f"{n} {100 * s:.1f} %" for n, s in shares if s >= 0.005))
    for mnemonic, clk in result.assumed.items():
        print(f"Assumed: {mnemonic} is not known and taken to hold its wave for {clk:g} clk")
    if replay.timeline:
        write_text(replay.timeline, json.dumps(chrome_trace(wave_events(trace, result))))
        print(f"Timeline: {replay.timeline}, 1 ns of it is 1 clk")
    if replay.att:
        write_att(trace, result, replay.att, kernel=title)
        print(f"Thread trace: {replay.att}")


def check_kernel(choice: Choice, grid: str, seed: int) -> int:
    """Run workgroups in the reference on random data, compare with numpy; returns the exit code."""
    down, across = _sizes("--grid", grid, ("rows", "columns"), 1)
    if down * across > MAX_WORKGROUPS:
        raise InputError(f"--grid {grid}: allowed: at most {MAX_WORKGROUPS} workgroups")
    program = choice.program((down, across))
    bm, bn, _ = program.tile
    ta, tb, tc = program.tensors
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal((t.rows, t.cols), np.float32) for t in (ta, tb))
    exact_a, exact_b = (t.dtype.encode(x).astype(np.float64) for t, x in ((ta, a), (tb, b)))
    expected = exact_a @ exact_b.T
    # Rounding of C to bf16 (half a step of 2^-7), and of each of the k sums in fp32.
    allowed = 2.0**-8 * np.abs(expected)
    allowed += ta.cols * 2.0**-23 * (np.abs(exact_a) @ np.abs(exact_b).T)
    error = np.zeros_like(expected)
    tiles = [(r, q) for r in range(down) for q in range(across)]
    with progress_bar("check") as progress:
        for done, (r, q) in enumerate(tiles, 1):
            try:
                found = execute(program, a, b, [(r, q)])
            except KernelError as mistake:
                return _mistake(str(mistake))
            part = np.s_[r * bm : (r + 1) * bm, q * bn : (q + 1) * bn]
            error[part] = np.abs(found[part] - expected[part])
            if progress:
                progress(done, len(tiles))
    row, col = np.unravel_index(np.argmax(error - allowed), error.shape)
    if error[row, col] > allowed[row, col]:
        return _mistake(
            f"{choice}: C[{row},{col}] differs by {error[row, col]:.4g} from "
            f"{expected[row, col]:.4g}; rounding explains {allowed[row, col]:.2g}"
        )
    print(f"{choice}, m={tc.rows} n={tc.cols} k={ta.cols}, seed {seed}")
    print(
        f"largest error {error.max():.3g} where |C| is up to {np.abs(expected).max():.4g}: "
        "no more than rounding"
    )
    print(
        f"{len(tiles)} x {program.waves} waves: no read before its wait, no race, no barrier missed"
    )
    return 0


def write_trace(choice: Choice, out: Path) -> None:
    """Write the kernel's trace."""
    traced = choice.trace()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from None
    save_trace(traced, out)
    print(f"Trace: {out}")


def print_trace_file(path: Path) -> None:
    """Print what a saved trace says."""
    traced = load_trace(path)
    title = f"{traced.kernel} on {traced.arch}: {traced.dtype}, tile {_by(traced.tile)}"
    _print_trace(title, traced)


def write_figure(kind: str, choice: Choice, out: Path) -> None:
    """Write one of FIGURES as SVG."""
    if kind not in FIGURES:
        raise InputError(f"figure '{kind}' is unknown; allowed: {', '.join(FIGURES)}")
    program = choice.program()
    if kind == "layout":
        svg = layout_figure(program_mfma(program))
    elif kind == "swizzle":
        svg = lds_figure(*program_lds(program))
    else:
        svg = registers_figure(program)
    write_text(out, svg)
    print(f"Figure: {out}")


def _role_record(role: TraceRole, need: RegisterNeed, lines: int) -> dict[str, Any]:
    instructions = _k_step(role)
    return {
        "waves": role.waves,
        "instructions": dict(Counter(i.mnemonic for i in instructions)),
        "lds_clocks": sum(i.clocks for i in instructions if i.unit == "lds"),
        "lds_conflict_clocks": sum(i.conflict_clocks for i in instructions),
        **_without(dataclasses.asdict(need), "waves", "spills"),
        "hot_loop": {"lines": lines, "instructions": len(instructions)},
    }


def _print_trace(title: str, traced: KernelTrace) -> None:
    rows = [
        ["waves", str(traced.waves), f"{traced.waves_per_simd} a SIMD"],
        ["LDS", str(traced.lds_bytes), f"B of {target_named(traced.arch).lds_bytes}"],
        ["matrix pipe", str(traced.matrix_clocks), "clk of a SIMD in a k-step"],
        ["clusters of MFMA", str(traced.clusters), "of a SIMD in a k-step"],
        ["C", str(traced.store_bytes), "B stored"],
    ]
    print_table(title, ("workgroup", "", ""), rows)
    operands = [
        [
            o.tensor,
            o.axis,
            str(o.slab_bytes),
            str(o.piece_bytes),
            f"{o.lead:.3f}",
            f"{o.lead * traced.matrix_clocks:.0f}",
        ]
        for o in traced.operands
    ]
    columns = ("operand", "block by", "slab B", "piece B", "lead in k-steps", "lead in clk")
    print_table("Operands in a k-step", columns, operands)
    steps = [_k_step(role) for role in traced.roles]
    counts = [Counter(i.mnemonic for i in step) for step in steps]
    lds = [[i for i in step if i.unit == "lds"] for step in steps]
    table: list[RoleRow] = [
        (name, [count[name] for count in counts], "")
        for name in dict.fromkeys(name for count in counts for name in count)
    ]
    table += [
        ("all instructions", [len(step) for step in steps], ""),
        ("LDS phases", [sum(i.clocks for i in step) for step in lds], "clk"),
        ("LDS conflicts", [sum(i.conflict_clocks for i in step) for step in lds], "clk"),
        ("VGPRs", [role.vgprs for role in traced.roles], "needed"),
        ("AGPRs", [role.agprs for role in traced.roles], "needed"),
    ]
    _print_roles("A wave in a k-step", traced.roles, table)


def _print_roles(title: str, roles: Sequence[TraceRole], rows: Sequence[RoleRow]) -> None:
    heads = [f"waves {role.waves[0]}-{role.waves[-1]}" for role in roles]
    cells = [[name, *map(str, values), note] for name, values, note in rows]
    print_table(title, ("", *heads, ""), cells)


def _k_step(role: TraceRole) -> list[TraceInstruction]:
    """The instructions of one pass of the k-loop; inner loops count as often as they run."""

    def flat(body: list[TraceNode]) -> Iterator[TraceInstruction]:
        for node in body:
            if isinstance(node, TraceInstruction):
                yield node
            else:
                for _ in range(node.count):
                    yield from flat(node.body)

    def loops(body: list[TraceNode]) -> Iterator[TraceLoop]:
        for node in body:
            if isinstance(node, TraceLoop):
                yield node
                yield from loops(node.body)

    k_loop = next((loop for loop in loops(role.body) if loop.is_k_loop), None)
    return list(flat(k_loop.body)) if k_loop else []


def _listing(nodes: list[Node], indent: int = 0) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Instruction):
            text, inner = f"{node.mnemonic:<27} {_operands(node)}", None
        elif isinstance(node, Loop):
            text, inner = f"for {node.variable} in range({node.count}):", node.body
        else:
            continue  # `Only` parts are resolved in the program of a wave
        line = f"{'':{indent}}{text}".ljust(COMMENT_COLUMN) + f" ; {node.line}"
        yield line if len(line) <= LISTING_WIDTH else line[: LISTING_WIDTH - 1] + "…"
        if inner is not None:
            yield from _listing(inner, indent + 2)


def _operands(i: Instruction) -> str:
    """Registers (virtual numbers), memory and values of an instruction."""
    split = i.mfma.operand_vgprs if i.mfma else len(i.src)
    parts = [_registers(r) for r in (i.dst, i.src[:split], i.src[split:]) if r]
    if i.loads_lds:
        parts.append("lds")
    if i.memory:
        parts.append(i.memory.tensor)
    elif i.lds is not None:
        parts.append("lds")
    if i.vm is not None:
        parts.append(f"vmcnt({i.vm})")
    if i.lgkm is not None:
        parts.append(f"lgkmcnt({i.lgkm})")
    if i.mnemonic == "s_setprio":
        parts.append(str(i.value))
    return ", ".join(parts)


def _registers(registers: tuple[int, ...]) -> str:
    if len(registers) == 1:
        return f"v{registers[0]}"
    return f"v[{registers[0]}:{registers[-1]}]"


# LDS ---------------------------------------------------------------------------------------------


def list_lds() -> None:
    """Print the LDS instructions that are described."""
    rows = [
        [
            arch,
            name,
            str(described.bytes_per_lane),
            str(described.banks),
            _confidence(described, "banks"),
            str(described.phases),
            _confidence(described, "phases"),
        ]
        for arch, table in _amd_lds().items()
        for name, described in table.items()
    ]
    columns = ("target", "instruction", "B a lane", "banks", "", "phases", "")
    print_table("LDS instructions", columns, rows)


def check_lds(instruction: str, pairs: Sequence[str], target: str, svg: Path | None) -> None:
    """Print what an instruction costs on an operand in a swizzled tile; draw it to `svg`."""
    _check_amd(target)
    params = _params(pairs, ("tile", "dtype", "swizzle", "operand", "stride", "part"))
    rows, cols, size = _tile(params)
    swizzle = params.get("swizzle", "st_16x32")
    access = check_tile(
        *(rows, cols, size, swizzle, instruction, target),
        operand=_number("operand", params["operand"]) if "operand" in params else None,
        row_stride=_number("stride", params.get("stride", "4")),
        part=_number("part", params.get("part", "0")),
    )
    print(picture(access))
    if svg:
        write_text(svg, lds_figure(LdsTile(rows, cols, size, swizzle_named(swizzle)), [access]))
        print(f"Figure: {svg}")


def search_lds(words: Sequence[str], target: str, top: int) -> None:
    """Print the swizzles under which operands of a whole tile are accessed without conflicts."""
    _check_amd(target)
    names = [word for word in words if "=" not in word]
    params = _params([word for word in words if "=" in word], ("tile", "dtype", "stride"))
    rows, cols, size = _tile(params)
    stride = _number("stride", params.get("stride", "4"))
    accesses = []
    for name in names:
        moved = LANES * phases_of(name, target).alignment
        for part in range(max(1, rows * cols * size // moved)):
            plain = check_tile(rows, cols, size, "none", name, target, row_stride=stride, part=part)
            accesses.append((f"{name}, part {part}", name, np.array(plain.addresses)))
    found = search(rows, cols, size, [(name, offsets) for _, name, offsets in accesses], target)
    title = f"{rows}x{cols} elements of {size} B on {target}"
    table = [[label, str(n)] for (label, *_), n in zip(accesses, found.alone, strict=True)]
    print_table(title, ("access", "mappings free of conflicts"), table)
    tried = f"{found.examined} formulas of up to two XOR steps, {found.distinct} mappings"
    if not found.found:
        print(f"\nNone serves all accesses without conflicts: all {tried} were examined.")
        return
    print(f"\n{len(found.found)} of {tried} serve all accesses without conflicts:")
    for swizzle in found.found[:top]:
        print(f"  {swizzle}")
    if len(found.found) > top:
        print(f"  … {len(found.found) - top} more (--top)")


def solve_lds(instruction: str, target: str, counters: Path | None) -> None:
    """Print phases and banks found by pairs of lanes, from the model or from counters."""
    _check_amd(target)
    described = phases_of(instruction, target)
    if counters:
        observe = phase_solver.read_counters(counters, instruction, target)
    else:
        observe = phase_solver.model_oracle(instruction, target)
    solution = phase_solver.solve(observe, described.alignment)
    source = counters or "the model"
    print(
        f"{instruction} on {target}, from {source}: {len(solution.phases)} phases, "
        f"{solution.banks} banks"
    )
    for number, lanes in enumerate(solution.phases):
        print(f"phase {number}  lanes {lane_ranges(np.array(lanes))}")
    phases = {tuple(described.lanes(phase).tolist()) for phase in range(described.phases)}
    is_same = (set(solution.phases), solution.banks) == (phases, described.banks)
    print("as described" if is_same else "not as described: cdnasim lds list")


def write_microbenchmark(instruction: str, target: str, out: Path) -> None:
    """Write the HIP program whose counters `lds solve --counters` reads."""
    _check_amd(target)
    write_text(out, phase_solver.hip_microbenchmark(instruction, target))
    print(f"Program: {out} (its first lines say how to build and run it)")


def _amd_lds() -> dict[str, dict[str, LdsInstruction]]:
    """What the `lds` commands know: the LDS of AMD's targets, whose waves have 64 lanes."""
    return {
        arch: table
        for arch, table in lds_instructions().items()
        if all(len(one.lane_phase) == LANES for one in table.values())
    }


def _check_amd(target: str) -> None:
    if target in lds_instructions() and target not in _amd_lds():
        raise InputError(f"--target {target}: allowed: {', '.join(_amd_lds())}")


def _confidence(described: LdsInstruction, key: str) -> str:
    name = f"{described.arch}.{described.name}.{key}"
    return next(entry.confidence for entry in described.provenance if entry.key == name)


# parameters and files ----------------------------------------------------------------------------


def _params(pairs: Sequence[str], allowed: Sequence[str]) -> dict[str, str]:
    params = parse_params(pairs)
    for key in params:
        if key not in allowed:
            raise InputError(f"unknown parameter '{key}'; allowed: {', '.join(allowed)}")
    return params


def _dtype(name: str) -> DType:
    if name not in DTYPES:
        raise InputError(f"dtype={name} is unknown; allowed: {', '.join(DTYPES)}")
    return DTYPES[name]


def _tile(params: dict[str, str]) -> tuple[int, int, int]:
    """Rows, columns and bytes of an element of a shared tile."""
    rows, cols = _sizes("tile", params.get("tile", "16x32"), ("rows", "columns"), 1)
    dtype = _dtype(params.get("dtype", "bf16"))
    if dtype.bits % 8:
        raise InputError(f"dtype={dtype}: allowed: types of whole bytes")
    return rows, cols, dtype.bytes


def _sizes(key: str, text: str, names: Sequence[str], multiple: int) -> tuple[int, ...]:
    """The numbers of a text such as 256x256x64; raises InputError."""
    parts = text.split("x")
    numbers = [int(part) for part in parts if re.fullmatch("[1-9][0-9]{0,3}", part)]
    if not len(numbers) == len(parts) == len(names) or any(n % multiple for n in numbers):
        form = "x".join(f"<{name}>" for name in names)
        rule = f"multiples of {multiple}" if multiple > 1 else "from 1 to 9999"
        raise InputError(f"{key}={text} must read {form}, {rule}")
    return tuple(numbers)


def _number(key: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", text):
        raise InputError(f"{key}={text} must be a whole number")
    return int(text)


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _without(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


def _mistake(message: str) -> int:
    print(f"cdnasim: {' '.join(message.split())}", file=sys.stderr)
    return 1
