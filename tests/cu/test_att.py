"""The thread-trace folder: valid as such, the same clocks as the result, damage reported."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cdnasim.cu.att import check_att, write_att
from cdnasim.cu.model import CuResult
from cdnasim.cu.profile import run_steps
from cdnasim.errors import InputError
from cdnasim.trace.model import SIMDS, KernelTrace, flat_instructions
from hk_kernels.catalog import gemm_trace

KERNELS = {
    "pingpong8": (256, 256, 64),
    "interleave4": (256, 256, 64),
    "specialized:p=4,c=8": (128, 256, 64),
}
STEPS = 4
WAITING = ("vmcnt", "lgkmcnt", "barrier")
EXEC, WAIT = 2, 3
TAKEN, NOT_TAKEN = 7, 8
WAVE = "se0_sm1_sl0_wv0.json"


class Written(NamedTuple):
    """A folder and what it was written from."""

    folder: Path
    trace: KernelTrace
    result: CuResult

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def entries(self) -> Iterator[tuple[str, int, int]]:
        """File, begin and end of every wave, in filenames.json's order."""
        for simds in self.read("filenames.json")["wave_filenames"].values():
            for slots in simds.values():
                for numbers in slots.values():
                    yield from numbers.values()

    def waves(self) -> dict[int, dict[str, Any]]:
        """Number in the workgroup → wave: the SIMDs take them in turn."""
        waves = [self.read(name)["wave"] for name, _, _ in self.entries()]
        return {w["simd"] + SIMDS * w["slot"]: w for w in waves}

    def isa(self) -> dict[int, str]:
        return {row[2]: row[0] for row in self.read("code.json")["code"]}


@pytest.fixture(scope="module", params=KERNELS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(request.param, tmp_path_factory.mktemp("att") / "new" / "folder")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("specialized:p=4,c=8", tmp_path_factory.mktemp("sound")).folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of the sound folder, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "att"))


def write(schedule: str, folder: Path) -> Written:
    trace = gemm_trace(schedule, "gfx950", "bf16", KERNELS[schedule])
    result = run_steps(trace, STEPS, keep_spans=True)
    write_att(trace, result, folder, kernel=schedule)
    return Written(folder, trace, result)


def test_the_folder_is_valid(written: Written) -> None:
    assert check_att(written.folder) == []


def test_every_wave_has_a_file_with_its_life(written: Written) -> None:
    waves = written.waves()
    assert len(list(written.entries())) == len(waves)
    assert waves.keys() == {w.wave for w in written.result.waves}
    for w in written.result.waves:
        shown = waves[w.wave]
        assert (shown["simd"], shown["begin"], shown["end"]) == (w.simd, w.start, w.end)


def test_the_code_has_all_issue_and_stall_time(written: Written) -> None:
    columns = list(zip(*written.read("code.json")["code"], strict=True))
    hits, latency, stall, idle = (sum(column) for column in columns[6:])
    waves = written.result.waves
    assert stall == sum(sum(w.stalls.values()) for w in waves)
    assert latency == stall + sum(w.busy for w in waves) == sum(w.end - w.start for w in waves)
    assert hits == sum(len(w["instructions"]) for w in written.waves().values())
    assert idle == 0


def test_lines_of_the_code_are_the_trace_and_its_source(written: Written) -> None:
    rows = written.read("code.json")["code"][1:]
    instructions = flat_instructions(written.trace)
    assert [row[0].split()[0] for row in rows] == [i.mnemonic for i in instructions]
    for row, i in zip(rows, instructions, strict=True):
        assert re.fullmatch(r"gemm\.py:\d+", row[3])
        assert written.trace.lines[i.line].startswith(row[3] + ":")
    assert len({row[5] for row in rows}) == len(rows)


def test_the_records_of_a_wave_follow_one_another(written: Written) -> None:
    clocks: Counter[int] = Counter()
    for wave in written.waves().values():
        records = wave["instructions"]
        assert records[0][0] == wave["begin"]
        assert records[-1][0] + records[-1][3] == wave["end"]
        assert all(a[0] + a[3] == b[0] for a, b in pairwise(records))
        for _, _, _, duration, line in records:
            clocks[line] += duration
    assert clocks == {row[2]: row[7] for row in written.read("code.json")["code"] if row[6]}


