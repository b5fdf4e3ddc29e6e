"""The commands `kernel` and `lds`, and docs/kernels.md: its examples, messages and figures."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cdnasim import cli
from cdnasim.cu.att import check_att
from cdnasim.errors import InputError
from cdnasim.isa.lds import lds_instructions, picture
from cdnasim.isa.phase_solver import COUNTER, KERNEL, benchmark_probes, model_oracle
from cdnasim.isa.swizzle import PUBLISHED, check_tile
from cdnasim.kernel_commands import hot_loop_lines
from hk_kernels import catalog, gemm
from hk_kernels.lower.program import Instruction, Line, Node, Only, Program
from hk_kernels.lower.reference import KernelError, execute
from hk_kernels.lower.trace import trace
from hk_kernels.tile.language import Builder, Kernel, kernel, lower

DOCS = Path(__file__).parents[1] / "docs"
KERNELS_MD = (DOCS / "kernels.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    cdnasim ((?:kernel|lds) .+)$", KERNELS_MD, flags=re.MULTILINE)
SMALL = ("pingpong8", "tile=128x128x64")

Command = Callable[..., str]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """Run a command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["cdnasim", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def cdnasim(run: Callable[..., tuple[object, str, str]]) -> Command:
    """Run a command, demand success, and return what it printed."""

    def command(*arguments: str) -> str:
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        return out

    return command


# ---- kernel ----


def test_list_names_schedules_targets_and_options(cdnasim: Command) -> None:
    printed = cdnasim("kernel", "list")
    for name, entry in catalog.GEMM_SCHEDULES.items():
        assert re.search(rf"^{name} +{', '.join(entry.kernels)}", printed, flags=re.MULTILINE)


def test_show_agrees_with_the_published_kernel(cdnasim: Command) -> None:
    # HipKittens 256_256_64_32_with16x32 (f09e968): a wave's k-step, LDS used, lead of A1
    record = json.loads(cdnasim("kernel", "show", "pingpong8", "--json"))
    assert (record["tile"], record["dtype"]) == ([256, 256, 64], "bf16")
    assert (record["waves"], record["waves_per_simd"], record["lds_bytes"]) == (8, 2, 128 * 1024)
    assert record["matrix_clocks"] == 2048
    assert [o["lead"] * 2048 for o in record["operands"]] == [1536, 2048]
    assert [role["waves"] for role in record["roles"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for role in record["roles"]:
        counts = role["instructions"]
        assert counts["v_mfma_f32_16x16x32_bf16"] == 64
        assert (counts["ds_read_b128"], counts["buffer_load_dwordx4"]) == (24, 8)
        assert counts["s_barrier"] == 8
        assert role["lds_clocks"] == 24 * 4 and role["lds_conflict_clocks"] == 0
        assert role["hot_loop"]["instructions"] == sum(counts.values())
        assert role["live"] + role["addresses"] <= role["vgprs"] + role["agprs"] <= role["budget"]


@pytest.mark.parametrize("schedule", ["interleave4", "specialized"])
def test_show_prints_the_same_in_tables(schedule: str, cdnasim: Command) -> None:
    printed = cdnasim("kernel", "show", schedule)
    record = json.loads(cdnasim("kernel", "show", schedule, "--json"))

    def row(name: str) -> list[str]:
        (found,) = re.findall(rf"^{name}  +(.+)$", printed, flags=re.MULTILINE)
        return str(found).split()

    assert row("LDS")[0] == str(record["lds_bytes"])
    roles = record["roles"]
    for name in {name for role in roles for name in role["instructions"]}:
        assert row(name) == [str(role["instructions"].get(name, 0)) for role in roles]
    for name, key in (("values alive at most", "live"), ("budget", "budget")):
        assert row(name)[: len(roles)] == [str(role[key]) for role in roles]
    for operand in record["operands"]:
        assert row(operand["tensor"])[1:3] == [
            str(operand["slab_bytes"]),
            str(operand["piece_bytes"]),
        ]


def test_hot_loop_shares_add_up_and_the_timeline_is_written(
    tmp_path: Path, cdnasim: Command
) -> None:
    timeline = tmp_path / "new" / "timeline.json"
    printed = cdnasim("listing", "specialized", "--wave", "5", "--timeline", str(timeline))
    (shares,) = re.findall(r"^All waves' time: (.+)$", printed, flags=re.MULTILINE)
    assert 97 < sum(float(share) for share in re.findall(r"([\d.]+) %", shares)) <= 100.5
    assert {e["ph"] for e in json.loads(timeline.read_text())["traceEvents"]} == {"M", "X"}


def test_a_trace_file_is_replayed_as_its_kernel(tmp_path: Path, cdnasim: Command) -> None:
    path = tmp_path / "trace.gz"
    cdnasim("kernel", "trace", "specialized", "--out", str(path))
    by_name, by_file = (cdnasim("listing", s).split("\n", 2)[2] for s in ("specialized", str(path)))
    assert by_name == by_file


def test_the_thread_trace_of_a_listing_is_whole(tmp_path: Path, cdnasim: Command) -> None:
    folder = tmp_path / "att"
    cdnasim("listing", "pingpong8", "tile=128x128x64", "--workgroups", "2", "--att", str(folder))
    assert check_att(folder) == []
    assert len(list(folder.glob("se0_*.json"))) == 16


def test_an_unknown_instruction_needs_a_word(
    tmp_path: Path, cdnasim: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.gz"
    cdnasim("kernel", "trace", "specialized", "--out", str(path))
    text = gzip.decompress(path.read_bytes()).decode().replace("s_mov_b32", "s_mystery")
    path.write_bytes(gzip.compress(text.encode()))
    assert "s_mystery is not known" in cdnasim("listing", str(path), "--assume-unknown")
    monkeypatch.setattr(sys, "argv", ["cdnasim", "listing", str(path)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2


@pytest.mark.parametrize(("schedule", "wave", "role"), [("pingpong8", 0, 0), ("specialized", 5, 1)])
def test_listing_has_one_line_an_instruction(
    schedule: str, wave: int, role: int, cdnasim: Command
) -> None:
    title, *lines = cdnasim("kernel", "listing", schedule, "--wave", str(wave)).splitlines()
    record = json.loads(cdnasim("kernel", "show", schedule, "--json"))
    waves = record["roles"][role]["waves"]
    assert title.endswith(f"k-loop of waves {waves[0]}-{waves[-1]}")
    assert lines[0].startswith("for t")
    mnemonics = [line.split()[0] for line in lines[1:]]
    counts = record["roles"][role]["instructions"]
    assert {name: mnemonics.count(name) for name in counts} == counts
    assert len(mnemonics) == sum(counts.values())
    for line in lines:
        assert len(line) <= 120
        assert re.search(r" ; gemm\.py:\d+: ", line)


def test_check_runs_workgroups_and_compares(cdnasim: Command) -> None:
    printed = cdnasim("kernel", "check", *SMALL, "--grid", "1x2", "--seed", "3")
    assert "m=128 n=256 k=512, seed 3" in printed
    assert "no more than rounding" in printed
    assert "2 x 8 waves: no read before its wait, no race, no barrier missed" in printed


def broken(is_waited: bool) -> Kernel:
    """A one-wave GEMM without a wait for its LDS reads, or one that multiplies B with B."""

    @kernel(waves=1, waves_per_simd=1)
    def one_wave(k, A, B, C, bm=16, bn=16, bk=32):  # type: ignore[no-untyped-def]
        row, col = k.output_tile(C, bm, bn, bk)
        As, Bs = (k.shared(A.dtype, 16, bk, buffers=(1,))[0] for _ in range(2))
        a, b = (k.registers(A.dtype, 16, bk) for _ in range(2))
        acc = k.accumulators(A.dtype, bm, bn)
        k.zero(acc)
        for t in k.loop(A.cols // bk):
            k.load_async(As, A.tile(row * bm, t * bk, bm, bk))
            k.load_async(Bs, B.tile(col * bn, t * bk, bn, bk))
            k.wait(vm=0)
            k.load(a, As)
            k.load(b, Bs)
            if is_waited:
                k.wait(lgkm=0)
            k.mma_ABt(acc, b, b)
        k.store(C.tile(row * bm, col * bn, bm, bn), acc)

    return one_wave


@pytest.mark.parametrize(
    ("is_waited", "said"),
    [
        (False, ("k.mma_ABt(acc, b, b)", "uses a register before a wait for the load at")),
        (True, ("C[", "differs by", "rounding explains")),
    ],
)
def test_check_says_in_one_line_what_is_wrong(
    is_waited: bool,
    said: tuple[str, ...],
    run: Callable[..., tuple[object, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = catalog.Entry({"gfx950": broken(is_waited)}, {}, "")
    monkeypatch.setitem(catalog.GEMM_SCHEDULES, "broken", entry)
    code, out, err = run("kernel", "check", "broken", "tile=16x16x32")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("cdnasim: ") and all(text in err for text in said)


def test_a_trace_is_written_and_read_back(cdnasim: Command, tmp_path: Path) -> None:
    cdnasim("kernel", "trace", *SMALL, "--out", "t.gz")
    info = cdnasim("kernel", "trace-info", "t.gz")
    shown = cdnasim("kernel", "show", *SMALL)
    assert info.strip() and shown.startswith(info.rstrip("\n"))
    first = (tmp_path / "t.gz").read_bytes()
    cdnasim("kernel", "trace", *SMALL, "--out", "t.gz")
    assert (tmp_path / "t.gz").read_bytes() == first


@pytest.mark.parametrize("kind", ["layout", "swizzle", "registers"])
def test_figures_are_written(kind: str, cdnasim: Command, tmp_path: Path) -> None:
    cdnasim("kernel", "figure", kind, *SMALL, "--out", "new/f.svg")
    assert (tmp_path / "new" / "f.svg").read_text(encoding="utf-8").startswith("<svg")


def test_the_hot_loop_counts_its_helpers_once_and_no_comments() -> None:
    def definition(k, A, B, C):  # type: ignore[no-untyped-def]
        def unused():  # type: ignore[no-untyped-def]
            k.barrier()

        def fetch(t):  # type: ignore[no-untyped-def]
            k.barrier()

            # a comment
            k.barrier()

        def step(t):  # type: ignore[no-untyped-def]
            fetch(t)
            fetch(t)

        unused()
        for t in k.loop(4):
            step(t)

    number = definition.__code__.co_firstlineno + 15
    assert hot_loop_lines(Kernel(definition, 1, 1), Line("f", number, "")) == 2 + 3 + 3


# ---- lds ----


def test_lds_list_names_every_instruction(cdnasim: Command) -> None:
    printed = cdnasim("lds", "list")
    for arch in ("gfx950", "gfx942"):
        table = lds_instructions()[arch]
        for name, described in table.items():
            row = rf"^{arch} +{name} +{described.bytes_per_lane} +{described.banks} "
            assert re.search(row, printed, flags=re.MULTILINE)
    assert re.search("ds_read_b128 .* measured .* measured", printed)


def test_lds_check_prints_and_draws_the_access(cdnasim: Command, tmp_path: Path) -> None:
    printed = cdnasim("lds", "check", "ds_read_b128", "swizzle=none", "--svg", "f.svg")
    access = check_tile(16, 32, 2, "none", "ds_read_b128", "gfx950")
    assert printed == f"{picture(access)}\nFigure: f.svg\n"
    assert "8 clk for 4 phases" in (tmp_path / "f.svg").read_text(encoding="utf-8")
    assert " 0 of them conflicts" in cdnasim("lds", "check", "ds_read_b128")
    options = ("tile=32x16", "swizzle=st_32x16", "operand=16", "stride=8", "part=1")
    printed = cdnasim("lds", "check", "ds_read_b64_tr_b16", *options)
    access = check_tile(
        *(32, 16, 2, "st_32x16", "ds_read_b64_tr_b16", "gfx950"), operand=16, row_stride=8, part=1
    )
    assert printed == f"{picture(access)}\n"


def test_lds_search_finds_the_published_swizzle(cdnasim: Command) -> None:
    printed = cdnasim("lds", "search", "ds_read_b128", "tile=16x32", "--top", "9999")
    assert f"  {PUBLISHED['st_16x32']}" in printed.splitlines()
    formulas = [line for line in printed.splitlines() if line.startswith("  o ^=")]
    assert f"\n{len(formulas)} of " in printed
    assert f"… {len(formulas) - 1} more (--top)" in cdnasim(
        "lds", "search", "ds_read_b128", "--top", "1"
    )


def test_lds_search_proves_that_there_is_none(cdnasim: Command) -> None:
    printed = cdnasim("lds", "search", "ds_read_b128", "ds_write_b64", "tile=16x32")
    (examined,) = re.findall(
        r"None serves all accesses without conflicts: all (\d+) formulas", printed
    )
    bits = 10  # of offsets in a tile of 1 KiB
    steps = sum(
        1
        for width in range(1, bits)
        for shift in range(bits - width + 1)
        for left in range(bits - width + 1)
        if abs(shift - left) >= width
    )
    assert int(examined) == 1 + steps + steps**2


@pytest.mark.parametrize("instruction", ["ds_read_b128", "ds_write_b64"])
def test_lds_solve_finds_what_is_described(instruction: str, cdnasim: Command) -> None:
    described = lds_instructions()["gfx950"][instruction]
    printed = cdnasim("lds", "solve", instruction)
    assert f"from the model: {described.phases} phases, {described.banks} banks" in printed
    assert printed.endswith("\nas described\n")


def write_counters(path: Path, instruction: str, arch: str) -> None:
    """What rocprofv3 would write if the hardware were the model of `arch`."""
    observe = model_oracle(instruction, arch)
    probes = benchmark_probes(lds_instructions()["gfx950"][instruction])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"])
        writer.writerows([i, KERNEL, COUNTER, int(observe(*p))] for i, p in enumerate(probes, 1))


def test_lds_solve_reads_counters(cdnasim: Command, tmp_path: Path) -> None:
    write_counters(tmp_path / "same.csv", "ds_read_b64", "gfx950")
    printed = cdnasim("lds", "solve", "ds_read_b64", "--counters", "same.csv")
    assert "from same.csv: 2 phases, 64 banks" in printed and "\nas described\n" in printed
    write_counters(tmp_path / "other.csv", "ds_read_b64", "gfx942")
    printed = cdnasim("lds", "solve", "ds_read_b64", "--counters", "other.csv")
    assert "4 phases, 32 banks" in printed and "\nnot as described" in printed


def test_lds_microbenchmark_writes_the_program(cdnasim: Command, tmp_path: Path) -> None:
    cdnasim("lds", "microbenchmark", "ds_read_b96", "--out", "m.hip")
    text = (tmp_path / "m.hip").read_text(encoding="utf-8")
    assert KERNEL in text and "ds_read_b96" in text


# ---- bad input ----

BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "schedule": (("kernel", "show", "nope"), ("'nope'", "allowed: pingpong8")),
    "option": (("kernel", "show", "specialized:q=4"), ("'q=4'", "p=<number>")),
    "target": (("kernel", "show", "pingpong8", "--target", "gfx90a"), ("gfx90a", "allowed: gfx")),
    "no kernel for the target": (
        ("kernel", "show", "interleave4", "--target", "gfx942"),
        ("no kernel for gfx942", "allowed: gfx950"),
    ),
    "parameter": (("kernel", "show", "pingpong8", "m=1"), ("'m'", "allowed: tile, dtype")),
    "dtype": (("kernel", "show", "pingpong8", "dtype=fp9"), ("dtype=fp9", "allowed: fp32, bf16")),
    "dtype that is not multiplied": (
        ("kernel", "show", "pingpong8", "dtype=fp6"),
        ("gfx950", "no matrix instruction for fp6"),
    ),
    "tile of two": (("kernel", "show", "pingpong8", "tile=64x64"), ("<rows>x<columns>x<depth>",)),
    "tile of odd size": (("kernel", "show", "pingpong8", "tile=8x8x8"), ("multiples of 16",)),
    "tile too large": (
        ("kernel", "figure", "layout", "pingpong8", "tile=512x512x64", "--out", "f.svg"),
        ("gemm.py:", "B of LDS needed"),
    ),
    "registers": (("kernel", "show", "pingpong8", "tile=384x256x64"), ("would spill",)),
    "wave": (("kernel", "listing", "pingpong8", "--wave", "8"), ("--wave 8", "0 to 7")),
    "wave of the hot loop": (("listing", "interleave4", "--wave", "4"), ("--wave 4", "0 to 3")),
    "steps of the hot loop": (("listing", "pingpong8", "--steps", "5"), ("--steps 5", "8 or more")),
    "unknown registers": (
        ("listing", "pingpong8", "registers=x"),
        ("registers=x", "pinned, compiler"),
    ),
    "no trace": (("listing", "none.gz"), ("none.gz", "cannot be read as a trace")),
    "parameters of a trace": (("listing", "none.gz", "tile=3"), ("takes no parameters",)),
    "thread trace into a file": (("listing", "pingpong8", "--att", "file"), ("file",)),
    "timeline into a file": (
        ("listing", "pingpong8", "--timeline", "file/t.json"),
        ("file/t.json", "cannot be written"),
    ),
    "grid": (("kernel", "check", "pingpong8", "--grid", "2"), ("--grid=2", "<rows>x<columns>")),
    "large grid": (("kernel", "check", "pingpong8", "--grid", "9x9"), ("at most 64",)),
    "trace into a file": (
        ("kernel", "trace", "pingpong8", "--out", "file/t.gz"),
        ("file/t.gz", "cannot be written"),
    ),
    "trace that is not there": (("kernel", "trace-info", "t.gz"), ("t.gz", "No such file")),
    "trace that is none": (("kernel", "trace-info", "file"), ("file", "cannot be read as a trace")),
    "kind of figure": (
        ("kernel", "figure", "nope", "pingpong8", "--out", "f.svg"),
        ("'nope'", "allowed: layout, swizzle, registers"),
    ),
    "figure into a file": (
        ("kernel", "figure", "layout", "pingpong8", "--out", "file/f.svg"),
        ("file/f.svg", "cannot be written"),
    ),
    "lds instruction": (("lds", "check", "ds_nope"), ("'ds_nope'", "allowed: ds_read_b128")),
    "lds target": (("lds", "solve", "ds_read_b64", "--target", "sm_90"), ("sm_90", "allowed:")),
    "lds swizzle": (("lds", "check", "ds_read_b128", "swizzle=x"), ("'x'", "allowed: none")),
    "lds tile": (("lds", "check", "ds_read_b128", "tile=16"), ("tile=16", "<rows>x<columns>")),
    "lds dtype": (("lds", "check", "ds_read_b128", "dtype=fp4"), ("dtype=fp4", "whole bytes")),
    "lds part": (("lds", "check", "ds_read_b128", "part=-1"), ("part=-1", "whole number")),
    "lds figure too large": (
        ("lds", "check", "ds_read_b128", "tile=64x512", "swizzle=none", "--svg", "f.svg"),
        ("64 rows of 256 words", "allowed: 64"),
    ),
    "lds search without instructions": (("lds", "search", "tile=16x32"), ("one access or more",)),
    "lds search of another tile": (
        ("lds", "search", "ds_read_b128", "tile=48x32"),
        ("operand rows 48 must divide 64",),
    ),
    "lds counters": (
        ("lds", "solve", "ds_read_b64", "--counters", "file"),
        ("file", "column 'Dispatch_Id' is missing"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_in_one_line(
    name: str, run: Callable[..., tuple[object, str, str]], tmp_path: Path
) -> None:
    arguments, said = BAD[name]
    (tmp_path / "file").write_text("x\n")
    code, _, err = run(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("cdnasim: ") and "Traceback" not in err
    for text in said:
        assert text in err


def test_the_command_line_loads_no_kernels_before_they_are_asked_for() -> None:
    code = "import sys, cdnasim.cli; print(*{'hk_kernels', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# ---- docs/kernels.md ----


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of the page, written where they can be imported; name → text."""
    files = {}
    for block in re.findall(r"```python\n(.*?)```", KERNELS_MD, flags=re.DOTALL):
        name = re.match(r"# (\w+)\.py\n", block)
        assert name, block
        files[name[1]] = block
        (tmp_path / f"{name[1]}.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name_ in files:
        monkeypatch.delitem(sys.modules, name_, raising=False)
    return files


def test_the_examples_compute_the_product(examples: dict[str, str]) -> None:
    for name in examples:
        module = importlib.import_module(name)
        for definition in vars(module).values():
            if isinstance(definition, Kernel) and definition.name == name:
                check(definition, module)


def check(definition: Kernel, module: ModuleType) -> None:
    parameters = definition.parameters()
    m, n, k = 2 * parameters["bm"], parameters["bn"], 4 * parameters["bk"]
    a, b = whole_numbers(m, k), whole_numbers(n, k)
    c = execute(lower(definition, "gfx950", m, n, k), a, b)
    assert np.array_equal(c, a @ b.T), module.__name__


def whole_numbers(rows: int, cols: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Small enough that products and sums are exact in bf16."""
    return (np.arange(rows * cols).reshape(rows, cols) % 7 % 3 - 1).astype(np.float32)


EARLY = """        k.wait(vm=0)
        k.barrier()
        if has_next:
            fetch(t + 1)
"""
LATE = """        if has_next:
            fetch(t + 1)
        k.wait(vm=8 if has_next else 0)
        k.barrier()
"""
MISTAKES = {  # example, what is replaced, by what
    "no wait for LDS reads": ("one_wave", "        k.wait(lgkm=0)\n", "\n"),
    "no wait for loads": ("one_wave", "        k.wait(vm=0)\n", "\n"),
    "fetch before the barrier": ("double_buffered", EARLY, LATE),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_messages_for_the_examples_are_what_the_reference_says(
    name: str, examples: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, old, new = MISTAKES[name]
    assert examples[example].count(old) == 1
    (tmp_path / f"{example}.py").write_text(examples[example].replace(old, new), encoding="utf-8")
    definition = getattr(importlib.import_module(example), example)
    sizes = definition.parameters()
    said = mistake(lower(definition, "gfx950", sizes["bm"], sizes["bn"], 512))
    assert quoted(said) in quoted(KERNELS_MD)


def without_wait_for_b0(node: Node) -> Node | None:
    return None if isinstance(node, Instruction) and node.lgkm else node


def with_one_more_in_flight(node: Node) -> Node | None:
    is_wait = isinstance(node, Instruction) and node.vm
    return dataclasses.replace(node, vm=node.vm + 1) if is_wait else node


def without_closing_barrier(node: Node) -> Node | None:
    is_closing = isinstance(node, Only) and node.condition.evaluate({"wave": 0})
    return None if is_closing else node


@pytest.mark.parametrize(
    "change", [without_wait_for_b0, with_one_more_in_flight, without_closing_barrier]
)
def test_the_messages_for_pingpong8_are_what_the_reference_says(
    change: Callable[[Node], Node | None],
) -> None:
    program = catalog.gemm_program("pingpong8", "gfx950", "bf16", (128, 128, 64))
    said = mistake(dataclasses.replace(program, body=changed(program.body, change)))
    assert quoted(said) in quoted(KERNELS_MD)


def changed(body: list[Node], change: Callable[[Node], Node | None]) -> list[Node]:
    """A program with `change` applied to all its nodes; None leaves one out."""
    nodes = []
    for node in body:
        new = change(node)
        if new is not None:
            if not isinstance(new, Instruction):
                new = dataclasses.replace(new, body=changed(new.body, change))
            nodes.append(new)
    return nodes


def mistake(program: Program) -> str:
    a, b = (np.ones((t.rows, t.cols), np.float32) for t in program.tensors[:2])
    with pytest.raises(KernelError) as caught:
        execute(program, a, b)
    return str(caught.value)


def quoted(text: str) -> str:
    """Without line breaks, and without the line numbers of gemm.py, which may move."""
    return re.sub(r"gemm\.py:\d+", "gemm.py", " ".join(text.split()))


def test_the_refusal_on_the_page_is_what_the_compiler_says() -> None:
    with pytest.raises(InputError) as refused:
        catalog.gemm_program("pingpong8", "gfx950", "bf16", (384, 256, 64))
    assert quoted(f"cdnasim: {refused.value}") in quoted(KERNELS_MD)
    tensors = {"m": 384, "n": 256, "k": 512, "bm": 384}
    assert lower(gemm.pingpong8, "gfx950", **tensors, allow_spills=True).waves == 8


def lead(vm: int) -> list[float]:
    """Leads of A and B in pingpong8, in k-steps, if the loop waits for `vm` loads in flight."""

    def with_vm(node: Node) -> Node | None:
        is_wait = isinstance(node, Instruction) and node.vm
        return dataclasses.replace(node, vm=vm) if is_wait else node

    program = catalog.gemm_program("pingpong8", "gfx950", "bf16", (256, 256, 64))
    traced = trace(dataclasses.replace(program, body=changed(program.body, with_vm)))
    return [operand.lead for operand in traced.operands]


def test_the_leads_on_the_page_follow_from_the_wait() -> None:
    assert lead(6) == [0.75, 1.0]
    assert lead(0) == [0.25, 0.0]


def test_the_page_names_every_operation() -> None:
    operations = {
        name
        for name in vars(Builder)
        if not name.startswith("_") and name != "program" and callable(getattr(Builder, name))
    }
    table = KERNELS_MD.partition("## Operations")[2].partition("\n## ")[0]
    assert operations == set(re.findall(r"`k\.(\w+)(?:\(|`)", table)) - {
        "wave",
        "lane",
        "waves",
        "target",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_on_the_page_run_and_make_its_figures(
    command: str, cdnasim: Command, tmp_path: Path
) -> None:
    if "trace-info" in command:
        cdnasim(*next(c for c in COMMANDS if "kernel trace " in c).split())
    assert cdnasim(*command.split())
    for made in tmp_path.glob("docs/figures/*.svg"):
        assert made.read_bytes() == (DOCS / "figures" / made.name).read_bytes(), "make it again"


def test_the_listing_on_the_page_is_the_kernels(cdnasim: Command) -> None:
    shown = re.findall(r"^    ((?:for|  )[^;…]+) ; gemm", KERNELS_MD, flags=re.MULTILINE)
    printed = cdnasim("kernel", "listing", "pingpong8")
    listed = [line.partition(" ; ")[0] for line in printed.splitlines()]
    assert len(shown) > 5 and set(shown) <= set(listed)


def test_every_figure_on_the_page_has_its_command() -> None:
    shown = set(re.findall(r"\(figures/(\S+\.svg)\)", KERNELS_MD))
    assert shown == {path.name for path in (DOCS / "figures").glob("*.svg")}
    for name in shown:
        assert any(command.endswith(f"docs/figures/{name}") for command in COMMANDS)
