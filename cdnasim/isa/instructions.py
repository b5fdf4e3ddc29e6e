"""Known instructions: size of the encoding and rate class, from instructions.toml."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources

from cdnasim.machine.loader import read_toml


class Rate(Enum):
    """How fast the vector unit takes an instruction; NONE for those of other units."""

    NONE = "none"
    FULL = "full"
    TRANSCENDENTAL = "transcendental"
    PACKED = "packed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Encoding:
    """rate: class of the vector unit. bytes: of the encoding (B)."""

    rate: Rate
    bytes: int


@cache
def encoding_of(mnemonic: str) -> Encoding | None:
    """The family that `mnemonic` belongs to; None if it is not known."""
    fitting = [start for start in _families() if mnemonic.startswith(start)]
    return _families()[max(fitting, key=len)] if fitting else None


@cache
def _families() -> dict[str, Encoding]:
    with resources.as_file(resources.files("cdnasim.isa") / "instructions.toml") as path:
        tables = read_toml(path)
    return {
        start: Encoding(Rate(rate), int(size))
        for rate, sizes in tables.items()
        for size, starts in sizes.items()
        for start in starts
    }
