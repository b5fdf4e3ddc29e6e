"""Trace files: what is saved comes back, and what is damaged is refused in one line."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdnasim.errors import InputError
from cdnasim.trace.model import KernelTrace, load_trace, save_trace
from hk_kernels.catalog import gemm_trace

TRACES = [
    ("pingpong8", "gfx950", "bf16", (256, 256, 64)),
    ("pingpong8", "gfx942", "fp16", (128, 64, 64)),
    ("interleave4", "gfx950", "fp8", (256, 256, 128)),
    ("specialized:p=4,c=8,stages=3", "gfx950", "bf16", (128, 256, 64)),
]
SMALL = ("interleave4", "gfx950", "bf16", (64, 64, 64))


@pytest.mark.parametrize("arguments", TRACES, ids=lambda a: f"{a[0]}-{a[1]}-{a[2]}")
def test_what_is_saved_comes_back(arguments: Any, tmp_path: Path) -> None:
    trace = gemm_trace(*arguments)
    path = tmp_path / "trace.json.gz"
    save_trace(trace, path)
    assert load_trace(path) == trace


def test_the_same_trace_makes_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "one.gz", tmp_path / "two.gz"
    save_trace(gemm_trace(*SMALL), first)
    gemm_trace.cache_clear()
    save_trace(gemm_trace(*SMALL), second)
    assert first.read_bytes() == second.read_bytes()
    save_trace(load_trace(first), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_trace_holds_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    save_trace(gemm_trace(*SMALL), path)
    data = json.loads(gzip.decompress(path.read_bytes()))
    assert data["kernel"] == "interleave4"
    assert set(data) == set(KernelTrace.__dataclass_fields__)


def test_a_place_that_cannot_be_written(tmp_path: Path, refusal: Callable[..., str]) -> None:
    message = refusal(save_trace, gemm_trace(*SMALL), tmp_path / "none" / "trace.gz")
    assert "trace.gz: cannot be written: No such file" in message


# Damaged files ------------------------------------------------------------------------------------


def first_instruction(data: Any) -> Any:
    return data["roles"][0]["body"][0]


def loop(data: Any) -> Any:
    return next(node for node in data["roles"][0]["body"] if "body" in node)


def first_mfma(data: Any) -> Any:
    return next(node for node in loop(data)["body"] if node["unit"] == "mfma")


def set_to(*where: Any, value: Any) -> Callable[[Any], Any]:
    """Another value at a place of the data."""

    def damage(data: Any) -> Any:
        inner = data
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = value
        return data

    return damage


def without(find: Callable[[Any], Any], key: str) -> Callable[[Any], Any]:
    def damage(data: Any) -> Any:
        del find(data)[key]
        return data

    return damage


def with_value(find: Callable[[Any], Any], key: str, value: Any) -> Callable[[Any], Any]:
    def damage(data: Any) -> Any:
        find(data)[key] = value
        return data

    return damage


def itself(data: Any) -> Any:
    return data


DAMAGES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("version", set_to("version", value=3), "trace version 3 is unknown; allowed: 2"),
    ("no version", without(itself, "version"), "trace version None is unknown"),
    ("unknown key", set_to("colour", value=1), "trace: key 'colour' is unknown"),
    ("missing key", without(itself, "waves"), "trace: key 'waves' is missing"),
    ("unknown key inside", with_value(first_instruction, "x", 1), "body[0]: key 'x' is unknown"),
    ("missing key inside", without(first_instruction, "unit"), "body[0]: key 'unit' is missing"),
    ("missing key of a loop", without(loop, "is_k_loop"), "key 'is_k_loop' is missing"),
    ("text for a number", set_to("waves", value="8"), "trace.waves must be of type int, not '8'"),
    ("fraction", set_to("lds_bytes", value=1.5), "trace.lds_bytes must be of type int, not 1.5"),
    ("truth", set_to("waves", value=True), "trace.waves must be of type int, not True"),
    ("nothing", set_to("kernel", value=None), "trace.kernel must be of type str, not None"),
    ("number for a truth", with_value(loop, "is_k_loop", 1), "is_k_loop must be of type bool"),
    ("no list", set_to("lines", value={}), "trace.lines must be a list"),
    ("no table", set_to("parameters", value=[]), "trace.parameters must be a table"),
    ("parameter", set_to("parameters", "bm", value="1"), "trace.parameters.bm must be of type int"),
    ("role", set_to("roles", 0, value=7), "trace.roles[0] must be a table"),
    ("lead", set_to("operands", 0, "lead", value="far"), "operands[0].lead must be of type float"),
    ("unit", with_value(first_instruction, "unit", "gpu"), "is unknown; allowed: mfma, valu"),
    ("line", with_value(first_instruction, "line", 999), "line 999 is not one of the"),
    ("line below 0", with_value(first_instruction, "line", -1), "line -1 is not one of the"),
    ("lines", set_to("lines", value=[]), "is not one of the trace's lines"),
    ("a list", lambda data: [data], "trace version None is unknown"),
    ("a number", lambda data: 5, "trace version None is unknown"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("trace") / "trace.gz"
    save_trace(gemm_trace(*SMALL), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("damage", "wanted"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES]
)
def test_wrong_contents(
    damage: Callable[[Any], Any],
    wanted: str,
    saved: bytes,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    data = damage(copy.deepcopy(json.loads(gzip.decompress(saved))))
    path = tmp_path / "damaged.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    message = refusal(load_trace, path)
    assert message.startswith(f"{path}: ")
    assert wanted in message
    assert len(message) < len(str(path)) + 300


def test_a_whole_number_may_stand_for_a_fraction(saved: bytes, tmp_path: Path) -> None:
    data = json.loads(gzip.decompress(saved))
    data["operands"][0]["lead"] = 1
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    assert load_trace(path).operands[0].lead == 1.0


RAW: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("empty", lambda data: b"", "is damaged"),
    ("not gzip", lambda data: b"hello, world", "cannot be read as a trace"),
    ("truncated", lambda data: data[: len(data) // 2], "is damaged"),
    ("truncated header", lambda data: data[:5], "is damaged"),
    ("flipped", lambda data: data[:40] + bytes([data[40] ^ 255]) + data[41:], ""),
    ("checksum", lambda data: data[:-8] + b"12345678", ""),
    ("not JSON", lambda data: gzip.compress(b"{'version': 1}"), "is damaged"),
    ("not UTF-8", lambda data: gzip.compress(b"\xff\xfe{}"), "is damaged"),
    ("cut JSON", lambda data: gzip.compress(gzip.decompress(data)[:-40]), "is damaged"),
    ("deep", lambda data: gzip.compress(b"[" * 100_000), "is damaged"),
]


@pytest.mark.parametrize(("damage", "wanted"), [d[1:] for d in RAW], ids=[d[0] for d in RAW])
def test_damaged_bytes(
    damage: Callable[[bytes], bytes],
    wanted: str,
    saved: bytes,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    path = tmp_path / "damaged.gz"
    path.write_bytes(damage(saved))
    message = refusal(load_trace, path)
    assert message.startswith(f"{path}: ")
    assert wanted in message


def test_files_that_are_none(tmp_path: Path, refusal: Callable[..., str]) -> None:
    assert "cannot be read as a trace: No such file" in refusal(load_trace, tmp_path / "none")
    assert "cannot be read as a trace: Is a directory" in refusal(load_trace, tmp_path)


def test_any_cut_is_refused(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    for length in range(0, len(saved), 97):
        path.write_bytes(saved[:length])
        with pytest.raises(InputError):
            load_trace(path)


def nested(data: Any) -> Any:
    """More loops in loops than the reader's recursion goes down."""
    for _ in range(330):
        data["roles"][0]["body"] = [
            {"count": 1, "is_k_loop": False, "body": data["roles"][0]["body"]}
        ]
    return data


@pytest.mark.parametrize(
    "damage",
    [
        set_to("waves", value=-1),
        set_to("tile", value=[256]),
        set_to("operands", value=[]),
        set_to("operands", 0, "lead", value=float("nan")),
        set_to("operands", 0, "axis", value="diagonal"),
        with_value(loop, "count", -5),
        with_value(loop, "count", 1 << 40),
        with_value(loop, "body", []),
        with_value(loop, "is_k_loop", False),
        set_to("roles", 0, "body", value=[]),
        with_value(first_mfma, "dst", []),
        with_value(first_instruction, "operand", 9),
        nested,
    ],
)
def test_values_out_of_range(damage: Callable[[Any], Any], saved: bytes, tmp_path: Path) -> None:
    data = damage(json.loads(gzip.decompress(saved)))
    path = tmp_path / "damaged.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    with pytest.raises(InputError):
        load_trace(path)