def test_the_timeline_is_what_the_wave_spent_its_life_on(written: Written) -> None:
    for w in written.result.waves:
        runs = written.waves()[w.wave]["timeline"]
        assert all(a[0] != b[0] for a, b in pairwise(runs))
        clocks: Counter[int] = Counter()
        for state, clk in runs:
            clocks[state] += clk
        assert clocks[EXEC] == w.busy
        assert clocks[WAIT] == sum(clk for cause, clk in w.stalls.items() if cause in WAITING)


def test_every_loop_ends_with_one_branch_not_taken(written: Written) -> None:
    isa = written.isa()
    for wave in written.waves().values():
        branches = [r for r in wave["instructions"] if isa[r[4]].startswith("s_cbranch")]
        assert {r[1] for r in branches} == {TAKEN, NOT_TAKEN}
        ends = Counter(r[4] for r in branches if r[1] == NOT_TAKEN)
        assert ends == dict.fromkeys((r[4] for r in branches), 1)


def test_categories_follow_the_mnemonic(written: Written) -> None:
    expected = {"v_": 6, "ds_": 5, "buffer_": 3, "s_wait": 9, "s_bar": 9, "s_setp": 9, "s_mov": 2}
    isa = written.isa()
    for wave in written.waves().values():
        seen = {(isa[line], category) for _, category, _, _, line in wave["instructions"]}
        for start, category in expected.items():
            assert {c for name, c in seen if name.startswith(start)} <= {category}


def test_waits_name_the_operations_that_they_do_not_leave_pending(written: Written) -> None:
    """How many may stay pending is read from the text of the wait, as anybody's reader would."""
    isa = written.isa()
    for wave in written.waves().values():
        lines = [r[4] for r in wave["instructions"]]
        expected: dict[int, set[int]] = {n: set() for n in lines if isa[n].startswith("s_waitcnt")}
        for counter, start in (("vmcnt", "buffer_"), ("lgkmcnt", ("ds_", "s_load"))):
            pending: list[int] = []  # lines of operations not waited for
            for line in lines:
                if isa[line].startswith(start):
                    pending.append(line)
                elif left := re.search(rf"\b{counter}\((\d+)\)", isa[line]):
                    keep = int(left[1])
                    expected[line] |= {
                        op for n, op in enumerate(pending) if len(pending) - n > keep
                    }
                    pending = pending[-keep:] if keep else []
        assert {wait: {op for op, _ in ops} for wait, ops in wave["waitcnt"]} == expected
        assert any(expected.values())


def test_all_waves_are_in_a_state_at_all_times(written: Written) -> None:
    states = [written.read(f"wstates{n}.json") for n in range(5)]
    changes: Counter[int] = Counter()
    for state in states:
        for time, before, count in zip(
            state["time"], [0, *state["state"]], state["state"], strict=False
        ):
            changes[time] += count - before
    assert changes.pop(0) == len(written.result.waves)
    assert set(changes.values()) == {0}
    running = zip(pairwise(states[EXEC]["time"]), states[EXEC]["state"], strict=False)
    clocks = sum((end - start) * count for (start, end), count in running)
    assert clocks == sum(w.busy for w in written.result.waves)


def test_the_occupancy_has_the_start_and_end_of_every_wave(written: Written) -> None:
    occupancy = written.read("occupancy.json")
    assert len(occupancy["dispatches"]) == 1
    events = {(*row[2:5], row[0]) for row in occupancy["0"]}
    for wave in written.waves().values():
        for is_start, time in ((1, wave["begin"]), (0, wave["end"])):
            assert (wave["simd"], wave["slot"], is_start, time) in events
    assert len(events) == len(occupancy["0"]) == 2 * len(written.result.waves)


def test_fractions_of_a_clock_keep_the_folder_valid(written: Written, tmp_path: Path) -> None:
    def scaled(record: Any) -> Any:
        start, end = 1.37 * record.start, 1.37 * record.end
        return dataclasses.replace(record, start=start, end=end)

    waves = [scaled(w) for w in written.result.waves]
    spans = [scaled(s) for s in written.result.spans]
    result = dataclasses.replace(written.result, waves=waves, spans=spans)
    write_att(written.trace, result, tmp_path, kernel="slower")
    assert check_att(tmp_path) == []


