"""Machine descriptions: complete, sourced, plausible; malformed ones refused in one line."""

import dataclasses
import re
from importlib import resources
from pathlib import Path

import pytest

from cdnasim.errors import InputError
from cdnasim.machine.loader import (
    CONFIDENCES,
    load_machine,
    machine_from_toml,
    machine_names,
    read_toml,
)
from cdnasim.machine.model import MATRIX_DTYPES, Machine

MI355X = (resources.files("cdnasim.machine") / "mi355x.toml").read_text(encoding="utf-8")
each_machine = pytest.mark.parametrize("name", machine_names())


def sections(machine: Machine) -> dict[str, object]:
    return {
        f.name: getattr(machine, f.name)
        for f in dataclasses.fields(machine)
        if dataclasses.is_dataclass(getattr(machine, f.name))
    }


def test_these_machines_are_shipped() -> None:
    assert machine_names() == ["h200", "mi300x", "mi325x", "mi350x", "mi355x"]


@each_machine
def test_every_value_has_unit_source_and_confidence(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    entries = {entry.key: entry for entry in machine.provenance}
    assert len(entries) == len(machine.provenance)
    keys = set()
    for section, record in sections(machine).items():
        for field in dataclasses.fields(record):  # type: ignore[arg-type]
            entry = entries[f"{section}.{field.name}"]
            keys.add(entry.key)
            assert entry.value == getattr(record, field.name)
            assert entry.unit == field.metadata["unit"]
            assert entry.source and entry.confidence in CONFIDENCES
    assert keys == set(entries)


@each_machine
def test_values_are_plausible(name: str) -> None:
    machine = load_machine(name)
    assert machine.hbm.scattered_tbs <= machine.hbm.stream_tbs <= machine.hbm.peak_tbs
    assert machine.hbm.write_tbs <= machine.hbm.peak_tbs
    assert machine.power.static_w < machine.power.limit_w
    if machine.llc.bytes:
        assert machine.llc.latency_ns < machine.hbm.latency_ns
        assert machine.llc.bytes > machine.compute.xcds * machine.l2.bytes
    assert all(machine.matrix_rate(dtype) > 0 for dtype in MATRIX_DTYPES)


@pytest.mark.parametrize(
    ("name", "cus", "peak_tflops"),
    [
        # dense bf16 of the data sheets
        ("mi355x", 256, 2516.6),
        ("mi350x", 256, 2307.0),
        ("mi325x", 304, 1307.4),
        ("mi300x", 304, 1307.4),
    ],
)
def test_peak_rates_of_the_data_sheets(name: str, cus: int, peak_tflops: float) -> None:
    machine = load_machine(name)
    assert machine.cus == cus
    rate = machine.cus * machine.matrix_rate("bf16") * machine.compute.clock_max_ghz * 1e-3
    assert rate == pytest.approx(peak_tflops, rel=1e-3)


def test_a_machine_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MI355X, encoding="utf-8")
    assert load_machine(str(path)) == load_machine("mi355x")


def edited(tmp_path: Path, old: str, new: str) -> Path:
    """The mi355x description with one replacement."""
    text, count = re.subn(old, new, MI355X, count=1, flags=re.MULTILINE)
    assert count == 1
    path = tmp_path / "edited.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        machine_from_toml(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and len(text.splitlines()) == 1
    return text[len(str(path)) :]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (r"^name = .*$", "", ": key 'name' is missing"),
        (r"^arch = .*$", "arch = 3", ": key 'arch' must be a text that is not empty"),
        (r"^arch = .*$", "arch = ''", ": key 'arch' must be a text that is not empty"),
        (r"^\[link\]$", "[lnk]", ": unknown key 'lnk'; allowed: name, description, arch, compute"),
        (r"^\[link\]\n.*\n", "", ": key 'link' is missing"),
        (r"^xcds = ", "xcd = ", ": [compute]: unknown key 'xcd'; allowed: xcds, cus_per_xcd"),
        (r"^xcds = .*$", "", ": [compute]: key 'xcds' is missing"),
        (r"^xcds = .*$", "xcds = 8", ": compute.xcds: must be a table with the keys value, unit"),
        (
            r"value = 8, unit",
            "valu = 8, unit",
            ": compute.xcds: unknown key 'valu'; allowed: value",
        ),
        (r"value = 8, unit", 'value = "8", unit', ": compute.xcds: value must be a number"),
        (r"value = 8, unit", "value = true, unit", ": compute.xcds: value must be a number"),
        (r"value = 8, unit", "value = [8], unit", ": compute.xcds: value must be a number"),
        (r"value = 8, unit", "value = 8.5, unit", ": compute.xcds: value 8.5 must be a whole"),
        (r"value = 8, unit", "value = -8, unit", ": compute.xcds: value -8 must be more than 0"),
        (r"value = 8, unit", "value = nan, unit", ": compute.xcds: value nan must be more than 0"),
        (r"value = 8, unit", "value = inf, unit", ": compute.xcds: value inf must be more than 0"),
        (r'unit = "GHz"', 'unit = "MHz"', "clock_max_ghz: unit 'MHz' is wrong; allowed: 'GHz'"),
        (r'unit = "GHz"', "unit = 3", "clock_max_ghz: unit '3' is wrong; allowed: 'GHz'"),
        (r', unit = "GHz"', "", "clock_max_ghz: key 'unit' is missing"),
        (
            r'confidence = "documented"',
            'confidence = "sure"',
            "confidence 'sure' is unknown; allowed: documented, measured, calibrated, assumed",
        ),
        (r'source = "[^"]*"', 'source = ""', "source must be a text that is not empty"),
        (r'source = "[^"]*"', "source = 3", "source must be a text that is not empty"),
        (r'(note = )"[^"]*"', r"\1 3", "note must be a text that is not empty"),
        (r"^name", "= name", ": is not valid TOML:"),
    ],
)
def test_malformed_descriptions_are_refused(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    assert reason in refusal(edited(tmp_path, old, new))


def test_a_description_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.toml"
    data = MI355X.encode()
    for length in range(0, len(data.rstrip()), 97):
        path.write_bytes(data[:length])
        refusal(path)


def test_files_that_are_not_utf8_text_or_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(InputError, match=r"bytes\.toml: is not UTF-8 text \(byte 8\)"):
        read_toml(path)
    with pytest.raises(InputError, match=r"none\.toml: cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path)


def test_an_unknown_machine_is_refused_with_those_known() -> None:
    with pytest.raises(InputError) as caught:
        load_machine("mi999")
    assert "machine 'mi999' is unknown; allowed: h200, mi300x, mi325x, " in str(caught.value)


ZERO_DIVIDES = [
    "cus_per_xcd",
    "clock_max_ghz",
    "bf16_flops_per_clk",
    "copies",
    "coalesced_cus",
    "bytes_per_clk",
    "read_tbs",
    "stream_tbs",
    "scattered_tbs",
    "write_tbs",
    "limit_w",
]


@pytest.mark.parametrize("key", ZERO_DIVIDES)
def test_zero_is_refused_where_the_model_divides(tmp_path: Path, key: str) -> None:
    path = edited(tmp_path, rf"^({key} = {{value = )[^,]*", r"\g<1>0")
    assert key in refusal(path)
