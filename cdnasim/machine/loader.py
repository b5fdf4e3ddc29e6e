"""Machine descriptions from TOML: every key present, none unknown, units as declared."""

from __future__ import annotations

import dataclasses
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cdnasim.errors import InputError
from cdnasim.machine.model import Confidence, Machine, Provenance

CONFIDENCES: tuple[str, ...] = get_args(Confidence)
ENTRY_KEYS = ("value", "unit", "source", "confidence")
HEADER = ("name", "description", "arch")
MAX_VALUE = 1e15  # above any number of bytes, clocks or watts that makes sense
MAX_CUS = 65_536


def read_toml(path: Path) -> dict[str, Any]:
    """The table in `path`; raises InputError (one line) if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: is not valid TOML: {error}") from None


def check_keys(
    where: str, have: Any, need: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    """Raise InputError unless the table `have` has all of `need` and nothing beyond `optional`."""
    if not isinstance(have, dict):
        raise InputError(f"{where}: must be a table with the keys {', '.join(need)}")
    for key in have:
        if key not in need and key not in optional:
            allowed = ", ".join(need + optional)
            raise InputError(f"{where}: unknown key '{key}'; allowed: {allowed}")
    for key in need:
        if key not in have:
            raise InputError(f"{where}: key '{key}' is missing")


def machine_names() -> list[str]:
    """Names of the machines that come with the package."""
    files = resources.files("cdnasim.machine").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


@cache
def load_machine(name: str) -> Machine:
    """The machine `name`, or the one in the TOML file that `name` is the path of.

    Raises InputError for an unknown name or a malformed file.
    """
    if name in machine_names():
        with resources.as_file(resources.files("cdnasim.machine") / f"{name}.toml") as path:
            return machine_from_toml(path)
    if name.endswith(".toml"):
        return machine_from_toml(Path(name))
    known = ", ".join(machine_names())
    raise InputError(f"machine '{name}' is unknown; allowed: {known}, or the path of a .toml file")


def machine_from_toml(path: Path) -> Machine:
    """Read one machine description; raises InputError naming file, key and what is allowed."""
    table = read_toml(path)
    hints = get_type_hints(Machine)
    sections = [
        f.name for f in dataclasses.fields(Machine) if dataclasses.is_dataclass(hints[f.name])
    ]
    check_keys(str(path), table, (*HEADER, *sections))
    for key in HEADER:
        if not isinstance(table[key], str) or not table[key]:
            raise InputError(f"{path}: key '{key}' must be a text that is not empty")
    provenance: list[Provenance] = []
    parts = {}
    for section in sections:
        parts[section], entries = read_record(path, section, table[section], hints[section])
        provenance += entries
    machine = Machine(**{k: table[k] for k in HEADER}, **parts, provenance=tuple(provenance))
    if machine.cus > MAX_CUS:
        raise InputError(f"{path}: compute: {machine.cus} CUs; allowed: at most {MAX_CUS}")
    llc = machine.llc
    if llc.bytes and not (llc.ways and llc.channels and llc.read_tbs):
        raise InputError(f"{path}: llc: ways, channels and read_tbs must be more than 0 for an LLC")
    if machine.power.static_w >= machine.power.limit_w:
        raise InputError(f"{path}: power: static_w must be below limit_w")
    return machine


def read_record(
    path: Path, section: str, table: Any, record: type
) -> tuple[Any, tuple[Provenance, ...]]:
    """The dataclass `record` of `param` fields from one table of a description, and its sources.

    Raises InputError naming file, key and what is allowed.
    """
    fields = dataclasses.fields(record)
    check_keys(f"{path}: [{section}]", table, tuple(f.name for f in fields))
    types = get_type_hints(record)
    values: dict[str, Any] = {}
    provenance = []
    for f in fields:
        entry = provenance_entry(
            path,
            f"{section}.{f.name}",
            table[f.name],
            f.metadata["unit"],
            may_be_zero=f.metadata["may_be_zero"],
        )
        if types[f.name] is int and entry.value != int(entry.value):
            raise InputError(f"{path}: {entry.key}: value {entry.value} must be a whole number")
        values[f.name] = types[f.name](entry.value)
        provenance.append(entry)
    return record(**values), tuple(provenance)


def provenance_entry(
    path: Path, key: str, entry: Any, unit: str, *, may_be_zero: bool = False
) -> Provenance:
    """Check one `{value, unit, source, confidence[, note]}` table of a description."""
    check_keys(f"{path}: {key}", entry, ENTRY_KEYS, ("note",))
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{path}: {key}: value must be a number, not {value!r}")
    if not 0 <= value <= MAX_VALUE or (value == 0 and not may_be_zero):
        least = "0" if may_be_zero else "more than 0"
        raise InputError(f"{path}: {key}: value {value:.6g} must be {least} up to {MAX_VALUE:g}")
    if entry["unit"] != unit:
        raise InputError(f"{path}: {key}: unit '{entry['unit']}' is wrong; allowed: '{unit}'")
    if entry["confidence"] not in CONFIDENCES:
        allowed = ", ".join(CONFIDENCES)
        raise InputError(
            f"{path}: {key}: confidence '{entry['confidence']}' is unknown; allowed: {allowed}"
        )
    for text in ("source", "note"):
        if not isinstance(entry.get(text, ""), str) or entry.get(text) == "":
            raise InputError(f"{path}: {key}: {text} must be a text that is not empty")
    return Provenance(key, value, unit, entry["source"], entry["confidence"], entry.get("note", ""))
