"""The suites that come with the project: consistent figures, exact marks, and refused mistakes."""

from collections import Counter
from math import prod
from pathlib import Path

import pytest

from cdnasim.errors import InputError
from cdnasim.gpu.orders import parse_order
from cdnasim.machine.model import ELEMENT_BYTES
from cdnasim.validation.measured import Measurement
from cdnasim.validation.suites import load_suites, read_suite, validation_root

SUITES = load_suites(validation_root())
FIGURES = {name: read_suite(suite) for name, suite in SUITES.items()}
ALL = [m for figures in FIGURES.values() for m in figures]


def size(m: Measurement) -> tuple[int, int, int]:
    return int(m.params["m"]), int(m.params["n"]), int(m.params["k"])


def test_every_row_of_the_sources_is_there() -> None:
    counts = {name: Counter(m.metric for m in figures) for name, figures in FIGURES.items()}
    h200 = ("tflops", "time_us", "cycles", "l2_hit", "hbm_read_bytes", "hbm_write_bytes")
    assert counts == {
        "h200_grid_order": dict.fromkeys(h200, 28),
        "xcd_grid_order": dict.fromkeys(("tflops", "l2_hit", "llc_hit"), 4),
        "window_sweep": dict.fromkeys(("tflops", "time_us"), 5),
        "traced_loops": {"k_step_clk": 2},
        "hk_bf16_gemm": dict.fromkeys(("tflops", "time_us"), 6),
        "hk_fp8_gemm": {"tflops": 2, "time_us": 1},
        "wave_specialisation": dict.fromkeys(("tflops", "time_us"), 12),
        "pingpong_interleave": {"tflops": 6},
        "mi325x_gemm": dict.fromkeys(("tflops", "time_us"), 1),
        "aiter_gemm": {"time_us": 144},
        "h200_kernels": {
            **dict.fromkeys(("tflops", "time_us"), 90),
            **dict.fromkeys(("hbm_read_bytes", "hbm_write_bytes", "l2_hit", "cycles"), 54),
        },
    }


def test_time_and_rate_of_a_case_agree() -> None:
    rate = {(m.suite, m.case): m.value for m in ALL if m.metric == "tflops"}
    times = [m for m in ALL if m.metric == "time_us"]
    assert times
    for m in times:
        if (m.suite, m.case) not in rate:
            continue  # published as a time alone
        flops = 2 * prod(size(m))
        assert flops / m.value / 1e6 == pytest.approx(rate[m.suite, m.case], rel=2e-4), m.where


def test_tiles_divide_the_output_and_orders_exist() -> None:
    for m in ALL:
        tile = [int(side) for side in m.params["tile"].split("x")]
        assert all(whole % part == 0 for whole, part in zip(size(m), tile, strict=True)), m.where
        order = m.params.get("order", "row-major")
        assert parse_order(order).spec == order


def test_hbm_traffic_is_possible() -> None:
    """Reads: at least both operands once. Writes: at most the output, some of which stays in L2."""
    for m in ALL:
        rows, cols, depth = size(m)
        element = ELEMENT_BYTES[m.params["dtype"]]
        if m.metric == "hbm_read_bytes":
            assert m.value >= (rows + cols) * depth * element
        if m.metric == "hbm_write_bytes":
            assert 0.8 * rows * cols * element < m.value < 1.05 * rows * cols * element


def test_the_calibration_marks_are_exactly_these() -> None:
    marked = {
        (name, m.machine, size(m)[0], m.params["order"], m.metric)
        for name, figures in FIGURES.items()
        for m in figures
        if SUITES[name].role(m) == "calibration"
    }
    assert marked == {
        ("h200_grid_order", "h200", 8192, "row-major", "cycles"),
        ("h200_grid_order", "h200", 8192, "row-major", "tflops"),
        ("h200_grid_order", "h200", 8192, "window:w=16", "tflops"),
        ("h200_grid_order", "h200", 4096, "row-major", "cycles"),
        ("h200_grid_order", "h200", 8192, "window:w=8", "cycles"),
        ("h200_grid_order", "h200", 14592, "window:w=8", "cycles"),
        ("h200_grid_order", "h200", 14592, "row-major", "cycles"),
        ("h200_grid_order", "h200", 14592, "row-major", "tflops"),
        ("xcd_grid_order", "mi355x", 9216, "row-major", "tflops"),
        ("xcd_grid_order", "mi355x", 14592, "row-major", "tflops"),
        ("xcd_grid_order", "mi355x", 9216, "xcd:w=7,c=216", "tflops"),
        ("hk_bf16_gemm", "mi355x", 8192, "xcd:w=8,c=64", "tflops"),
        ("hk_bf16_gemm", "mi350x", 8192, "xcd:w=8,c=64", "tflops"),
        ("hk_bf16_gemm", "mi355x", 1024, "xcd:w=2,c=4", "time_us"),
    }
    roles = Counter(SUITES[m.suite].role(m) for m in ALL)
    assert roles["calibration"] == len(marked)  # no mark covers two figures


