"""A simulated workgroup as a folder of rocprofv3's thread trace, and a check of such folders.

ROCm's rocprof-compute-viewer opens the folder. All times are shader clocks, all numbers integers.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cdnasim.cu.model import CuResult, InstructionClocks, Span, WaveRecord
from cdnasim.errors import InputError
from cdnasim.trace.model import KernelTrace, TraceInstruction, flat_instructions

VERSION = "3.0.0"  # of the files' layout
GFXIP, GFXV = 9, "vega"  # CDNA counts as graphics IP 9 and shares its viewer name
ENGINE, CU = 0, 0
TURN = 0  # of a wave in its slot: each holds one wave of the workgroup
CODE_OBJECT, DISPATCH = 1, 1
CODE_BYTES = 8  # between instructions: a trace has no addresses, they need only be distinct
INTEGER_BITS = 64  # of the format's numbers
COLUMNS = (
    "ISA",
    "_",
    "LineNumber",
    "Source",
    "Codeobj",
    "Vaddr",
    "Hit",
    "Latency",
    "Stall",
    "Idle",
)
STATES = ("EMPTY", "IDLE", "EXEC", "WAIT", "STALL")
EMPTY, EXEC, WAIT, STALL = (STATES.index(s) for s in ("EMPTY", "EXEC", "WAIT", "STALL"))
# What a wave asked to wait for is WAIT, what a unit or another wave denied it STALL. The model
# knows no Idle: what follows the issue of a barrier or branch is a stall of the next instruction,
# where a measured trace has it as a stall of the barrier and as Idle before the next instruction.
WAIT_CAUSES = ("vmcnt", "lgkmcnt", "barrier")


class Category(IntEnum):
    """What the format calls an executed instruction; VALU includes MFMA."""

    NONE = 0
    SMEM = 1
    SALU = 2
    VMEM = 3
    FLAT = 4
    LDS = 5
    VALU = 6
    TAKEN = 7
    NOT_TAKEN = 8
    IMMEDIATE = 9
    CONTEXT = 10
    MESSAGE = 11
    BVH = 12


CATEGORY = {  # start of the mnemonic → category; the first that fits
    "s_load": Category.SMEM,
    "s_buffer_load": Category.SMEM,
    "s_barrier": Category.IMMEDIATE,
    "s_setprio": Category.IMMEDIATE,
    "s_waitcnt": Category.IMMEDIATE,
    "s_nop": Category.IMMEDIATE,
    "s_endpgm": Category.MESSAGE,
    "s_": Category.SALU,
    "buffer_": Category.VMEM,
    "global_": Category.FLAT,
    "flat_": Category.FLAT,
    "ds_": Category.LDS,
    "v_": Category.VALU,
}
BRANCHES = ("s_branch", "s_cbranch")
COUNTER = {"vmem": "vm", "lds": "lgkm", "smem": "lgkm"}  # unit → what counts its operations

# Tables of the files: key → type.
Keys: TypeAlias = Mapping[str, type]
FILENAMES: Keys = {
    "global_begin_time": int,
    "gfxip": int,
    "gfxv": str,
    "version": str,
    "counter_names": list,
    "wave_filenames": dict,
}
CODE: Keys = {"version": str, "header": str, "code": list}
OCCUPANCY: Keys = {"dispatches": dict, "version": str}
WAVE_STATES: Keys = {"name": str, "time": list, "state": list}
WAVE_FILE: Keys = {
    "name": str,
    "duration": int,
    "num_insts": int,
    "num_stitched": int,
    "wave": dict,
}
WAVE: Keys = {
    "cu": int,
    "id": int,
    "simd": int,
    "slot": int,
    "begin": int,
    "end": int,
    "instructions": list,
    "timeline": list,
    "waitcnt": list,
}
# Rows of the files: types of the columns.
CODE_ROW = (str, int, int, str, int, int, int, int, int, int)  # COLUMNS
ENTRY_ROW = (str, int, int)  # file, begin, end
INSTRUCTION_ROW = (int, int, int, int, int)  # time, category, stall, duration, line
RUN_ROW = (int, int)  # state, clocks
WAIT_ROW = (int, list)  # line, operations
OPERATION_ROW = (int, int)  # line, 0
OCCUPANCY_ROW = (int, int, int, int, int, int)  # time, CU, SIMD, slot, 1 start or 0 end, dispatch
OCCUPANCY_START = 4
WAVE_KEYS = ("engine", "simd", "slot", "number")  # levels of wave_filenames
KIND = {int: "an integer", str: "a text", list: "a list", dict: "a table"}


class _CodeRow(NamedTuple):
    """A row of code.json; the sums are over all waves (clk)."""

    isa: str
    unused: int = 0
    line: int = 0
    source: str = ""
    code_object: int = CODE_OBJECT
    address: int = 0
    hit: int = 0
    latency: int = 0
    stall: int = 0
    idle: int = 0


@dataclass(frozen=True)
class _Executed:
    """One execution of instruction `key`: clk of its first attempt, its issue and its end."""

    key: int
    time: int
    issue: int
    end: int


@dataclass(frozen=True)
class _WaveTrace:
    """A wave as its file shows it. runs: [state, clk] from begin to end."""

    record: WaveRecord
    slot: int
    begin: int
    end: int
    executed: list[_Executed]
    runs: list[list[int]]

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Keys of the wave in filenames.json; the last counts the waves of a slot in turn."""
        return str(ENGINE), str(self.record.simd), str(self.slot), str(TURN)