def test_time_after_the_last_issue_counts_to_the_last_instruction(
    written: Written, tmp_path: Path
) -> None:
    def longer(w: Any) -> Any:
        return dataclasses.replace(w, end=w.end + 8)

    tails = [
        dataclasses.replace(s, start=s.end, end=s.end + 8, cause="end")
        for s in {s.wave: s for s in written.result.spans}.values()
    ]
    result = dataclasses.replace(
        written.result,
        waves=[longer(w) for w in written.result.waves],
        spans=[*written.result.spans, *tails],
    )
    write_att(written.trace, result, tmp_path, kernel="with tails")
    assert check_att(tmp_path) == []
    last = json.loads((tmp_path / WAVE).read_text())["wave"]["instructions"][-1]
    assert last[3] == written.read(WAVE)["wave"]["instructions"][-1][3] + 8


def test_a_result_without_spans_is_refused(written: Written, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="spans"):
        result = dataclasses.replace(written.result, spans=[])
        write_att(written.trace, result, tmp_path, kernel="none")


@pytest.mark.parametrize("place", ["file", "file/below", "folder"])
def test_a_folder_that_cannot_be_written_is_one_clear_line(
    written: Written, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "code.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"^[^\n]*: cannot be written: [^\n]+$") as error:
        write_att(written.trace, written.result, tmp_path / place, kernel="none")
    assert str(tmp_path / place) in str(error.value)


def test_additional_keys_and_files_are_allowed(folder: Path) -> None:
    (folder / "realtime.json").write_text("{}")
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"new": [None]}))
    occupancy = json.loads((folder / "occupancy.json").read_text())
    for row in occupancy["0"]:
        row.append("workgroup")
    (folder / "occupancy.json").write_text(json.dumps(occupancy))
    assert check_att(folder) == []


def damaged(folder: Path, name: str, damage: Callable[[Any], object]) -> list[str]:
    """The violations once `damage` has changed the JSON of a file in place."""
    data = json.loads((folder / name).read_text())
    damage(data)
    (folder / name).write_text(json.dumps(data))
    return reported(folder)


def reported(folder: Path) -> list[str]:
    """The violations, of which each must be one line that names a file."""
    found = check_att(folder)
    assert all(re.match(r"\w+\.json: ", line) and len(line.splitlines()) == 1 for line in found)
    return found


