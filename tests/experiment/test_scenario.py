"""Scenarios: those that are shipped, the product of a sweep, and refusals in one line."""

from pathlib import Path

import pytest

from cdnasim.errors import InputError
from cdnasim.experiment.case import check_case
from cdnasim.experiment.scenario import (
    case_key,
    load_scenario,
    measured_for,
    measured_of,
    scenario_names,
)

TEXT = """
title = "A small question"
question = "What does the order do?"
machine = "mi355x"
kernel = "gemm"

[[group]]
title = "first"
params = {m = 512, n = 512, tile = "128x128x64"}
sweep = {order = ["row-major", "window:w=2"], k = [64, 128]}

[[group]]
title = "second"
params = {m = 512, n = 512, k = 64}
sweep = {}
"""


def scenario_file(folder: Path, text: str = TEXT, name: str = "mine") -> str:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---- those that are shipped ----


@pytest.mark.parametrize("name", scenario_names())
def test_shipped_scenarios_can_be_run(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.title and scenario.question.strip()
    for group in scenario.groups:
        assert len(group.cases) > 1  # something to compare
        assert len({case_key(case) for case in group.cases}) == len(group.cases)
        for case in group.cases:
            case.launch()


def test_the_question_of_the_project_is_shipped() -> None:
    assert {"xcd_grid_order", "window_sweep", "h200_grid_order"} <= set(scenario_names())


@pytest.mark.parametrize("name", scenario_names())
def test_measured_figures_stand_beside_the_cases_they_belong_to(name: str) -> None:
    scenario = load_scenario(name)
    found = measured_for(scenario)
    assert bool(found) == bool(scenario.measured)
    beside = [m for group in scenario.groups for m in measured_of(group.cases, found)]
    if scenario.measured:
        assert any("tflops" in m for m in beside)


def test_published_grid_orders_have_their_published_rates() -> None:
    scenario = load_scenario("xcd_grid_order")
    found = measured_for(scenario)
    rates = {
        (case.params["m"], case.params["order"]): m["tflops"]
        for group in scenario.groups
        for case, m in zip(group.cases, measured_of(group.cases, found), strict=True)
        if "tflops" in m
    }
    # arXiv 2511.08083v1, Table 4
    assert rates == {
        (9216, "row-major"): 1113,
        (9216, "xcd:w=7,c=216"): 991,
        (14592, "row-major"): 900,
        (14592, "xcd:w=8,c=542"): 980,
    }


# ---- files ----


def test_a_sweep_is_the_product_of_its_lists(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path))
    assert (scenario.name, scenario.title) == ("mine", "A small question")
    first, second = scenario.groups
    assert [(c.params["order"], c.params["k"]) for c in first.cases] == [
        ("row-major", 64),
        ("row-major", 128),
        ("window:w=2", 64),
        ("window:w=2", 128),
    ]
    assert {c.params["tile"] for c in first.cases} == {"128x128x64"}
    assert [c.params["k"] for c in second.cases] == [64]


def test_changes_apply_to_all_cases_and_equal_cases_run_once(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path), {"k": "256", "machine": "mi350x"})
    first, second = scenario.groups
    assert [(c.params["order"], c.params["k"]) for c in first.cases] == [
        ("row-major", 256),
        ("window:w=2", 256),
    ]
    assert {c.machine.name for g in scenario.groups for c in g.cases} == {"mi350x"}
    assert scenario.machine == "mi350x"
    assert len(second.cases) == 1


