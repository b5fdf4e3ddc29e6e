"""Many cases over a few processes; finished ones are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from cdnasim.errors import InputError
from cdnasim.experiment.case import GemmCase
from cdnasim.experiment.store import ResultStore
from cdnasim.gpu.result import Result

Progress = Callable[[int, int], None]


def run_cases(
    cases: Sequence[GemmCase],
    *,
    seed: int = 0,
    jobs: int = 1,
    store: ResultStore | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """The results of `cases`, in their order. `progress(done, all)` is called after each.

    With a `store`, results that it has are taken from it and new ones are put there at once.
    Raises InputError for jobs < 1 or a case that does not fit its machine.
    """
    if jobs < 1:
        raise InputError(f"jobs={jobs} must be 1 or more")
    results: dict[int, Result] = {}

    def keep(index: int, result: Result, is_new: bool = True) -> None:
        results[index] = result
        if store and is_new:
            store.save(cases[index], seed, result)
        if progress:
            progress(len(results), len(cases))

    for index, case in enumerate(cases):
        case.launch()  # what does not fit is reported before anything runs
        stored = store.load(case, seed) if store else None
        if stored:
            keep(index, stored, is_new=False)
    missing = [index for index in range(len(cases)) if index not in results]
    workers = min(jobs, len(missing))
    if workers < 2:
        for index in missing:
            keep(index, cases[index].run(seed))
    else:
        with ProcessPoolExecutor(workers) as pool:
            futures = {pool.submit(_run, cases[i], seed): i for i in missing}
            try:
                for future in as_completed(futures):
                    keep(futures[future], future.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [results[index] for index in range(len(cases))]


def _run(case: GemmCase, seed: int) -> Result:
    return case.run(seed)