def put(*path: Any, value: Any) -> Callable[[Any], object]:
    """A damage: the value at `path` replaced; a function gets the old one."""

    def damage(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value(data[path[-1]]) if callable(value) else value

    return damage


def drop(*path: Any) -> Callable[[Any], object]:
    def damage(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return damage


ENTRY = ("wave_filenames", "0", "1", "0", "0")
FIRST = ("wave", "instructions", 0)
DAMAGES: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "no version": ("filenames.json", drop("version"), "'version' is missing"),
    "no waves": ("filenames.json", put("wave_filenames", value={}), "is empty"),
    "SIMD without waves": ("filenames.json", put(*ENTRY[:3], value={}), "is empty"),
    "wave begin": ("filenames.json", put(*ENTRY, 1, value=1), "differ from filenames.json's"),
    "wave end": ("filenames.json", put(*ENTRY, 2, value=lambda n: n + 4), "differ"),
    "other file": ("filenames.json", put(*ENTRY, 0, value="../se0.json"), "must be called"),
    "short entry": ("filenames.json", drop(*ENTRY, 2), "must have 3 columns, not 2"),
    "named slot": ("filenames.json", put(*ENTRY[:3], value=lambda s: {"a\n": s}), "a number"),
    "wave left out": ("filenames.json", drop(*ENTRY[:3], "1"), "code.json: Hit"),
    "too few hits": ("code.json", put("code", 3, 6, value=lambda n: n - 1), "code.json: Hit"),
    "latency below": ("code.json", put("code", 3, 7, value=-1), "must be from 0"),
    "stall above": ("code.json", put("code", 3, 8, value=10**9), "is below Stall"),
    "line twice": ("code.json", put("code", 3, 2, value=2), "used 2 times"),
    "line missing": ("code.json", drop("code", 3), "is not in code.json"),
    "row short": ("code.json", drop("code", 3, 9), "must have 10 columns, not 9"),
    "hit a float": ("code.json", put("code", 3, 6, value=8.0), "column 6 must be an integer"),
    "hit a truth": ("code.json", put("code", 3, 6, value=True), "column 6 must be an integer"),
    "hit too long": ("code.json", put("code", 3, 6, value=10**30), "64 bits"),
    "engine missing": ("occupancy.json", drop("0"), "has no shader engine"),
    "event": ("occupancy.json", put("0", 0, 4, value=2), "must be 1, start, or 0, end"),
    "dispatch": ("occupancy.json", put("dispatches", "1", value=7), "must be a text"),
    "dispatch id": ("occupancy.json", put("dispatches", "x", value="name"), "a number"),
    "state counts": ("wstates2.json", put("state", 0, value=-1), "must be from 0"),
    "state times": ("wstates3.json", put("time", 0, value=10**9), "comes before"),
    "state lengths": ("wstates4.json", drop("time", -1), "differ in length"),
    "duration": (WAVE, put("duration", value=lambda n: n + 1), "must be end - begin"),
    "stitched": (WAVE, put("num_stitched", value=10**9), "above 'num_insts'"),
    "other SIMD": (WAVE, put("wave", "simd", value=2), "simd and slot differ"),
    "other slot": (WAVE, put("wave", "slot", value=2), "simd and slot differ"),
    "timeline long": (WAVE, put("wave", "timeline", 0, 1, value=lambda n: n + 4), "covers"),
    "timeline state": (WAVE, put("wave", "timeline", 0, 0, value=5), "must be 0 to 4"),
    "timeline back": (WAVE, put("wave", "timeline", 0, 1, value=-4), "must be from 0"),
    "category": (WAVE, put(*FIRST, 1, value=13), "category 13 must be 0 to 12"),
    "before begin": (WAVE, put(*FIRST, 0, value=-4), "is outside the wave's"),
    "after end": (WAVE, put("wave", "instructions", -1, 3, value=10**9), "is outside"),
    "out of order": (WAVE, put(*FIRST, 0, value=400), "comes before"),
    "stall too long": (WAVE, put(*FIRST, 2, value=10**9), "must be 0 to the duration"),
    "unknown line": (WAVE, put(*FIRST, 4, value=10**9), "is not in code.json"),
    "record lost": (WAVE, drop("wave", "instructions", 0), "code.json: Hit"),
    "wait line": (WAVE, put("wave", "waitcnt", 0, 0, value=-1), "is not in code.json"),
    "waited line": (WAVE, put("wave", "waitcnt", 0, 1, 0, 0, value=-1), "is not in code.json"),
    "waited row": (WAVE, put("wave", "waitcnt", 0, 1, 0, value=[1]), "must have 2 columns"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_reported(folder: Path, name: str) -> None:
    file, damage, expected = DAMAGES[name]
    assert any(expected in line for line in damaged(folder, file, damage))


FILES = ["filenames.json", "code.json", "occupancy.json", "snapshots.json", "wstates0.json", WAVE]
CONTENTS = {
    "empty": b"",
    "cut": b'{"version": "3',
    "bytes": b"\xff\xfe",
    "nothing": b"null",
    "list": b"[]",
    "deep": b"[" * 200_000,
    "digits": b"9" * 10_000,
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_tables_are_reported(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert [line for line in reported(folder) if line.startswith(f"{name}: ")]


@pytest.mark.parametrize("name", FILES)
def test_missing_files_are_reported(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert reported(folder) == [f"{name}: cannot be read: No such file or directory"]
    (folder / name).mkdir()
    assert reported(folder) == [f"{name}: cannot be read: Is a directory"]


def test_a_missing_folder_and_a_file_are_reported(tmp_path: Path) -> None:
    assert reported(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    assert reported(tmp_path / "file")


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a table; of lists of rows only the first row."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            rows = value[:1] if value and isinstance(value, list) and key != 0 else value
            yield from paths(rows, (*path, key))


@pytest.mark.parametrize("name", [name for name in FILES if name != "snapshots.json"])
def test_a_value_of_another_type_is_reported_wherever_it_is(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    for path in paths(json.loads(text)):
        (folder / name).write_text(text)
        assert damaged(folder, name, put(*path, value=None)), path
