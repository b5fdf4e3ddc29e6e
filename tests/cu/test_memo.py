"""Profiles kept on disk: found again, never believed when damaged or of another kernel."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cdnasim.cu import memo
from cdnasim.cu.profile import CuProfile, cu_profile
from cdnasim.trace.model import KernelTrace
from hk_kernels.catalog import gemm_trace


@pytest.fixture(scope="module")
def trace() -> KernelTrace:
    return gemm_trace("interleave4", "gfx950", "fp8", (128, 128, 128))


@pytest.fixture(scope="module")
def expected(trace: KernelTrace) -> CuProfile:
    return cu_profile(trace)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDNASIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def never(*_: object) -> CuProfile:
    raise AssertionError("computed anew")


def test_a_profile_is_found_again(
    folder: Path, trace: KernelTrace, expected: CuProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memo.kept_profile(trace, 1) == expected
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(memo, "cu_profile", never)
    assert memo.kept_profile(trace, 1) == expected
    with pytest.raises(AssertionError):
        memo.kept_profile(trace, 2)
    with pytest.raises(AssertionError):
        memo.kept_profile(dataclasses.replace(trace, kernel="other"), 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-5],
        lambda text: "[]",
        lambda text: "7",
        lambda text: json.dumps({"profile": {}, "checksum": ""}),
        lambda text: text.replace('"prologue_clk": ', '"prologue_clk": 1'),
        lambda text: text.replace("loop_clk", "loop"),
    ],
)
def test_a_damaged_file_is_computed_anew_and_mended(
    damage: object, folder: Path, trace: KernelTrace, expected: CuProfile
) -> None:
    assert callable(damage)
    memo.kept_profile(trace, 1)
    (path,) = folder.iterdir()
    whole = path.read_text()
    path.write_text(damage(whole))
    assert memo.kept_profile(trace, 1) == expected
    assert path.read_text() == whole


def test_another_program_finds_nothing(
    folder: Path, trace: KernelTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo.kept_profile(trace, 1)
    monkeypatch.setattr(memo, "_program", lambda: b"another version")
    memo.kept_profile(trace, 1)
    assert len(list(folder.iterdir())) == 2


def test_where_nothing_can_be_written_nothing_is_kept(
    folder: Path, trace: KernelTrace, expected: CuProfile
) -> None:
    folder.write_text("a file where the folder should be")
    assert memo.kept_profile(trace, 1) == expected