def test_the_package_data_of_a_wheel_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, data = tmp_path / "cdnasim", tmp_path / "cdnasim" / "_data" / "validation"
    monkeypatch.setattr("importlib.resources.files", lambda name: tmp_path / name)
    with pytest.raises(InputError, match=r"no suites\.toml in"):
        validation_root()
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "suites.toml").touch()
    assert validation_root() == package.parent / "validation"
    data.mkdir(parents=True)
    (data / "suites.toml").touch()
    assert validation_root() == data


TEXTS = 'title = "t"\nquestion = "q"\nnotes = "n"\n'
FILES = 'files = ["m.csv"]\n'
BAD = {
    "not TOML": ("[s", "is not valid TOML"),
    "not a table": ("s = 1", "[s]: must be a table"),
    "no title": ('[s]\nquestion = "q"', "[s]: key 'title' is missing"),
    "unknown key": (f"[s]\n{TEXTS}{FILES}calibration = []\nfile = 1", "unknown key 'file'"),
    "empty title": (
        f"[s]\n{TEXTS.replace(chr(34) + 't' + chr(34), chr(34) * 2)}{FILES}calibration = []",
        "title: must be a text",
    ),
    "no files": (f"[s]\n{TEXTS}files = []\ncalibration = []", "files: must be a list of texts"),
    "number as file": (f"[s]\n{TEXTS}files = [1]\ncalibration = []", "files: must be a text"),
    "marks no list": (f"[s]\n{TEXTS}{FILES}calibration = 1", "calibration must be a list"),
    "mark no table": (f"[s]\n{TEXTS}{FILES}calibration = [1]", "calibration: must be a table"),
    "mark's metric": (
        f'[s]\n{TEXTS}{FILES}calibration = [{{machine="h", params="m=1", metrics=["speed"]}}]',
        "metric 'speed' is unknown; allowed: tflops",
    ),
    "mark's params": (
        f'[s]\n{TEXTS}{FILES}calibration = [{{machine="h", params="m", metrics=["cycles"]}}]',
        "params: 'm' is not key=value",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_suites_file_is_refused_with_one_line(tmp_path: Path, name: str) -> None:
    content, reason = BAD[name]
    path = tmp_path / "suites.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_suites(tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and reason in text and len(text.splitlines()) == 1


MEASURED = "suite,machine,kernel,params,metric,value,unit,source\ns,h,gemm,m=1;n=1,cycles,7,clk,x\n"


@pytest.mark.parametrize(
    ("machine", "params", "metric", "found"),
    [
        ("h", "m=1", "cycles", True),
        ("h", "n=1;m=1", "cycles", True),
        ("g", "m=1", "cycles", False),
        ("h", "m=2", "cycles", False),
        ("h", "m=1;k=1", "cycles", False),
        ("h", "m=1", "tflops", False),
    ],
)
def test_a_mark_needs_machine_metric_and_a_subset_of_params(
    tmp_path: Path, machine: str, params: str, metric: str, found: bool
) -> None:
    mark = f'{{machine="{machine}", params="{params}", metrics=["{metric}"]}}'
    content = f"[s]\n{TEXTS}{FILES}calibration = [{mark}]"
    (tmp_path / "suites.toml").write_text(content, encoding="utf-8")
    (tmp_path / "m.csv").write_text(MEASURED, encoding="utf-8")
    suite = load_suites(tmp_path)["s"]
    if found:
        assert [suite.role(m) for m in read_suite(suite)] == ["calibration"]
    else:
        with pytest.raises(InputError, match="no figure matches the calibration"):
            read_suite(suite)


def test_a_figure_in_two_files_of_a_suite_is_refused(tmp_path: Path) -> None:
    content = f'[s]\n{TEXTS}files = ["a.csv", "b.csv"]\ncalibration = []'
    (tmp_path / "suites.toml").write_text(content, encoding="utf-8")
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(MEASURED, encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.csv:2: cycles of this case is already .*a\.csv:2"):
        read_suite(load_suites(tmp_path)["s"])
