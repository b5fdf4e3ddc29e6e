"""The store: a result comes back as it was, only for the case it belongs to, and never damaged."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdnasim.errors import InputError
from cdnasim.experiment.case import GemmCase, check_case
from cdnasim.experiment.store import ResultStore
from cdnasim.gpu.result import Result

SMALL: dict[str, Any] = {"m": 512, "n": 512, "k": 128}


def case(**params: Any) -> GemmCase:
    return check_case("mi355x", "gemm", {**SMALL, **params})


def assert_same(one: Result | None, other: Result) -> None:
    assert one is not None
    assert one.summary() == other.summary()
    for part in ("series", "log"):
        for field in dataclasses.fields(getattr(other, part)):
            mine = getattr(getattr(one, part), field.name)
            theirs = getattr(getattr(other, part), field.name)
            assert mine.dtype == theirs.dtype
            assert np.array_equal(mine, theirs)


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "new" / "cases")
    result = case().run()
    assert store.load(case(), 0) is None
    store.save(case(), 0, result)
    assert_same(store.load(case(), 0), result)
    assert [p.suffix for p in store.folder.iterdir()] == [".npz"]


def test_only_for_what_it_was_computed_from(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.save(case(), 0, case().run())
    assert store.load(case(), 1) is None
    assert store.load(case(order="col-major"), 0) is None
    assert store.load(case(caches="cold"), 0) is None
    assert store.load(case(k=192), 0) is None
    machine = case().machine
    slower = dataclasses.replace(machine, llc=dataclasses.replace(machine.llc, latency_ns=1.0))
    assert store.load(dataclasses.replace(case(), machine=slower), 0) is None


def test_a_permutation_file_that_changed_is_another_case(tmp_path: Path) -> None:
    path = tmp_path / "order.txt"
    store = ResultStore(tmp_path / "cases")
    path.write_text("0 1 2 3")
    before = case(order=f"file:{path}")
    store.save(before, 0, before.run())
    assert store.load(case(order=f"file:{path}"), 0) is not None
    path.write_text("3 2 1 0")
    assert store.load(case(order=f"file:{path}"), 0) is None


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    result = case().run()
    store.save(case(), 0, result)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 1, 4])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(data), rng.randrange(len(data))])])
        loaded = store.load(case(), 0)
        if loaded is not None:  # the change hit what does not matter, such as a date
            assert_same(loaded, result)
    for content in (b"", b"PK", data[:1000], b"not a zip file"):
        path.write_bytes(content)
        assert store.load(case(), 0) is None


def test_every_kind_of_damage_to_the_archives_directory_counts_as_none(tmp_path: Path) -> None:
    """Each byte of the first entry's header, with values that ask for unusual zip features."""
    store = ResultStore(tmp_path)
    result = case().run()
    store.save(case(), 0, result)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    directory = data.index(b"PK\x01\x02")
    for place in (*range(30), *range(directory, directory + 46)):
        for value in (1, 8, 99):
            damaged = bytearray(data)
            damaged[place] = value
            path.write_bytes(damaged)
            loaded = store.load(case(), 0)
            assert loaded is None or loaded.summary() == result.summary()


def test_nothing_in_a_file_is_unpickled(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.save(case(), 0, case().run())
    (path,) = tmp_path.iterdir()

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("unpickled",))

    np.savez(path, facts=np.array(Trap(), dtype=object))
    assert store.load(case(), 0) is None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/cases: cannot be made: Not a directory"):
        ResultStore(tmp_path / "file" / "cases")
    with pytest.raises(InputError, match="file: cannot be made: File exists"):
        ResultStore(tmp_path / "file")