def test_a_case_is_recognised_by_its_meaning() -> None:
    sizes = {"m": 512, "n": 512, "k": 64}
    short = check_case("mi355x", "gemm", sizes)
    full = check_case("mi355x", "gemm", {**short.params, "order": "row-major"})
    other = check_case("mi355x", "gemm", {**sizes, "caches": "cold"})
    assert case_key(short) == case_key(full) != case_key(other)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('title = "A small question"', "", ": key 'title' is missing"),
        ('title = "A small question"', "title = 3", ": key 'title' must be a text that is not"),
        ('kernel = "gemm"', 'kernel = "conv"', ": kernel 'conv' is unknown; allowed: gemm"),
        ('kernel = "gemm"', 'kernel = "gemm"\nspeed = 3', ": unknown key 'speed'; allowed: title"),
        ('machine = "mi355x"', 'machine = "mi1"', ": group 1: machine 'mi1' is unknown"),
        ("[[group]]", "[group]", "is not valid TOML"),
        ('title = "first"', "", ": group 1: key 'title' is missing"),
        ('title = "first"', "title = 3", ": group 1: title must be a text"),
        ('title = "first"', 'title = "first"\nstep = 1', ": group 1: unknown key 'step'; allowed"),
        ("m = 512, n = 512, tile", "mm = 512, n = 512, tile", "1: params: unknown key 'mm'"),
        ("m = 512, n = 512, tile", "m = 500, n = 512, tile", ": group 1: m=500 is not a multiple"),
        ("sweep = {order", "sweep = {ordr", ": group 1: sweep: unknown key 'ordr'; allowed: m, n"),
        ("k = [64, 128]", "k = 64", ": group 1: sweep.k must be a list of texts or numbers"),
        ("k = [64, 128]", "k = [6.4]", ": group 1: sweep.k must be a list of texts or numbers"),
        ("k = [64, 128]", "k = []", ": group 1: sweep.k must not be empty"),
        ("sweep = {}", "sweep = 3", ": group 2: sweep: must be a table"),
        ("sweep = {}", "cases = []", ": group 2: cases must be a list of tables that is not"),
        ("sweep = {}", "cases = [3]", ": group 2: cases: must be a table"),
        ("sweep = {}", "cases = [{depth = 3}]", ": group 2: cases: unknown key 'depth'"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in TEXT
    path = scenario_file(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    text = str(caught.value)
    assert text.startswith(path) and text.count(path) == 1
    assert reason in text and len(text.splitlines()) == 1


@pytest.mark.parametrize("groups", ["", "group = []", "group = 3", 'group = ["a"]', "[[group]]"])
def test_a_scenario_needs_whole_groups(tmp_path: Path, groups: str) -> None:
    path = scenario_file(tmp_path, TEXT[: TEXT.index("[[group]]")] + groups)
    with pytest.raises(InputError, match="group"):
        load_scenario(path)


def test_a_file_cut_anywhere_is_refused_or_whole(tmp_path: Path) -> None:
    whole = 0
    for length in range(len(TEXT)):
        path = scenario_file(tmp_path, TEXT[:length])
        try:
            load_scenario(path)
            whole += 1
        except InputError as error:
            assert str(error).startswith(path)
    assert whole < 30  # before the second group, and at the very end


def test_unknown_names_and_changes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="scenario 'x' is unknown; allowed: h200_grid_order, "):
        load_scenario("x")
    with pytest.raises(InputError, match=r"x\.toml: cannot be read: No such file"):
        load_scenario(str(tmp_path / "x.toml"))
    with pytest.raises(InputError, match="--set speed: unknown; allowed: machine, m, n, k, "):
        load_scenario(scenario_file(tmp_path), {"speed": "1"})
    text = TEXT.replace('kernel = "gemm"', 'kernel = "gemm"\nmeasured = ["nope"]')
    with pytest.raises(InputError, match="measured suite 'nope' is unknown; allowed: h200_grid"):
        measured_for(load_scenario(scenario_file(tmp_path, text)))


def test_listed_cases_are_swept_too(tmp_path: Path) -> None:
    text = TEXT.replace(
        "sweep = {}", 'cases = [{dtype = "fp16"}, {dtype = "bf16"}]\nsweep = {k = [64, 128]}', 1
    )
    group = load_scenario(str(scenario_file(tmp_path, text))).groups[1]
    assert [(c.gemm.dtype, c.gemm.k) for c in group.cases] == [
        ("fp16", 64),
        ("fp16", 128),
        ("bf16", 64),
        ("bf16", 128),
    ]