def write_att(trace: KernelTrace, result: CuResult, folder: Path, *, kernel: str) -> None:
    """Write `result` into `folder`, made if need be; files of the same names are replaced.

    result: of `trace`, simulated with its spans kept. kernel: the name shown for the dispatch.
    Raises InputError if the folder cannot be written, ValueError for a `result` without spans.
    """
    if not result.spans:
        raise ValueError("the workgroup was simulated without keeping its spans")
    instructions = flat_instructions(trace)
    waves = _wave_traces(result)
    files: dict[str, Any] = {
        "filenames.json": _filenames(waves),
        "code.json": _code(trace, instructions, result, kernel),
        "occupancy.json": _occupancy(waves, kernel),
        "snapshots.json": {},
    }
    files |= {_wave_name(*w.place): _wave_file(w, instructions) for w in waves}
    for state, (times, counts) in enumerate(_states(waves)):
        files[f"wstates{state}.json"] = {"name": STATES[state], "time": times, "state": counts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            text = json.dumps(content, separators=(",", ":"))
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _wave_traces(result: CuResult) -> list[_WaveTrace]:
    spans: dict[int, list[Span]] = {w.wave: [] for w in result.waves}
    for span in result.spans:
        spans[span.wave].append(span)
    used: Counter[int] = Counter()
    traces = []
    for w in sorted(result.waves, key=lambda w: w.wave):
        mine = spans[w.wave]
        traces.append(
            _WaveTrace(w, used[w.simd], round(w.start), round(w.end), _executed(mine), _runs(mine))
        )
        used[w.simd] += 1
    return traces


def _executed(spans: list[Span]) -> list[_Executed]:
    """The wave's executions: the spans that hold an instruction and the one that issues it.

    What the wave spends after its last issue counts to that instruction's duration.
    """
    executed: list[_Executed] = []
    time: int | None = None
    for span in spans:
        time = round(span.start) if time is None else time
        if not span.cause:
            executed.append(_Executed(span.key, time, round(span.start), round(span.end)))
            time = None
    if executed and time is not None:
        executed[-1] = replace(executed[-1], end=round(spans[-1].end))
    return executed


def _runs(spans: list[Span]) -> list[list[int]]:
    runs: list[list[int]] = []
    for span in spans:
        # both ends are rounded, not the length: the runs must add up to the wave's life
        clocks = round(span.end) - round(span.start)
        state = EXEC if not span.cause else WAIT if span.cause in WAIT_CAUSES else STALL
        if runs and runs[-1][0] == state:
            runs[-1][1] += clocks
        elif clocks:
            runs.append([state, clocks])
    return runs


def _line(key: int) -> int:
    """LineNumber of an instruction, which is also its row: row 0 names the kernel."""
    return key + 1


def _wave_name(engine: str, simd: str, slot: str, number: str) -> str:
    return f"se{engine}_sm{simd}_sl{slot}_wv{number}.json"


def _filenames(waves: list[_WaveTrace]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for w in waves:
        engine, simd, slot, number = w.place
        numbers = tree.setdefault(engine, {}).setdefault(simd, {}).setdefault(slot, {})
        numbers[number] = [_wave_name(*w.place), w.begin, w.end]
    return {
        "global_begin_time": min(w.begin for w in waves),
        "gfxip": GFXIP,
        "gfxv": GFXV,
        "version": VERSION,
        "counter_names": [],
        "wave_filenames": tree,
    }


def _code(
    trace: KernelTrace, instructions: list[TraceInstruction], result: CuResult, kernel: str
) -> dict[str, Any]:
    """Instructions of all roles, one after the other, with their clocks summed over the waves."""
    rows = [_CodeRow(f"; {kernel}")]
    for key, i in enumerate(instructions):
        clocks = result.instructions.get(key, InstructionClocks())
        stall = sum(clocks.stalls.values())
        row = _CodeRow(
            _isa(i),
            line=_line(key),
            source=_source(trace.lines[i.line]),
            address=key * CODE_BYTES,
            hit=clocks.hits,
            latency=round(stall + clocks.issue),
            stall=round(stall),
        )
        rows.append(row)
    return {"version": VERSION, "header": ", ".join(COLUMNS), "code": rows}


def _isa(i: TraceInstruction) -> str:
    """The instruction as far as a trace knows it: a mnemonic, and what a wait leaves pending."""
    if i.unit == "wait":
        counts = [f"{c}cnt({n})" for c, n in (("vm", i.vm), ("lgkm", i.lgkm)) if n >= 0]
        return " ".join([i.mnemonic, *counts])
    return f"{i.mnemonic} {i.value}" if i.mnemonic == "s_setprio" else i.mnemonic


def _source(line: str) -> str:
    """file:number of a trace's line, without the statement behind it."""
    return ":".join(line.split(":")[:2])


def _occupancy(waves: list[_WaveTrace], kernel: str) -> dict[str, Any]:
    events = []
    for w in waves:
        for time, is_start in ((w.begin, 1), (w.end, 0)):
            events.append([time, CU, w.record.simd, w.slot, is_start, DISPATCH])
    events.sort(key=lambda event: event[0])
    return {str(ENGINE): events, "dispatches": {str(DISPATCH): kernel}, "version": VERSION}


def _wave_file(w: _WaveTrace, instructions: list[TraceInstruction]) -> dict[str, Any]:
    records = [
        [e.time, category, e.issue - e.time, e.end - e.time, _line(e.key)]
        for e, category in zip(w.executed, _categories(w.executed, instructions), strict=True)
    ]
    return {
        "name": f"SE{ENGINE}",
        "duration": w.end - w.begin,
        "num_insts": len(records),
        "num_stitched": len(records),
        "wave": {
            "cu": CU,
            "id": TURN,
            "simd": w.record.simd,
            "slot": w.slot,
            "begin": w.begin,
            "end": w.end,
            "instructions": records,
            "timeline": w.runs,
            "waitcnt": _waited_for(w.executed, instructions),
        },
    }


def _categories(
    executed: list[_Executed], instructions: list[TraceInstruction]
) -> Iterator[Category]:
    after = [e.key for e in executed[1:]]
    for e, following in zip(executed, [*after, None], strict=True):
        mnemonic = instructions[e.key].mnemonic
        if mnemonic.startswith(BRANCHES):
            is_taken = following not in (e.key + 1, None)
            yield Category.TAKEN if is_taken else Category.NOT_TAKEN
        else:
            fitting = (c for start, c in CATEGORY.items() if mnemonic.startswith(start))
            yield next(fitting, Category.NONE)


def _waited_for(executed: list[_Executed], instructions: list[TraceInstruction]) -> list[list[Any]]:
    """Per line of a wait the lines of the operations that it ever waited for, oldest first."""
    pending: dict[str, deque[int]] = {counter: deque() for counter in COUNTER.values()}
    waits: dict[int, dict[int, None]] = {}
    for e in executed:
        i = instructions[e.key]
        if i.unit in COUNTER:
            pending[COUNTER[i.unit]].append(_line(e.key))
        elif i.unit == "wait":
            lines = waits.setdefault(_line(e.key), {})
            for counter, left in (("vm", i.vm), ("lgkm", i.lgkm)):
                while 0 <= left < len(pending[counter]):
                    lines[pending[counter].popleft()] = None
    return [[wait, [[line, 0] for line in lines]] for wait, lines in waits.items()]


def _states(waves: list[_WaveTrace]) -> Iterator[tuple[list[int], list[int]]]:
    """Per state the clk at which the number of waves in it changes, and that number.

    The slots of the workgroup count as EMPTY before and after their waves.
    """
    first = min(w.begin for w in waves)
    changes = [Counter({first: 0}) for _ in STATES]
    for w in waves:
        time, before = first, None
        for state, clocks in [[EMPTY, w.begin - first], *w.runs, [EMPTY, 0]]:
            changes[state][time] += 1
            if before is not None:
                changes[before][time] -= 1
            time, before = time + clocks, state
    for change in changes:
        times, counts, count = [], [], 0
        for time in sorted(change):
            count += change[time]
            if change[time] or time == first:
                times.append(time)
                counts.append(count)
        yield times, counts


def check_att(folder: Path) -> list[str]:
    """What in `folder` is not as in a thread trace: a line each; none if all is well.

    Additional keys and files are allowed. Damaged and missing files are reported, not raised.
    """
    check = _Check(folder)
    lines = check.code()
    check.occupancy()
    for state in range(len(STATES)):
        check.wave_states(f"wstates{state}.json")
    check.table("snapshots.json", {})
    check.waves(lines)
    return check.found


@dataclass
class _Check:
    """The violations found so far, and what the wave files executed per line.

    all_read: whether no wave's instructions are missing.
    """

    folder: Path
    found: list[str] = field(default_factory=list)
    executed: Counter[int] = field(default_factory=Counter)
    all_read: bool = True

    def table(self, name: str, keys: Keys) -> dict[str, Any] | None:
        """The table in file `name`, or None, reported, if it or one of its keys is not right."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
            data = json.loads(text, parse_int=_integer)
        except OSError as error:
            self.found.append(f"{name}: cannot be read: {error.strerror or error}")
        except RecursionError:
            self.found.append(f"{name}: is nested too deeply")
        except ValueError as error:
            self.found.append(f"{name}: is not JSON: {error}")
        else:
            return self.keys(name, data, keys)
        return None

    def keys(self, place: str, data: Any, keys: Keys) -> dict[str, Any] | None:
        """`data` if it is a table with `keys` of their types; otherwise None, reported."""
        if type(data) is not dict:
            self.found.append(f"{place}: must be a table")
            return None
        wrong = [key for key, kind in keys.items() if type(data.get(key)) is not kind]
        for key in wrong:
            state = f"must be {KIND[keys[key]]}" if key in data else "is missing"
            self.found.append(f"{place}: '{key}' {state}")
        return None if wrong else data

    def each(self, place: str, rows: list[Any], problem: Callable[[Any], str]) -> bool:
        """Whether no row has a `problem`; the first one that has is reported for all."""
        bad = [(n, text) for n, row in enumerate(rows) if (text := problem(row))]
        if bad:
            others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            self.found.append(f"{place}[{bad[0][0]}]: {bad[0][1]}{others}")
        return not bad

    def code(self) -> dict[int, int] | None:
        """LineNumber → Hit, or None, reported, if the table is not right."""
        name = "code.json"
        data = self.table(name, CODE)
        if data is None or not self.each(f"{name}: code", data["code"], _row_problem(CODE_ROW)):
            return None
        rows = [_CodeRow(*row) for row in data["code"]]
        uses = Counter(row.line for row in rows)
        self.each(f"{name}: code", rows, _code_problem)
        self.each(f"{name}: code", rows, lambda row: _uses_problem(row.line, uses[row.line]))
        return {row.line: row.hit for row in rows}

    def occupancy(self) -> None:
        name = "occupancy.json"
        data = self.table(name, OCCUPANCY)
        if data is None:
            return
        self.each(f"{name}: dispatches", list(data["dispatches"].items()), _dispatch_problem)
        engines = [key for key in data if _is_number(key)]
        if not engines:
            self.found.append(f"{name}: has no shader engine")
        for engine in engines:
            if type(data[engine]) is not list:
                self.found.append(f"{name}: '{engine}' must be a list")
            else:
                self.each(f"{name}: {engine}", data[engine], _occupancy_problem)

    def wave_states(self, name: str) -> None:
        data = self.table(name, WAVE_STATES)
        if data is None:
            return
        if len(data["time"]) != len(data["state"]):
            self.found.append(f"{name}: 'time' and 'state' differ in length")
        self.each(f"{name}: state", data["state"], _count_problem)
        if self.each(f"{name}: time", data["time"], _integer_problem):
            self.each(f"{name}: time", list(pairwise(data["time"])), _order_problem)

    def waves(self, lines: dict[int, int] | None) -> None:
        """filenames.json, the wave files that it names, and their sums in code.json."""
        name = "filenames.json"
        data = self.table(name, FILENAMES)
        if data is None:
            return
        self.each(f"{name}: counter_names", data["counter_names"], _text_problem)
        for place, entry in self.wave_entries(f"{name}: wave_filenames", data["wave_filenames"]):
            if not self.wave(place, entry, lines):
                self.all_read = False
        if lines is not None and self.all_read:
            self.each("code.json: Hit", list(lines.items()), self.hit_problem)

    def hit_problem(self, item: tuple[int, int]) -> str:
        line, hits = item
        executed = self.executed[line]
        if hits == executed:
            return ""
        return f"line {line} has {hits}, the wave files execute it {executed} times"

    def wave_entries(
        self, place: str, tree: dict[str, Any], path: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        """The entries under engine, SIMD, slot and number, with that path."""
        if not tree:
            self.found.append(f"{place}: is empty")
            self.all_read = False
        for key, node in tree.items():
            here = (*path, key)
            is_entry = len(here) == len(WAVE_KEYS)
            wrong = _entry_problem(here, node) if is_entry else _table_problem(node)
            if not _is_number(key):
                wrong = f"key {key!r} must be a number"
            if wrong:
                self.found.append(f"{place}{list(here)}: {wrong}")
                self.all_read = False
            elif is_entry:
                yield here, node
            else:
                yield from self.wave_entries(place, node, here)

    def wave(self, place: tuple[str, ...], entry: list[Any], lines: dict[int, int] | None) -> bool:
        """Check a wave file; whether its instructions could be counted."""
        name, begin, end = entry
        data = self.table(name, WAVE_FILE)
        if data is None:
            return False
        wave = self.keys(f"{name}: wave", data["wave"], WAVE)
        if wave is None:
            return False
        if [wave["begin"], wave["end"]] != [begin, end]:
            self.found.append(f"{name}: begin and end differ from filenames.json's")
        if (str(wave["simd"]), str(wave["slot"])) != place[1:3]:
            self.found.append(f"{name}: simd and slot differ from filenames.json's")
        if data["duration"] != wave["end"] - wave["begin"] or data["duration"] < 0:
            self.found.append(f"{name}: 'duration' must be end - begin, from 0")
        if data["num_stitched"] > data["num_insts"]:
            self.found.append(f"{name}: 'num_stitched' is above 'num_insts'")
        self.timeline(name, wave)
        self.each(f"{name}: waitcnt", wave["waitcnt"], lambda row: _wait_problem(row, lines))
        return self.instructions(name, wave, lines)

    def timeline(self, name: str, wave: dict[str, Any]) -> None:
        if self.each(f"{name}: timeline", wave["timeline"], _run_problem):
            clocks = sum(clocks for _, clocks in wave["timeline"])
            life = wave["end"] - wave["begin"]
            if clocks != life:
                self.found.append(f"{name}: timeline: covers {clocks} clk of the wave's {life}")

    def instructions(self, name: str, wave: dict[str, Any], lines: dict[int, int] | None) -> bool:
        """Whether the rows could be counted."""
        rows, place = wave["instructions"], f"{name}: instructions"
        if not self.each(place, rows, _row_problem(INSTRUCTION_ROW)):
            return False
        lines_of_rows = [line for *_, line in rows]
        self.executed.update(lines_of_rows)
        self.each(place, rows, lambda row: _instruction_problem(row, wave["begin"], wave["end"]))
        self.each(place, lines_of_rows, lambda line: _line_problem(line, lines))
        self.each(place, list(pairwise(time for time, *_ in rows)), _order_problem)
        return True


def _integer(text: str) -> int:
    """A number of a file; ValueError beyond the format's range, so that sums can be printed."""
    value = int(text)
    if value.bit_length() >= INTEGER_BITS:
        raise ValueError(f"a number does not fit into {INTEGER_BITS} bits")
    return value


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdecimal()


def _row_problem(kinds: tuple[type, ...], *, may_be_longer: bool = False) -> Callable[[Any], str]:
    """What is wrong with a value that must be a row of `kinds`."""

    def problem(row: Any) -> str:
        if type(row) is not list:
            return "must be a list"
        if len(row) < len(kinds) or (len(row) > len(kinds) and not may_be_longer):
            return f"must have {len(kinds)} columns, not {len(row)}"
        for column, (value, kind) in enumerate(zip(row, kinds, strict=False)):
            if type(value) is not kind:
                return f"column {column} must be {KIND[kind]}"
        return ""

    return problem


def _code_problem(row: _CodeRow) -> str:
    if min(row.hit, row.latency, row.stall, row.idle) < 0:
        return "Hit, Latency, Stall and Idle must be from 0"
    return "" if row.latency >= row.stall else f"Latency {row.latency} is below Stall {row.stall}"


def _uses_problem(line: int, uses: int) -> str:
    return f"LineNumber {line} is used {uses} times" if uses > 1 else ""


def _entry_problem(place: tuple[str, ...], entry: Any) -> str:
    """What is wrong with the entry of the wave at `place` in wave_filenames."""
    wrong = _row_problem(ENTRY_ROW)(entry)
    name = _wave_name(*place)
    return wrong or ("" if entry[0] == name else f"{entry[0]!r} must be called {name}")


def _instruction_problem(row: Any, begin: int, end: int) -> str:
    time, category, stall, duration, _ = row
    if not 0 <= category < len(Category):
        return f"category {category} must be 0 to {len(Category) - 1}"
    if not 0 <= stall <= duration:
        return f"stall {stall} must be 0 to the duration, {duration}"
    if not begin <= time <= time + duration <= end:
        return f"{time} to {time + duration} is outside the wave's {begin} to {end}"
    return ""


def _run_problem(row: Any) -> str:
    wrong = _row_problem(RUN_ROW)(row)
    if wrong:
        return wrong
    state, clocks = row
    if not 0 <= state < len(STATES):
        return f"state {state} must be 0 to {len(STATES) - 1}"
    return "" if clocks >= 0 else "clocks must be from 0"


def _wait_problem(row: Any, lines: dict[int, int] | None) -> str:
    wrong = _row_problem(WAIT_ROW)(row)
    if wrong:
        return wrong
    wait, operations = row
    for wrong in map(_row_problem(OPERATION_ROW), operations):
        if wrong:
            return f"an operation {wrong}"
    problems = (_line_problem(line, lines) for line in [wait, *(line for line, _ in operations)])
    return next(filter(None, problems), "")


def _line_problem(line: int, lines: dict[int, int] | None) -> str:
    """What is wrong with a line; nothing if code.json itself cannot tell."""
    return "" if lines is None or line in lines else f"line {line} is not in code.json"


def _occupancy_problem(row: Any) -> str:
    # newer writers append columns
    wrong = _row_problem(OCCUPANCY_ROW, may_be_longer=True)(row)
    if wrong:
        return wrong
    is_start = row[OCCUPANCY_START]
    return "" if is_start in (0, 1) else f"{is_start} must be 1, start, or 0, end"


def _dispatch_problem(item: tuple[str, Any]) -> str:
    number, name = item
    return _text_problem(name) if _is_number(number) else f"key {number!r} must be a number"


def _order_problem(pair: tuple[int, int]) -> str:
    time, following = pair
    return "" if time <= following else f"time {time} comes before {following}"


def _integer_problem(value: Any) -> str:
    return "" if type(value) is int else "must be an integer"


def _count_problem(value: Any) -> str:
    return _integer_problem(value) or ("" if value >= 0 else "must be from 0")


def _text_problem(value: Any) -> str:
    return "" if type(value) is str else "must be a text"


def _table_problem(value: Any) -> str:
    return "" if type(value) is dict else "must be a table"
