"""Finished results on disk, one file a case, so that a run that is stopped keeps them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cdnasim import __version__
from cdnasim.errors import InputError
from cdnasim.experiment.case import GemmCase
from cdnasim.gpu import chip, power
from cdnasim.gpu.result import Result, TimeSeries, Traffic, WorkgroupLog
from cdnasim.memory import fabric

SCALARS = (
    *("machine", "kernel", "params", "time_us", "tflops", "clock_mhz", "cycles"),
    *("mfma_utilisation", "occupancy", "stalls", "k_step_clk", "load_latency_clk", "wall_s"),
)


class ResultStore:
    """A folder of results, found again by everything that a result depends on."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, made if it is not there; raises InputError if that cannot be done."""
        self.folder = folder
        make_folder(folder)

    def load(self, case: GemmCase, seed: int) -> Result | None:
        """The stored result of `case`, or None if there is none that can be read."""
        path = self._path(case, seed)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return _from_arrays({name: arrays[name] for name in arrays.files})
        except Exception:  # numpy and zipfile promise no particular type for a damaged file
            return None  # not there, or damaged: it is simulated again and written anew

    def save(self, case: GemmCase, seed: int, result: Result) -> None:
        """Keep `result`; the file appears whole or not at all."""
        path = self._path(case, seed)
        partial = path.with_suffix(f".{os.getpid()}.part")
        try:
            with partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **_to_arrays(result))
            partial.replace(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None

    def _path(self, case: GemmCase, seed: int) -> Path:
        facts = repr((__version__, model_digest(), case.machine, case.profile(), seed))
        text = facts + repr(sorted(case.params.items())) + repr(hash_of_order(case))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.npz"


def make_folder(folder: Path) -> None:
    """Make `folder` if it is not there; raises InputError if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror or error}") from None


def check_folder(folder: Path) -> None:
    """Raise InputError if `folder` cannot be made because a file is in its way."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise InputError(f"{folder}: cannot be made: {place} is not a folder")


@cache
def model_digest() -> str:
    """Digest of the model's source: results of another model are not this one's."""
    digest = hashlib.sha256()
    for module in (chip, fabric, power):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def hash_of_order(case: GemmCase) -> str:
    """Digest of the tiles in launch order: a permutation file may change under the same name."""
    tiles = case.order.tiles(*case.gemm.grid, case.machine.compute.xcds)
    return hashlib.sha256(np.ascontiguousarray(tiles).tobytes()).hexdigest()


def _to_arrays(result: Result) -> dict[str, Any]:
    facts = {name: getattr(result, name) for name in SCALARS}
    facts["traffic"] = dataclasses.asdict(result.traffic)
    arrays: dict[str, Any] = {"facts": np.array(json.dumps(facts))}
    for part in ("series", "log"):
        record = getattr(result, part)
        for field in dataclasses.fields(record):
            arrays[f"{part}.{field.name}"] = getattr(record, field.name)
    return arrays


def _from_arrays(arrays: dict[str, Any]) -> Result:
    facts = json.loads(str(arrays["facts"]))
    series = {f.name: arrays[f"series.{f.name}"] for f in dataclasses.fields(TimeSeries)}
    log = {f.name: arrays[f"log.{f.name}"] for f in dataclasses.fields(WorkgroupLog)}
    return Result(
        **{name: facts[name] for name in SCALARS},
        traffic=Traffic(**facts["traffic"]),
        series=TimeSeries(**series),
        log=WorkgroupLog(**log),
    )
