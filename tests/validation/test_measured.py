"""Measured CSV files: what is read, and one clear line for everything that is refused."""

from pathlib import Path

import pytest

from cdnasim.errors import InputError
from cdnasim.validation.measured import METRICS, parse_params, read_measured, refuse_duplicates

HEADER = "suite,machine,kernel,params,metric,value,unit,source"
GOOD = 's,mi355x,gemm,"m=64;order=xcd:w=8,c=64",tflops,1.5e3,TFLOPS,"a log, 2025"'


def write(folder: Path, *lines: str, end: str = "\n") -> Path:
    path = folder / "measured.csv"
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def test_a_figure_is_read_with_its_case_and_source(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, GOOD)
    (m,) = read_measured(path)
    assert (m.suite, m.machine, m.kernel, m.metric) == ("s", "mi355x", "gemm", "tflops")
    assert m.params == {"m": "64", "order": "xcd:w=8,c=64"}
    assert m.params_text == "m=64;order=xcd:w=8,c=64"
    assert (m.value, m.unit, m.source) == (1500.0, "TFLOPS", "a log, 2025")
    assert m.where == f"{path}:2"


def test_column_order_blank_lines_byte_order_mark_and_dos_lines_do_not_matter(
    tmp_path: Path,
) -> None:
    header = "\ufeffvalue,unit,metric,params,kernel,machine,suite,source"
    path = write(tmp_path, header, "", "0.5, fraction ,l2_hit,m=1; n=2,gemm,h200,s,log", end="\r\n")
    (m,) = read_measured(path)
    assert (m.value, m.unit, m.params, m.where) == (
        0.5,
        "fraction",
        {"m": "1", "n": "2"},
        f"{path}:3",
    )


def test_the_case_does_not_depend_on_the_order_of_params(tmp_path: Path) -> None:
    rows = [
        f"s,h200,gemm,{p},{m}"
        for p, m in (("m=1;n=2", "time_us,3,us,x"), ("n=2;m=1", "cycles,4,clk,x"))
    ]
    first, second = read_measured(write(tmp_path, HEADER, *rows))
    assert first.case == second.case and first.params_text != second.params_text


@pytest.mark.parametrize(("name", "unit"), [(name, m.unit) for name, m in METRICS.items()])
def test_every_metric_is_accepted_in_its_unit_only(tmp_path: Path, name: str, unit: str) -> None:
    row = f"s,h200,gemm,m=1,{name},1,{unit},x"
    assert read_measured(write(tmp_path, HEADER, row))[0].metric == name
    with pytest.raises(InputError, match=f":2: unit 'kg' is wrong for {name}; allowed: {unit}"):
        read_measured(write(tmp_path, HEADER, row.replace(f",{unit},", ",kg,")))


def row(**changes: str) -> str:
    cells = {
        "suite": "s",
        "machine": "mi355x",
        "kernel": "gemm",
        "params": "m=64",
        "metric": "tflops",
        "value": "1500",
        "unit": "TFLOPS",
        "source": "log",
    }
    return ",".join(f'"{cell}"' for cell in (cells | changes).values())


