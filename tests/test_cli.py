"""The command line: what it prints, what it writes, and that finished cases are not run again."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdnasim import __version__, cli
from cdnasim.experiment.case import GemmCase, run_case
from cdnasim.gpu.orders import ORDER_HELP
from cdnasim.gpu.result import Result
from cdnasim.machine.loader import load_machine, machine_names

GEMM = ("simulate", "gemm", "m=512", "n=1024", "k=256")
PROMISED = {
    *("machine", "kernel", "params", "time_us", "tflops", "clock_mhz", "cycles"),
    *("l2_hit", "llc_hit", "l2_read_bytes", "llc_read_bytes", "hbm_read_bytes"),
    *("hbm_write_bytes", "mfma_utilisation", "occupancy", "stalls", "wall_s"),
}
SCENARIO = """
title = "A small question"
question = "What does the order do?"
machine = "mi355x"
kernel = "gemm"

[[group]]
title = "orders"
params = {m = 1024, n = 512, k = 128}
sweep = {order = ["row-major", "col-major", "window:w=2"]}

[[group]]
title = "depth"
params = {m = 512, n = 512}
sweep = {k = [128, 192]}
"""

Command = Callable[..., str]


@pytest.fixture
def cdnasim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command in an empty folder, demand success, and return what it printed."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["cdnasim", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        assert (ended.value.code, printed.err) == (0, "")
        return printed.out

    return command


# ---- simulate ----


def test_json_is_one_object_with_the_promised_keys(cdnasim: Command) -> None:
    printed = cdnasim(*GEMM, "--json")
    record = json.loads(printed)
    assert printed.count("\n") == 1 and isinstance(record, dict)
    assert set(record) >= PROMISED
    assert record["machine"] == "mi355x" and record["kernel"] == "gemm"
    assert record["params"]["m"] == 512 and record["params"]["order"] == "row-major"
    assert sum(record["stalls"].values()) == pytest.approx(1)
    for key in PROMISED - {"machine", "kernel", "params", "stalls"}:
        assert isinstance(record[key], int | float)
    for key in ("l2_hit", "llc_hit", "mfma_utilisation", "occupancy"):
        assert 0 <= record[key] <= 1


def test_json_is_what_the_library_returns(cdnasim: Command) -> None:
    record = json.loads(cdnasim(*GEMM, "order=col-major", "--seed", "7", "--json"))
    params = {"m": 512, "n": 1024, "k": 256, "order": "col-major"}
    summary = run_case("mi355x", "gemm", params, seed=7).summary()
    del record["wall_s"], summary["wall_s"]
    assert record == summary


def test_another_machine_may_be_named_or_described(cdnasim: Command, tmp_path: Path) -> None:
    assert json.loads(cdnasim(*GEMM, "--machine", "mi350x", "--json"))["machine"] == "mi350x"
    source = Path(cli.__file__).parent / "machine" / "mi350x.toml"
    mine = tmp_path / "mine.toml"
    mine.write_text(source.read_text(encoding="utf-8").replace('"mi350x"', '"mine"'))
    assert json.loads(cdnasim(*GEMM, "--machine", str(mine), "--json"))["machine"] == "mine"


def test_without_json_the_same_figures_stand_in_a_table(cdnasim: Command) -> None:
    text = cdnasim(*GEMM)
    record = json.loads(cdnasim(*GEMM, "--json"))
    assert f"{record['time_us']:.1f}" in text
    assert f"{record['tflops']:.0f}" in text
    for name in record["stalls"]:
        assert name in text
    assert "assumed" in text  # how far the figures can be trusted


def test_lines_add_the_line_granular_hit_rates(cdnasim: Command) -> None:
    pytest.importorskip("numba")
    record = json.loads(cdnasim(*GEMM, "--lines", "--json"))
    assert record["lines"]["l2_hit"] == pytest.approx(record["l2_hit"], abs=0.02)
    assert "128 B lines" in cdnasim(*GEMM, "--lines")


# ---- run ----


def test_run_writes_a_report_and_rows(cdnasim: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    printed = cdnasim("run", "mine.toml", "--jobs", "1")
    out = tmp_path / "out" / "mine"
    assert printed.strip().endswith(str(Path("out") / "mine" / "report.html"))
    page = (out / "report.html").read_text(encoding="utf-8")
    for text in ("A small question", "What does the order do?", "window:w=2"):
        assert text in page and (text in printed or text.startswith("What"))
    rows = list(csv.DictReader((out / "rows.csv").open(encoding="utf-8")))
    assert [(row["order"], row["k"]) for row in rows] == [
        ("row-major", "128"),
        ("col-major", "128"),
        ("window:w=2", "128"),
        ("row-major", "128"),
        ("row-major", "192"),
    ]
    params = {"m": 1024, "n": 512, "k": 128, "order": "col-major"}
    expected = run_case("mi355x", "gemm", params)
    assert float(rows[1]["time_us"]) == expected.time_us
    assert int(rows[1]["hbm_read_bytes"]) == expected.traffic.hbm_read_bytes
    assert float(rows[1]["stall_busy"]) == expected.stalls["busy"]


def test_a_second_run_takes_every_case_from_the_store(
    cdnasim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    first = cdnasim("run", "mine.toml", "--jobs", "1", "--out", "o")
    rows = (tmp_path / "o" / "rows.csv").read_bytes()

    def never(case: GemmCase, seed: int = 0) -> Result:
        raise AssertionError(f"ran again: {case.params}")

    monkeypatch.setattr(GemmCase, "run", never)
    assert cdnasim("run", "mine.toml", "--jobs", "1", "--out", "o") == first
    assert (tmp_path / "o" / "rows.csv").read_bytes() == rows


def test_a_damaged_file_is_simulated_again(
    cdnasim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    cdnasim("run", "mine.toml", "--jobs", "1", "--out", "o")
    rows = (tmp_path / "o" / "rows.csv").read_bytes()
    stored = sorted((tmp_path / "o" / "cases").iterdir())
    assert len(stored) == 5
    whole = stored[2].read_bytes()
    stored[2].write_bytes(whole[: len(whole) // 2])
    ran: list[dict[str, Any]] = []
    run = GemmCase.run

    def counted(case: GemmCase, seed: int = 0) -> Result:
        ran.append(case.params)
        return run(case, seed)

    monkeypatch.setattr(GemmCase, "run", counted)
    cdnasim("run", "mine.toml", "--jobs", "1", "--out", "o")
    assert len(ran) == 1
    assert sorted((tmp_path / "o" / "cases").iterdir()) == stored
    assert (tmp_path / "o" / "rows.csv").read_bytes() == rows


def test_two_runs_write_the_same_rows(cdnasim: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    for folder, jobs in (("one", "1"), ("two", "2")):
        cdnasim("run", "mine.toml", "--out", folder, "--jobs", jobs)
    one, two = ((tmp_path / f / "rows.csv").read_bytes() for f in ("one", "two"))
    assert one == two
    cdnasim("run", "mine.toml", "--out", "three", "--jobs", "1", "--seed", "9")
    assert (tmp_path / "three" / "rows.csv").read_bytes() != one


def test_set_changes_all_cases(cdnasim: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    cdnasim("run", "mine.toml", "--jobs", "1", "--set", "k=192", "--set", "machine=mi350x")
    rows = list(csv.DictReader((tmp_path / "out" / "mine" / "rows.csv").open()))
    assert {(row["k"], row["machine"]) for row in rows} == {("192", "mi350x")}


@pytest.fixture
def stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """Exit code and stderr of a run that the user interrupts."""

    def interrupted(case: GemmCase, seed: int = 0) -> Result:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GemmCase, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["cdnasim", *GEMM])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


def test_a_run_that_is_stopped_shows_no_traceback(stopped: tuple[object, str]) -> None:
    code, err = stopped
    assert code == 130
    assert "Traceback" not in err


def test_a_run_that_is_stopped_says_so_in_one_line(stopped: tuple[object, str]) -> None:
    assert stopped[1] == "cdnasim: interrupted (run and best-order keep finished cases)\n"


def test_run_list_names_the_scenarios(cdnasim: Command) -> None:
    printed = cdnasim("run", "list")
    assert "xcd_grid_order" in printed and "XCD-aware grid orders on the MI355X" in printed


# ---- validate and best-order ----


def test_validate_compares_the_users_figures(cdnasim: Command, tmp_path: Path) -> None:
    header = "suite,machine,kernel,params,metric,value,unit,source"
    rows = [
        "mine,mi355x,gemm,m=512;n=512;k=128,tflops,5,TFLOPS,me",
        "mine,mi355x,gemm,m=512;n=512;k=128;order=col-major,l2_hit,0.5,fraction,me",
        "mine,mi355x,gemm,m=500;n=512;k=128,tflops,5,TFLOPS,me",
    ]
    (tmp_path / "mine.csv").write_text("\n".join([header, *rows]))
    arguments = ("validate", "--measured", "mine.csv", "--jobs", "1")
    report = json.loads(cdnasim(*arguments, "--json"))
    assert list(report) == ["cases", "summary"]
    assert not (tmp_path / "out").exists()  # with --json only what is asked for is written
    first, second, third = report["cases"]
    predicted = run_case("mi355x", "gemm", {"m": 512, "n": 512, "k": 128}).tflops
    assert first["predicted"] == predicted
    assert first["error"] == pytest.approx(predicted / 5 - 1)
    assert second["error"] == pytest.approx(second["predicted"] - 0.5)
    assert third["predicted"] is None and "m=500" in third["reason"]
    printed = cdnasim(*arguments, "--out", "o")
    assert "512x512x128 col-major" in printed
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [
        *("cases.csv", "report.html", "summary.json")
    ]
    assert len((tmp_path / "o" / "cases.csv").read_text().splitlines()) == 4


def test_best_order_ranks_by_time_and_knows_the_baseline(cdnasim: Command, tmp_path: Path) -> None:
    arguments = ("m=1024", "n=2048", "k=128", "tile=128x128x64", "caches=cold")
    command = ("best-order", "gemm", *arguments, "--jobs", "1", "--out", "o")
    found = json.loads(cdnasim(*command, "--json"))
    ranking = found["ranking"]
    times = [row["time_us"] for row in ranking]
    assert times == sorted(times) and found["best"] == ranking[0]
    assert len({row["params"]["order"] for row in ranking}) == len(ranking) > 20
    (base,) = (row for row in ranking if row["params"]["order"] == "row-major")
    assert base["gain_over_row_major"] == 0
    assert found["best"]["gain_over_row_major"] == pytest.approx(base["time_us"] / times[0] - 1)
    assert (tmp_path / "o" / "report.html").is_file()
    printed = cdnasim(*command, "--top", "3")
    assert f"Use order={found['best']['params']['order']}:" in printed
    assert "row-major" in printed


# ---- machines and orders ----


@pytest.mark.parametrize("name", machine_names())
def test_machine_show_lists_every_value_with_where_it_comes_from(
    name: str, cdnasim: Command
) -> None:
    lines = cdnasim("machine", "show", name).splitlines()
    machine = load_machine(name)
    rows = {line.split()[0]: line for line in lines if re.match(r"\w+\.\w+ ", line)}
    assert list(rows) == [entry.key for entry in machine.provenance]
    for entry in machine.provenance:
        row = rows[entry.key]
        assert float(row.split()[1]) == entry.value
        for text in (entry.unit, entry.confidence, entry.source, entry.note):
            assert text in row
    values = json.loads(cdnasim("machine", "show", name, "--json"))["values"]
    assert [v["key"] for v in values] == list(rows)
    assert set(values[0]) == {"key", "value", "unit", "source", "confidence", "note"}


def test_lists_name_machines_and_orders(cdnasim: Command) -> None:
    machines, orders = cdnasim("machine", "list"), cdnasim("order", "list")
    assert all(name in machines for name in machine_names())
    assert all(help_text in orders for help_text in ORDER_HELP.values())


def shown(printed: str, rows: int, cols: int) -> list[str]:
    """The lines of the map."""
    lines = [line for line in printed.splitlines() if re.fullmatch(f"[0-7·]{{{cols}}}", line)]
    assert len(lines) == rows
    return lines


def test_order_show_prints_the_tiles_that_run_at_a_time(cdnasim: Command) -> None:
    cells = set()
    for number, resident in ((0, 256), (1, 256), (2, 256), (3, 32)):
        printed = cdnasim(
            *("order", "show", "xcd:w=4,c=16", "m=8192", "n=6400", "--round", str(number))
        )
        lines = shown(printed, 32, 25)
        here = {
            (r, c): x for r, line in enumerate(lines) for c, x in enumerate(line) if x in "01234567"
        }
        assert len(here) == resident
        assert not cells & here.keys()
        cells |= here.keys()
        for x in "01234567":
            assert list(here.values()).count(x) == resident // 8
            assert f"XCD {x}: {resident // 8} tiles of" in printed
    assert len(cells) == 32 * 25


def test_order_show_maps_the_order(cdnasim: Command, tmp_path: Path) -> None:
    printed = cdnasim("order", "show", "row-major", "m=512", "n=4096", "--html", "o/map.html")
    assert shown(printed, 2, 16) == ["0123456701234567"] * 2
    assert "XCD 3: 4 tiles of 2 row blocks of A and 2 column blocks of B" in printed
    page = (tmp_path / "o" / "map.html").read_text(encoding="utf-8")
    assert "Grid order row-major" in page


# ---- the program ----


def test_version(cdnasim: Command) -> None:
    assert cdnasim("--version") == f"cdnasim {__version__}\n"


@pytest.mark.parametrize("command", ["", "simulate", "run", "validate", "best-order", "order show"])
def test_help_explains_each_command(command: str, cdnasim: Command) -> None:
    assert "Usage" in cdnasim(*command.split(), "--help")


def test_a_reader_that_closes_the_pipe_sees_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cdnasim.cli", "machine", "show", "mi355x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()


NCU = """==PROF== Connected to process 1
"ID","Kernel Name","Block Size","Grid Size","CC","gpu__time_duration.sum","dram__bytes_read.sum"
"","","","","","ns","Mbyte"
"0","gemm","(256, 1, 1)","(2048, 1, 1)","9.0","2,000,000","2,311.5"
"1","gemm","(256, 1, 1)","(2048, 1, 1)","9.0","2,100,000","2,312.5"
"2","gemm","(256, 1, 1)","(2048, 1, 1)","9.0","2,200,000","2,313.5"
"""


def test_a_profilers_file_becomes_rows_to_validate_against(
    tmp_path: Path, cdnasim: Callable[..., str]
) -> None:
    profile, rows = tmp_path / "ncu.csv", tmp_path / "rows.csv"
    profile.write_text(NCU, encoding="utf-8")
    case = ("m=8192", "n=8192", "k=8192", "tile=128x256x64", "caches=cold")
    printed = cdnasim(
        *("import", "gemm", str(profile), *case, "--machine", "h200", "--out", str(rows))
    )
    assert "time_us" in printed and "2100" in printed
    report = cdnasim("validate", "--measured", str(rows), "--json")
    cases = json.loads(report)["cases"]
    assert {c["metric"] for c in cases} == {"time_us", "tflops", "hbm_read_bytes"}
    bytes_read = next(c for c in cases if c["metric"] == "hbm_read_bytes")
    assert bytes_read["measured"] == pytest.approx(2312.5e6)
    assert bytes_read["predicted"] > 0
