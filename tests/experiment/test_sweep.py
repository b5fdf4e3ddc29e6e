"""Many cases: order, progress, processes, and that finished ones are kept."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cdnasim.errors import InputError
from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.experiment.store import ResultStore
from cdnasim.experiment.sweep import run_cases
from cdnasim.gpu.result import Result

ORDERS = ("row-major", "col-major", "window:w=2", "hilbert")


def cases() -> list[GemmCase]:
    sizes = {"m": 1024, "n": 512, "k": 128}
    return [check_case("mi355x", "gemm", {**sizes, "order": order}) for order in ORDERS]


def facts(results: list[Result]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.summary().items() if k != "wall_s"} for r in results]


def test_results_come_in_the_order_of_the_cases_from_any_number_of_processes() -> None:
    seen: list[tuple[int, int]] = []
    alone = run_cases(cases(), seed=3)
    together = run_cases(cases(), seed=3, jobs=2, progress=lambda *done: seen.append(done))
    assert [r.params["order"] for r in alone] == list(ORDERS)
    assert facts(alone) == facts(together)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert facts(run_cases(cases(), seed=4)) != facts(alone)


def test_what_a_stopped_sweep_finished_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore(tmp_path)
    ran: list[str] = []
    run = GemmCase.run

    def stops_at_the_third(case: GemmCase, seed: int = 0) -> Result:
        ran.append(case.params["order"])
        if len(ran) == 3:
            raise KeyboardInterrupt
        return run(case, seed)

    monkeypatch.setattr(GemmCase, "run", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run_cases(cases(), store=store)
    assert ran == list(ORDERS[:3])
    ran[:] = ["stopped", "before", "this"]
    results = run_cases(cases(), store=store)
    assert ran[3:] == list(ORDERS[2:])
    monkeypatch.undo()
    assert facts(results) == facts(run_cases(cases()))


def test_a_case_that_does_not_fit_is_refused_before_any_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(case: GemmCase, seed: int = 0) -> Result:
        raise AssertionError("ran")

    monkeypatch.setattr(GemmCase, "run", never)
    first = cases()[0]
    huge = dataclasses.replace(first, gemm=dataclasses.replace(first.gemm, tile=(512, 512, 64)))
    with pytest.raises(InputError, match="B of LDS needed"):
        run_cases([first, huge])


def test_no_processes_are_refused_and_no_cases_are_fine() -> None:
    with pytest.raises(InputError, match="jobs=0 must be 1 or more"):
        run_cases(cases(), jobs=0)
    assert run_cases([]) == []