FRACTION = {"metric": "l2_hit", "unit": "fraction"}
BAD = {
    "empty file": ([], "1: columns must be suite,"),
    "header only": ([HEADER], "holds no measured figure"),
    "column missing": ([HEADER.removesuffix(",source"), GOOD], "1: columns must be suite,"),
    "column unknown": ([f"{HEADER},note", f"{GOOD},x"], "1: columns must be suite,"),
    "column twice": ([HEADER.replace("unit", "value"), GOOD], "1: columns must be suite,"),
    "no header": ([GOOD], "1: columns must be suite,"),
    "too few cells": ([HEADER, GOOD, "s,h200,gemm"], "3: 3 cells, but the header has 8"),
    "too many cells": ([HEADER, f"{GOOD},x"], "2: 9 cells, but the header has 8"),
    "unknown suite": ([HEADER, row(suite="t")], "2: suite 't' is unknown; allowed: s"),
    "unknown metric": ([HEADER, row(metric="speed")], "2: metric 'speed' is unknown; allowed: tfl"),
    "wrong unit": ([HEADER, row(unit="GFLOPS")], "2: unit 'GFLOPS' is wrong for tflops; allowed:"),
    "empty value": ([HEADER, row(value="")], "2: column 'value' is empty"),
    "blank source": ([HEADER, row(source="  ")], "2: column 'source' is empty"),
    "empty machine": ([HEADER, row(machine="")], "2: column 'machine' is empty"),
    "text value": ([HEADER, row(value="fast")], "2: value 'fast' is not a number"),
    "nan": ([HEADER, row(value="nan")], "2: value 'nan' is not a number"),
    "underscore": ([HEADER, row(value="1_000")], "2: value '1_000' is not a number"),
    "foreign digits": ([HEADER, row(value="١٢")], "2: value '١٢' is not a number"),
    "unit in value": ([HEADER, row(value="55%")], "2: value '55%' is not a number"),
    "overflow": ([HEADER, row(value="1e999")], "2: value '1e999' must be finite and above 0"),
    "zero": ([HEADER, row(value="0")], "2: value '0' must be finite and above 0"),
    "negative": ([HEADER, row(value="-3")], "2: value '-3' must be finite and above 0"),
    "per cent": ([HEADER, row(value="55", **FRACTION)], "2: value '55' must be a fraction from 0"),
    "param without =": ([HEADER, row(params="m=1;fast")], "2: params: 'fast' is not key=value"),
    "param without value": ([HEADER, row(params="m=")], "2: params: 'm=' is not key=value"),
    "trailing semicolon": ([HEADER, row(params="m=1;")], "2: params: '' is not key=value"),
    "param twice": ([HEADER, row(params="m=1;m=2")], "2: params: key 'm' is given twice"),
    "same figure twice": ([HEADER, row(), "", row(value="9")], "4: tflops of this case is already"),
    "same case reordered": (
        [HEADER, row(params="m=1;n=2"), row(params="n=2;m=1")],
        "3: tflops of this case is already",
    ),
    "open quote": ([HEADER, GOOD, 's,"h200,gemm', "x"], "3: is not valid CSV"),
    "text after quote": ([HEADER, 's,"h200"x,gemm'], "2: is not valid CSV"),
    "line break in a cell": ([HEADER, row(value="1\n2")], "2: value '1\\n2' is not a number"),
    "huge cell": ([HEADER, row(source="x" * 200_000)], "2: is not valid CSV"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_one_line(tmp_path: Path, name: str) -> None:
    lines, reason = BAD[name]
    path = write(tmp_path, *lines)
    with pytest.raises(InputError) as caught:
        read_measured(path, suite="s")
    text = str(caught.value)
    assert text.startswith(f"{path}:") and reason in text
    assert len(text.splitlines()) == 1 and len(text) < len(str(path)) + 250


def test_a_second_figure_names_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, row(), row())
    with pytest.raises(InputError, match=r":3: tflops of this case is already given at .*csv:2$"):
        read_measured(path)


def test_the_same_case_may_stand_in_two_suites(tmp_path: Path) -> None:
    found = read_measured(write(tmp_path, HEADER, row(), row(suite="t")))
    assert [m.suite for m in found] == ["s", "t"]
    refuse_duplicates(found)


def test_text_that_is_not_utf8_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(
        f"{HEADER}\n{GOOD}\n".encode() + "s,h200,gemm,m=1,time_us,1,us,é\n".encode("latin-1")
    )
    with pytest.raises(InputError) as caught:
        read_measured(path)
    assert str(caught.value) == f"{path}:3: is not UTF-8 text"


@pytest.mark.parametrize("name", ["", "missing.csv"])
def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_measured(tmp_path / name)


def test_param_values_may_hold_equals_signs() -> None:
    assert parse_params("order=window:w=8", "here") == {"order": "window:w=8"}
