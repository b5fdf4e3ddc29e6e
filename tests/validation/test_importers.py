"""Profilers' CSV files as measured rows, and one clear line for every damaged or foreign file."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdnasim.errors import InputError
from cdnasim.validation.importers import (
    Agent,
    Dispatch,
    Pass,
    read_ncu,
    read_rocprof,
    to_measured,
    write_measured,
)
from cdnasim.validation.measured import Measurement, read_measured

Line = dict[str, object]


def names(header: str) -> list[str]:
    return header.split()


GEMM = "void gemm<256, 256>(float*, int)"
TRACE = names(
    "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id "
    "Start_Timestamp End_Timestamp LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count "
    "SGPR_Count Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y "
    "Grid_Size_Z"
)
COUNTERS = names(
    "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Id "
    "Kernel_Name Workgroup_Size LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count SGPR_Count "
    "Counter_Name Counter_Value Start_Timestamp End_Timestamp"
)
AGENTS = names(
    "Node_Id Logical_Node_Id Agent_Type Cpu_Cores_Count Simd_Count Cpu_Core_Id_Base Simd_Id_Base "
    "Max_Waves_Per_Simd Lds_Size_In_Kb Gds_Size_In_Kb Num_Gws Wave_Front_Size Num_Xcc Cu_Count "
    "Array_Count Num_Shader_Banks Simd_Arrays_Per_Engine Cu_Per_Simd_Array Simd_Per_Cu "
    "Max_Slots_Scratch_Cu Gfx_Target_Version Vendor_Id Device_Id Location_Id Domain "
    "Drm_Render_Minor Num_Sdma_Engines Num_Sdma_Xgmi_Engines Num_Sdma_Queues_Per_Engine "
    "Num_Cp_Queues Max_Engine_Clk_Ccompute Max_Engine_Clk_Fcompute Sdma_Fw_Version Fw_Version "
    "Capability Cu_Per_Engine Max_Waves_Per_Cu Family_Id Workgroup_Max_Size Grid_Max_Size "
    "Local_Mem_Size Hive_Id Gpu_Id Workgroup_Max_Dim_X Workgroup_Max_Dim_Y Workgroup_Max_Dim_Z "
    "Grid_Max_Dim_X Grid_Max_Dim_Y Grid_Max_Dim_Z Name Vendor_Name Product_Name Model_Name"
)
SHAPE: Line = {
    "Agent_Id": "Agent 2",
    "Kernel_Name": GEMM,
    "LDS_Block_Size": 131072,
    "Scratch_Size": 16,
    "VGPR_Count": 128,
    "Accum_VGPR_Count": 132,
    "SGPR_Count": 96,
}
CASE = {"m": "4096", "n": "4096", "k": "4096"}
FLOP = 2 * 4096**3
ACTIVE, BUSY = "GRBM_GUI_ACTIVE", "SQ_VALU_MFMA_BUSY_CYCLES"
HIT, MISS = "TCC_HIT_sum", "TCC_MISS_sum"


def text(columns: Sequence[str], lines: Sequence[Line]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="0", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def traced(dispatch: int, us: float, **changes: object) -> Line:
    """A line of the kernel trace: 256 workgroups of 512 work-items."""
    start = 123_456_789_012_345 + dispatch * 1_000_000
    sizes = {f"Workgroup_Size_{axis}": n for axis, n in zip("XYZ", (512, 1, 1), strict=True)}
    grid = {f"Grid_Size_{axis}": n for axis, n in zip("XYZ", (8192, 16, 1), strict=True)}
    times = {"Start_Timestamp": start, "End_Timestamp": start + round(us * 1000)}
    return {**SHAPE, **sizes, **grid, **times, "Dispatch_Id": dispatch, **changes}


def counted(dispatch: int, us: float, counters: dict[str, float], **changes: object) -> list[Line]:
    line = traced(dispatch, us) | {"Grid_Size": 8192 * 16, "Workgroup_Size": 512} | changes
    return [
        line | {"Counter_Name": name, "Counter_Value": f"{value:.8e}"}
        for name, value in counters.items()
    ]


CPU: Line = {"Node_Id": 0, "Agent_Type": "CPU", "Name": "AMD EPYC 9575F"}
GPU: Line = {
    "Node_Id": 2,
    "Agent_Type": "GPU",
    "Simd_Count": 1024,
    "Num_Xcc": 8,
    "Cu_Count": 256,
    "Simd_Per_Cu": 4,
    "Cu_Per_Simd_Array": 9,
    "Array_Count": 32,
    "Name": "gfx950",
}
TRACE_TEXT = text(TRACE, [traced(i, us) for i, us in ((1, 300), (2, 100), (3, 110), (4, 120))])
PASS_1 = text(
    COUNTERS,
    [
        line
        for i in (11, 12, 13, 14)
        for line in counted(i, 125, {ACTIVE: 8 * 250_000, BUSY: 1024 * 200_000})
    ],
)
PASS_2 = text(
    COUNTERS,
    [
        line
        for i in (5, 6, 7, 8)
        for line in counted(i, 140, {ACTIVE: 8 * 280_000, HIT: 600 + i, MISS: 393})
    ],
)
AGENT_TEXT = text(AGENTS, [CPU, GPU])
FILES = {
    "host/run_kernel_trace.csv": TRACE_TEXT,
    "host/run_agent_info.csv": AGENT_TEXT,
    "host/pass_1/77_counter_collection.csv": PASS_1,
    "host/pass_1/77_agent_info.csv": AGENT_TEXT,
    "host/pass_2/78_counter_collection.csv": PASS_2,
}


def folder(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def measured(dispatches: list[Dispatch], machine: str = "mi355x", **more: int) -> list[Measurement]:
    return to_measured(
        dispatches,
        suite="mine",
        machine=machine,
        kernel="gemm",
        params=CASE,
        source="a run, 2025",
        **more,
    )


def values(rows: list[Measurement]) -> dict[str, float]:
    return {m.metric: m.value for m in rows}


def test_a_folder_of_a_trace_and_two_passes_is_read(tmp_path: Path) -> None:
    found = read_rocprof([folder(tmp_path, FILES)], "gemm<")
    assert [d.dispatch_id for d in found] == [1, 2, 3, 4]
    assert [d.duration_us for d in found] == [300, 100, 110, 120]
    second = found[1]
    assert second == Dispatch(
        kernel=GEMM,
        dispatch_id=2,
        where=f"{tmp_path / 'host/run_kernel_trace.csv'}:3",
        agent="Agent 2",
        device=Agent("gfx950", 8, 256),
        duration_us=100,
        workgroups=256,
        workgroup_size=512,
        vgprs=128,
        agprs=132,
        sgprs=96,
        lds_bytes=131072,
        scratch_bytes=16,
        passes=(
            Pass({ACTIVE: 2_000_000, BUSY: 204_800_000}, 125),
            Pass({ACTIVE: 2_240_000, HIT: 606, MISS: 393}, 140),
        ),
    )
    assert second.counters == {ACTIVE: 2_000_000, BUSY: 204_800_000, HIT: 606, MISS: 393}


def test_figures_of_rocprof_are_medians_each_from_its_own_run(tmp_path: Path) -> None:
    rows = measured(read_rocprof([folder(tmp_path, FILES)]), skip_first=1)
    assert values(rows) == pytest.approx(
        {
            "tflops": FLOP / 110e-6 / 1e12,
            "time_us": 110,
            "cycles": 250_000,
            "clock_mhz": 2000,
            "l2_hit": 607 / 1000,
            "mfma_utilisation": 0.8,
        }
    )
    assert {m.unit for m in rows} == {"TFLOPS", "us", "clk", "MHz", "fraction"}


def test_bytes_to_the_fabric_do_not_become_hbm_bytes(tmp_path: Path) -> None:
    names = ("TCC_EA0_RDREQ_sum", "TCC_EA0_RDREQ_DRAM_sum", "FETCH_SIZE", "WRITE_SIZE", ACTIVE)
    path = tmp_path / "x_counter_collection.csv"
    path.write_text(text(COUNTERS, counted(1, 5, dict.fromkeys(names, 8e6))))
    assert set(values(measured(read_rocprof([path])))) == {"cycles", "clock_mhz"}


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    rows = measured(read_rocprof([folder(tmp_path, FILES)]))
    path = tmp_path / "measured.csv"
    write_measured(path, rows)
    back = read_measured(path, "mine")
    assert [replace(m, value=0, where="") for m in back] == [
        replace(m, value=0, where="") for m in rows
    ]
    assert values(back) == pytest.approx(values(rows), rel=1e-9)


def test_order_of_columns_extra_columns_and_dos_lines_do_not_matter(tmp_path: Path) -> None:
    plain = read_rocprof([folder(tmp_path / "a", FILES)])
    turned = {}
    for name, content in FILES.items():
        lines = list(csv.reader(io.StringIO(content)))
        table = [[f"{'New' if i == 0 else 7}", *reversed(cells)] for i, cells in enumerate(lines)]
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows(table)
        turned[name] = "\ufeff" + out.getvalue()
    other = read_rocprof([folder(tmp_path / "b", turned)])
    assert [replace(d, where="") for d in other] == [replace(d, where="") for d in plain]


def test_only_a_few_columns_are_needed(tmp_path: Path) -> None:
    files = {
        "kernel_trace.csv": text(
            ["Dispatch_Id", "Kernel_Name", "Start_Timestamp", "End_Timestamp"], [traced(1, 50)]
        ),
        "pass_1/counter_collection.csv": text(
            ["Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"],
            counted(1, 99, {ACTIVE: 800_000}),
        ),
        "agent_info.csv": text(["Node_Id", "Agent_Type"], [CPU, GPU]),
    }
    (d,) = read_rocprof([folder(tmp_path, files)])
    assert set(d.unknown()) == {
        *("device", "workgroups", "workgroup_size"),
        *("vgprs", "agprs", "sgprs", "lds_bytes", "scratch_bytes"),
    }
    assert values(measured([d]))["clock_mhz"] == 2000  # no other duration than the trace's


def test_what_a_trace_lacks_comes_from_the_counters(tmp_path: Path) -> None:
    short = [c for c in TRACE if not c.startswith(("VGPR", "Grid", "Workgroup", "Agent"))]
    files = FILES | {"host/run_kernel_trace.csv": text(short, [traced(i, 100) for i in range(4)])}
    first = read_rocprof([folder(tmp_path, files)])[0]
    assert (first.vgprs, first.workgroups, first.agent) == (128, 256, "Agent 2")
    assert first.device == Agent("gfx950", 8, 256)


def test_files_are_told_by_their_headers(tmp_path: Path) -> None:
    names = {"t.csv": TRACE_TEXT, "c.txt": PASS_1, "a": AGENT_TEXT}
    folder(tmp_path, names)
    found = read_rocprof([tmp_path / name for name in names])
    assert found[0].duration_us == 300 and found[0].counters[BUSY] and found[0].device


def test_launches_are_put_in_order_and_other_kernels_left_out(tmp_path: Path) -> None:
    fill = {"Kernel_Name": "fill"}
    files = {
        "a_kernel_trace.csv": text(TRACE, [traced(3, 30), traced(1, 9, **fill), traced(2, 20)]),
        "pass_1/b_counter_collection.csv": text(
            COUNTERS,
            [
                *counted(9, 5, {ACTIVE: 3}),
                *counted(7, 5, {ACTIVE: 2}),
                *counted(8, 5, {ACTIVE: 1}, **fill),
            ],
        ),
    }
    found = read_rocprof([folder(tmp_path, files)], "^void gemm")
    assert [(d.duration_us, d.counters[ACTIVE]) for d in found] == [(20, 2), (30, 3)]
    with pytest.raises(InputError, match=r"launch 1 is of kernel 'void gemm.* but of 'fill' at"):
        read_rocprof([tmp_path])


def test_time_comes_from_the_trace_without_counters(tmp_path: Path) -> None:
    slow = text(TRACE, [traced(i, 999) for i in (1, 2, 3, 4)])
    files = FILES | {"host/pass_1/77_kernel_trace.csv": slow}
    assert read_rocprof([folder(tmp_path / "both", files)])[0].duration_us == 300
    del files["host/run_kernel_trace.csv"]
    assert read_rocprof([folder(tmp_path / "one", files)])[0].duration_us == 999


def test_passes_are_numbered_not_spelt(tmp_path: Path) -> None:
    files = {
        f"pass_{n}/1_counter_collection.csv": text(COUNTERS, counted(1, 5, {ACTIVE: n}))
        for n in (10, 9)
    }
    (d,) = read_rocprof([folder(tmp_path, files)])
    assert [p.counters[ACTIVE] for p in d.passes] == [9, 10] and d.counters[ACTIVE] == 9


def test_a_ratio_comes_from_one_pass_if_any_has_both_counters() -> None:
    both = Pass({ACTIVE: 8_000, BUSY: 1024 * 500}, 1)
    d = Dispatch(GEMM, 1, "f:2", passes=(Pass({ACTIVE: 80_000}, 1), both))
    assert values(measured([d]))["mfma_utilisation"] == 0.5
    d = Dispatch(GEMM, 1, "f:2", passes=(Pass({HIT: 1}), Pass({MISS: 3})))
    assert values(measured([d])) == {"l2_hit": 0.25}


NO_DISPATCH = TRACE_TEXT.splitlines()[0] + "\n"
SQLITE = b"SQLite format 3\0" + bytes(84)
A_TRACE, A_PASS, AN_AGENT = "x_kernel_trace.csv", "x_counter_collection.csv", "x_agent_info.csv"


def edited(content: str, old: str, new: str, count: int = 1) -> str:
    assert old in content
    return content.replace(old, new, count)


BAD_ROCPROF: dict[str, tuple[dict[str, str | bytes], str]] = {
    "empty trace": ({A_TRACE: ""}, "x_kernel_trace.csv:1: the file is empty; expected a kernel_tr"),
    "blank trace": ({A_TRACE: "\n \n"}, ":1: the file is empty"),
    "header only": ({A_TRACE: NO_DISPATCH}, ":1: the table has a header but no line"),
    "no header": ({A_TRACE: "\n".join(TRACE_TEXT.splitlines()[1:])}, ":1: column 'Kernel_Name' is"),
    "no end": (
        {A_TRACE: edited(TRACE_TEXT, "End_T", "T")},
        ":1: column 'End_Timestamp' is missing, got 'Kind,Agent_Id",
    ),
    "no counter value": (
        {A_PASS: edited(PASS_1, "Counter_Value", "Value")},
        ":1: column 'Counter_Value' is missing",
    ),
    "no kernel name": (
        {A_PASS: edited(PASS_1, "Kernel_Name", "Name")},
        ":1: column 'Kernel_Name' is missing",
    ),
    "column twice": (
        {A_TRACE: edited(TRACE_TEXT, "Queue_Id", "Agent_Id")},
        ":1: column 'Agent_Id' is given twice",
    ),
    "too few cells": (
        {A_TRACE: TRACE_TEXT.rstrip().rpartition(",")[0] + "\n"},
        ":5: 21 cells, but the header has 22",
    ),
    "too many cells": ({A_TRACE: TRACE_TEXT.rstrip() + ",1\n"}, ":5: 23 cells, but the header has"),
    "dispatch id": (
        {A_TRACE: text(TRACE, [traced(1, 5, Dispatch_Id="one")])},
        ":2: Dispatch_Id 'one' must be a whole number from 0",
    ),
    "negative id": (
        {A_TRACE: text(TRACE, [traced(1, 5, Dispatch_Id=-1)])},
        ":2: Dispatch_Id '-1' must be a whole number",
    ),
    "time": (
        {A_TRACE: text(TRACE, [traced(1, 5), traced(2, 5, End_Timestamp="5 us")])},
        ":3: End_Timestamp '5 us' must be a whole number",
    ),
    "no time": (
        {A_TRACE: text(TRACE, [traced(1, 5, End_Timestamp="")])},
        ":2: column 'End_Timestamp' is empty",
    ),
    "negative duration": (
        {A_TRACE: text(TRACE, [traced(1, -5)])},
        ":2: End_Timestamp 123456790007345 must be after Start_Timestamp 123456790012345 (ns)",
    ),
    "no duration": ({A_TRACE: text(TRACE, [traced(1, 0)])}, " must be after Start_Timestamp"),
    "negative pass": ({A_PASS: text(COUNTERS, counted(1, -5, {HIT: 1}))}, ":2: End_Timestamp "),
    "no workgroup": (
        {A_TRACE: text(TRACE, [traced(1, 5, Workgroup_Size_X=0)])},
        ":2: Workgroup_Size_X '0' must be a whole number from 1",
    ),
    "no kernel": (
        {A_TRACE: text(TRACE, [traced(1, 5, Kernel_Name=" ")])},
        "'Kernel_Name' is empty",
    ),
    "dispatch twice": (
        {A_TRACE: text(TRACE, [traced(1, 5), traced(1, 6)])},
        ":3: dispatch 1 is already given at ",
    ),
    "counter text": (
        {A_PASS: text(COUNTERS, counted(1, 5, {HIT: 1})).replace("1.00000000e+00", "many")},
        ":2: Counter_Value 'many' must be a finite number from 0",
    ),
    "counter nan": (
        {A_PASS: text(COUNTERS, counted(1, 5, {HIT: float("nan")}))},
        ":2: Counter_Value 'nan' must be",
    ),
    "counter overflow": (
        {A_PASS: text(COUNTERS, counted(1, 5, {HIT: 1})).replace("e+00", "e+999")},
        "must be a finite number",
    ),
    "counter below 0": (
        {A_PASS: text(COUNTERS, counted(1, 5, {HIT: -1}))},
        ":2: Counter_Value '-1.00000000e+00' must be",
    ),
    "counter twice": (
        {A_PASS: text(COUNTERS, counted(1, 5, {HIT: 1}) * 2)},
        ":3: counter 'TCC_HIT_sum' of dispatch 1 is given twice",
    ),
    "two kernels of a dispatch": (
        {
            A_PASS: text(COUNTERS, [*counted(1, 5, {HIT: 1}), *counted(1, 5, {}, Kernel_Name="f")])
            + text(COUNTERS, counted(1, 5, {MISS: 1}, Kernel_Name="f")).split("\n", 1)[1]
        },
        ":3: dispatch 1 is of kernel 'f', but of 'void gemm<",
    ),
    "not UTF-8": ({A_TRACE: TRACE_TEXT.encode() + b"\xff,\n"}, ":6: is not UTF-8 text"),
    "UTF-16": ({A_TRACE: TRACE_TEXT.encode("utf-16")}, ":1: has a NUL byte"),
    "NUL byte": (
        {A_TRACE: edited(TRACE_TEXT, "Agent 2", "Agent\0 2").encode()},
        ":2: has a NUL byte, so it is not CSV text; expected a kernel_trace",
    ),
    "open quote": ({A_TRACE: TRACE_TEXT + '"void'}, ":6: is not valid CSV"),
    "huge cell": ({A_TRACE: TRACE_TEXT + "x" * 200_000}, ":6: is not valid CSV"),
    "rocpd": ({A_TRACE: SQLITE}, ":1: is an SQLite database (rocpd), not CSV; expected"),
    "JSON": ({A_TRACE: '{"rocprofiler-sdk-tool": []}'}, ":1: is JSON, not CSV; expected"),
    "gzip": ({A_TRACE: b"\x1f\x8b\x08"}, ":1: is a gzip file"),
    "only a database": (
        {"host/1_results.db": SQLITE},
        ": holds no *_kernel_trace.csv or *_counter_collection.csv; rocprofv3 writes them with",
    ),
    "only agents": ({AN_AGENT: AGENT_TEXT}, ": holds no *_kernel_trace.csv or"),
    "node": (
        {A_TRACE: TRACE_TEXT, AN_AGENT: text(AGENTS, [GPU | {"Node_Id": "two"}])},
        "x_agent_info.csv:2: Node_Id 'two' must be",
    ),
    "no XCDs": (
        {A_TRACE: TRACE_TEXT, AN_AGENT: text(AGENTS, [GPU | {"Num_Xcc": 0}])},
        "x_agent_info.csv:2: Num_Xcc '0' must be a whole number from 1",
    ),
    "two machines": (
        {A_TRACE: TRACE_TEXT, AN_AGENT: text(AGENTS, [GPU, GPU | {"Num_Xcc": 4}])},
        "x_agent_info.csv:3: agent 2 is ",
    ),
    "two traces": (
        {"1_kernel_trace.csv": TRACE_TEXT, "2_kernel_trace.csv": TRACE_TEXT},
        "2_kernel_trace.csv: is a second kernel trace without counters beside ",
    ),
    "other kernels": (
        FILES | {"host/pass_2/78_counter_collection.csv": PASS_2.replace("256, 256", "128, 128")},
        "78_counter_collection.csv:2: launch 1 is of kernel 'void gemm<128, 128>",
    ),
    "fewer launches": (
        FILES | {"host/run_kernel_trace.csv": text(TRACE, [traced(1, 5)])},
        "77_counter_collection.csv: holds 4 launches, but ",
    ),
    "other grid": (
        FILES | {"host/pass_2/78_counter_collection.csv": edited(PASS_2, "131072,0", "65536,0")},
        "78_counter_collection.csv:2: launch 1 has 128 workgroups of 512 work-items, but 256 work",
    ),
}


def one_line(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and "\0" not in message and len(message) < 600
    return message


@pytest.mark.parametrize("name", BAD_ROCPROF)
def test_bad_rocprof_files_are_refused_with_one_line(tmp_path: Path, name: str) -> None:
    files, reason = BAD_ROCPROF[name]
    folder(tmp_path, files)
    message = one_line(lambda: read_rocprof([tmp_path]))
    assert message.startswith(str(tmp_path)) and reason in message


FOREIGN = {
    "api trace": "Domain,Function,Process_Id,Thread_Id,Start_Timestamp,End_Timestamp",
    "kernel stats": '"Name","Calls","TotalDurationNs","AverageNs","Percentage"',
    "measured rows": "suite,machine,kernel,params,metric,value,unit,source",
    "wide counters": "Dispatch_ID,GPU_ID,Grid_Size,SQ_WAVES",
    "prose": "This is a log of a run",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_refused_by_both_readers(tmp_path: Path, name: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text(f"{FOREIGN[name]}\n1,2\n")
    message = one_line(lambda: read_rocprof([path]))
    assert f"{path}:1: the header is " in message and "rocprofv3 (option -f csv)" in message
    message = one_line(lambda: read_ncu(path))
    assert f"{path}:1: column 'ID' is missing, got " in message and "ncu --csv" in message


def test_paths_and_patterns_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, FILES) / "host/run_kernel_trace.csv"
    assert "no file is given" in one_line(lambda: read_rocprof([]))
    assert "cannot be read: No such file" in one_line(lambda: read_rocprof([tmp_path / "x.csv"]))
    assert "cannot be read: Is a directory" in one_line(lambda: read_ncu(tmp_path))
    agents = tmp_path / "host/run_agent_info.csv"
    assert "neither a kernel trace nor counters" in one_line(lambda: read_rocprof([agents]))
    message = one_line(lambda: read_rocprof([path], "attention"))
    assert message == f"{path}: no kernel matches 'attention'; kernels there: {GEMM!r}"
    assert "is not a regular expression" in one_line(lambda: read_rocprof([path], "gemm("))


# Nsight Compute

NCU_ID = names(
    "ID Process_ID Process_Name Host_Name Kernel_Name Context Stream Block_Size Grid_Size Device CC"
)
NCU_HEAD = [name.replace("_", " ") for name in NCU_ID]
LAUNCH = [
    *("461", "python3.12", "127.0.0.1", "gemm_sm90(int, int)", "1", "7"),
    *("(384, 1, 1)", "(2, 66, 1)", "0", "9.0"),
]
LOG = "==PROF== Connected to process 461 (/usr/bin/python3)\ndone, says the program\n==PROF== Bye\n"
TIME, CYCLES = "gpu__time_duration.sum", "sm__cycles_elapsed.max"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
RATE = "lts__t_sector_hit_rate.pct"
L2_HIT, L2_MISS = "lts__t_sectors_lookup_hit.sum", "lts__t_sectors_lookup_miss.sum"
METRICS: dict[str, tuple[str, str]] = {
    READ: ("Mbyte", "149.876480"),
    WRITE: ("Kbyte", "28,299.008"),
    TIME: ("us", "176.704000"),
    "launch__func_cache_config": ("", "CachePreferNone"),
    "launch__registers_per_thread": ("register/thread", "168"),
    "launch__sm_count": ("SM", "132"),
    RATE: ("%", "70.896962"),
    L2_HIT: ("sector", "22984152.000000"),
    L2_MISS: ("sector", "9,008,241"),
    CYCLES: ("cycle", "284,218"),
    "sm__cycles_elapsed.avg.per_second": ("Ghz", "1.597400"),
    "dram__bytes_read.sum.per_second": ("Gbyte/s", "848.178196"),
}


def quoted(lines: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(lines)
    return out.getvalue()


def raw(metrics: dict[str, tuple[str, str]], launches: int = 1) -> str:
    units = [unit for unit, _ in metrics.values()]
    cells = [cell for _, cell in metrics.values()]
    table = [[*NCU_HEAD, *metrics], [""] * len(NCU_HEAD) + units]
    return quoted(table + [[str(i), *LAUNCH, *cells] for i in range(launches)])


def details(metrics: dict[str, tuple[str, str]], launches: int = 1) -> str:
    rules = ["Rule Name", "Rule Type", "Rule Description"]
    head = [*NCU_HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", *rules]
    table = [head]
    for i in range(launches):
        who = [str(i), *LAUNCH, "Some Section"]
        table += [[*who, name, unit, cell, ""] for name, (unit, cell) in metrics.items()]
        table += [[*who, "", "", "", "SOLBottleneck", "INF", "Utilizing more than\n80 %"]]
    return quoted(table)


def ncu(tmp_path: Path, content: str | bytes) -> list[Dispatch]:
    folder(tmp_path, {"ncu.csv": content})
    return read_ncu(tmp_path / "ncu.csv")


@pytest.mark.parametrize("page", [raw, details])
def test_both_pages_of_ncu_give_the_same(
    tmp_path: Path, page: Callable[[dict[str, tuple[str, str]], int], str]
) -> None:
    found = ncu(tmp_path, LOG + page(METRICS, 2))
    assert [d.dispatch_id for d in found] == [0, 1]
    first = found[0]
    assert first.kernel == "gemm_sm90(int, int)"
    assert (first.workgroups, first.workgroup_size, first.agent) == (132, 384, "0")
    assert first.device == Agent("sm_90", None, 132)
    assert "launch__func_cache_config" not in first.counters
    assert first.counters["launch__registers_per_thread"] == 168
    assert first.counters["dram__bytes_read.sum.per_second"] == pytest.approx(848.178196e9)
    assert values(measured(found, "h200")) == pytest.approx(
        {
            "tflops": FLOP / 176.704e-6 / 1e12,
            "time_us": 176.704,
            "cycles": 284_218,
            "clock_mhz": 1608.441,
            "l2_hit": 22984152 / (22984152 + 9008241),
            "hbm_read_bytes": 149_876_480,
            "hbm_write_bytes": 28_299_008,
        },
        rel=1e-6,
    )


def test_rows_of_ncu_are_read_back_and_lines_are_counted_from_the_top(tmp_path: Path) -> None:
    found = ncu(tmp_path, LOG + raw(METRICS) + "==WARNING== clocks are not locked\n")
    assert found[0].where == f"{tmp_path / 'ncu.csv'}:6"
    rows = measured(found, "h200")
    write_measured(tmp_path / "rows.csv", rows)
    assert values(read_measured(tmp_path / "rows.csv")) == pytest.approx(values(rows))


@pytest.mark.parametrize(
    ("metric", "unit", "cell", "base"),
    [
        (READ, "byte", "149,876,480", 149_876_480),
        (READ, "Kbyte", "1.5", 1500),
        (READ, "Mbyte", "1.5", 1.5e6),
        (READ, "Gbyte", "1,000.5", 1.0005e12),
        (TIME, "ns", "176,704", 176.704e-6),
        (TIME, "us", "176.7", 176.7e-6),
        (TIME, "ms", "2", 2e-3),
        (TIME, "s", "1", 1.0),
        (TIME, "nsecond", "9", 9e-9),
        (TIME, "usecond", "9", 9e-6),
        (CYCLES, "cycle", "284,218", 284_218),
        ("sm__cycles_elapsed.avg.per_second", "hz", "1,591,453,079.73", 1_591_453_079.73),
        ("sm__cycles_elapsed.avg.per_second", "Ghz", "1.6", 1.6e9),
        ("sm__cycles_elapsed.avg.per_second", "MHz", "1600", 1.6e9),
        ("sm__cycles_elapsed.avg.per_second", "cycle/nsecond", "1.6", 1.6e9),
        ("launch__shared_mem_per_block", "Kbyte/block", "214.212", 214_212),
        ("sm__inst_executed.sum", "inst", "2,097,152", 2_097_152),
    ],
)
def test_units_of_ncu_are_converted(
    tmp_path: Path, metric: str, unit: str, cell: str, base: float
) -> None:
    for page in (raw, details):
        (d,) = ncu(tmp_path, page({metric: (unit, cell)}))
        assert d.counters[metric] == pytest.approx(base)


def test_labels_of_the_details_page_are_known(tmp_path: Path) -> None:
    labels = {
        "SM Frequency": ("hz", "1,591,453,079.73"),
        "L2 Hit Rate": ("%", "100.29"),
    }
    assert values(measured(ncu(tmp_path, details(labels)), "h200")) == pytest.approx(
        {"clock_mhz": 1591.453, "l2_hit": 1.0}, rel=1e-6
    )
    labels |= {"Duration": ("us", "100"), "Elapsed Cycles": ("cycle", "150,000")}
    figures = values(measured(ncu(tmp_path, details(labels)), "h200"))
    assert (figures["cycles"], figures["clock_mhz"]) == pytest.approx((150_000, 1500))


def test_reads_of_the_sms_come_before_all_lookups(tmp_path: Path) -> None:
    reads = {
        f"lts__t_sectors_srcunit_tex_op_read_lookup_{end}.sum": ("sector", count)
        for end, count in (("hit", "3"), ("miss", "1"))
    }
    assert values(measured(ncu(tmp_path, raw(METRICS | reads)), "h200"))["l2_hit"] == 0.75


def test_metrics_that_the_device_does_not_count_are_missing(tmp_path: Path) -> None:
    found = ncu(tmp_path, raw(METRICS | {READ: ("", "n/a"), WRITE: ("byte", "0")}))
    figures = values(measured(found, "h200"))
    assert "hbm_read_bytes" not in figures and "hbm_write_bytes" not in figures


def with_metric(name: str, unit: str, cell: str) -> str:
    return raw(METRICS | {name: (unit, cell)})


RAW_LINES = raw(METRICS, 2).splitlines(keepends=True)
BAD_NCU: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", ":1: the file is empty; expected the output of ncu --csv --page raw"),
    "log only": (LOG, ":2: column 'ID' is missing, got "),
    "report": (b"NVR\0\x01\x02", ":1: is a binary Nsight Compute report, not CSV; expected"),
    "not UTF-8": (raw(METRICS).encode() + b"\xe9", ":4: is not UTF-8 text"),
    "NUL byte": (raw(METRICS).replace("python", "py\0thon"), ":3: has a NUL byte"),
    "JSON": ("[1, 2]", ":1: is JSON, not CSV"),
    "no lines": (RAW_LINES[0], ":1: the table has a header but no line"),
    "no kernel": ("".join(RAW_LINES[:2]), ":2: the table holds no kernel"),
    "no units": (RAW_LINES[0] + RAW_LINES[2], ":2: the line of units is missing below the header"),
    "no metrics": (raw({}), "ncu.csv: the table has no column of a metric"),
    "no kernel name": (
        raw(METRICS).replace("Kernel Name", "Kernel"),
        ":1: column 'Kernel Name' is missing",
    ),
    "no ID": (raw(METRICS).replace('"ID"', '"No"'), ":1: column 'ID' is missing"),
    "no value": (
        details(METRICS).replace("Metric Value", "Maximum"),
        ":1: column 'Metric Value' is missing",
    ),
    "ragged": (raw(METRICS).rstrip().rpartition(",")[0], ":3: 22 cells, but the header has 23"),
    "ragged details": (details(METRICS) + '"0","461"\n', ":16: 2 cells, but the header has 18"),
    "long": (raw(METRICS).rstrip() + ",1", ":3: 24 cells, but the header has 23"),
    "open quote": (raw(METRICS).rstrip()[:-1], ":3: is not valid CSV"),
    "ID twice": ("".join([*RAW_LINES, RAW_LINES[2]]), ":5: kernel ID 0 is already given at "),
    "ID text": (
        raw(METRICS).replace('"0","461"', '"first","461"'),
        ":3: ID 'first' must be a whole number from 0",
    ),
    "two kernels of an ID": (
        details(METRICS) + details(METRICS).replace("gemm_sm90", "fill").split("\n", 1)[1],
        ":16: kernel ID 0 is 'fill(int, int)', but 'gemm_sm90(int, int)' at ",
    ),
    "two values": (
        details(METRICS) + details({TIME: ("us", "9")}).split("\n", 1)[1],
        f":16: {TIME} is given twice with different values",
    ),
    "text": (with_metric(TIME, "us", "fast"), f":3: {TIME} 'fast' must be a finite number from 0"),
    "nan": (with_metric(READ, "byte", "nan"), f":3: {READ} 'nan' must be a finite number"),
    "below 0": (with_metric(CYCLES, "cycle", "-5"), f":3: {CYCLES} '-5' must be a finite number"),
    "decimal comma": (with_metric(TIME, "us", "1.234,5"), ":3: gpu__time_duration.sum '1.234,5'"),
    "two-digit group": (with_metric(TIME, "us", "12,34"), ":3: gpu__time_duration.sum '12,34'"),
    "overflow": (with_metric(TIME, "us", "1e999"), "must be a finite number"),
    "SMs": (with_metric("launch__sm_count", "SM", "1e999"), "must be a finite number"),
    "no duration": (with_metric(TIME, "us", "0"), f":3: {TIME} is 0; expected a duration above 0"),
    "unit of time": (with_metric(TIME, "cycle", "5"), "unit 'cycle' is wrong for gpu__time_durat"),
    "unit of bytes": (
        with_metric(READ, "MiB", "5"),
        f":3: unit 'MiB' is wrong for {READ}; allowed: byte, kbyte, mbyte, gbyte, tbyte",
    ),
    "grid": (
        raw(METRICS).replace("(2, 66, 1)", "many"),
        ":3: Grid Size 'many' must read (x, y, z)",
    ),
}


@pytest.mark.parametrize("name", BAD_NCU)
def test_bad_ncu_files_are_refused_with_one_line(tmp_path: Path, name: str) -> None:
    content, reason = BAD_NCU[name]
    message = one_line(lambda: ncu(tmp_path, content))
    assert message.startswith(f"{tmp_path / 'ncu.csv'}:") and reason in message


# Figures

ONE = Dispatch(GEMM, 1, "f.csv:2", duration_us=100)
BAD_LAUNCHES: dict[str, tuple[list[Dispatch], str]] = {
    "none": ([], "there is no launch to take figures from"),
    "two kernels": ([ONE, replace(ONE, kernel="fill")], "launches of several kernels; choose one"),
    "two grids": (
        [replace(ONE, workgroups=n) for n in (64, 256)],
        "f.csv:2: launches of different workgroups (64, 256); expected those of one case",
    ),
    "other GPU": (
        [replace(ONE, device=Agent("gfx942", 8, 304))],
        "f.csv:2: ran on a GPU with architecture 'gfx942', but machine mi355x has 'gfx950'",
    ),
    "a partition": ([replace(ONE, device=Agent("gfx950", 1, 32))], "XCDs 1, but machine mi355x"),
    "fewer CUs": ([replace(ONE, device=Agent(cus=304))], "CUs 304, but machine mi355x has 256"),
    "too busy": (
        [replace(ONE, passes=(Pass({ACTIVE: 8, BUSY: 2048}),))],
        "f.csv:2: mfma_utilisation is 2, more than 1: the counters do not belong together",
    ),
    "more hits than look-ups": ([replace(ONE, passes=(Pass({RATE: 140}),))], "l2_hit is 1.4, more"),
    "no figure": (
        [replace(ONE, duration_us=None, passes=(Pass({"SQ_WAVES": 9, HIT: 0, MISS: 0}),))],
        "f.csv:2: no figure can be made; it takes a kernel trace, GRBM_GUI_ACTIVE, ",
    ),
}


@pytest.mark.parametrize("name", BAD_LAUNCHES)
def test_launches_that_make_no_case_are_refused(name: str) -> None:
    dispatches, reason = BAD_LAUNCHES[name]
    assert reason in one_line(lambda: measured(dispatches))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kernel": "conv"}, "kernel 'conv' is unknown; allowed: "),
        ({"machine": "mi999"}, "machine 'mi999' is unknown; allowed: "),
        ({"params": {"m": "64"}}, "parameter 'n' is missing"),
        ({"params": CASE | {"order": "zigzag"}}, "zigzag"),
        ({"params": CASE | {"colour": "red"}}, "unknown parameter 'colour'"),
        ({"suite": " "}, "suite must be a text that is not empty"),
        ({"source": ""}, "source must be a text that is not empty"),
        ({"skip_first": 1}, "skip_first=1 must be from 0 to 0: there are 1 launches"),
        ({"skip_first": -1}, "skip_first=-1 must be from 0 to 0"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], reason: str) -> None:
    settings = {"suite": "s", "machine": "mi355x", "kernel": "gemm", "params": CASE, "source": "x"}
    assert reason in one_line(lambda: to_measured([ONE], **(settings | changes)))


def test_what_the_format_cannot_hold_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    (row, *_) = rows = measured([ONE])
    assert "there is no measured figure" in one_line(lambda: write_measured(path, []))
    twice = one_line(lambda: write_measured(path, rows + rows))
    assert twice == f"{path}:4: tflops of this case is already given at {path}:2"
    for params in ({"m": "1;n=2"}, {"m": " 1"}, {}):
        bad = replace(row, params=params)
        assert "params" in one_line(lambda bad=bad: write_measured(path, [bad]))
    assert "UTF-8" in one_line(lambda: write_measured(path, [replace(row, source="\udcff")]))
    assert not path.exists()
    assert "cannot be written" in one_line(lambda: write_measured(tmp_path / "no/rows.csv", rows))
