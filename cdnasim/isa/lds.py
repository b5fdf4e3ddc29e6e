"""What an LDS instruction costs: phases, banks and conflicts.

A wave's 64 lanes are served in phases, each a fixed set of lanes; lanes of different phases never
conflict. Within a phase each bank (4 bytes wide) serves one address per clock, and lanes that ask
for the same address share it. Which lanes form a phase, and how many banks they see, differs by
instruction and architecture: lds_instructions.toml.

A lane's access is one unit that is known by the bank of its first dword: two lanes of a phase
conflict if they start in the same bank at different addresses. For naturally aligned accesses this
is the same as comparing every bank they touch. For misaligned ones it is what was measured: at 65
dwords from an aligned ds_read_b128, or at 63, the banks overlap in part, yet SQ_LDS_BANK_CONFLICT
stays 0 (HipKittens f09e968, bank_results.txt; rounding the address down to an aligned unit would
make 65 conflict). The counter says nothing about other costs of misalignment, so those clocks are a
lower bound.

Reads of one address share it according to the CDNA 4 ISA guide. Assumed: so do writes, and a phase
takes its clock even if none of its lanes is active.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdnasim.errors import InputError
from cdnasim.machine.loader import check_keys, provenance_entry, read_toml
from cdnasim.machine.model import Provenance

LANES = 64
WAVE_LANES = (32, LANES)  # of a wave: NVIDIA's warps have half as many
BANK_BYTES = 4  # a bank is one dword wide by definition

LaneArray = NDArray[np.int64]  # one value per lane: shape (64,), or (..., 64) where so stated


@dataclass(frozen=True)
class LdsInstruction:
    """How one instruction is served: `lane_phase[lane]` is the phase of a lane, counted from 0."""

    arch: str
    name: str
    bytes_per_lane: int
    banks: int
    lane_phase: tuple[int, ...]
    provenance: tuple[Provenance, ...] = field(default=(), repr=False, compare=False)

    @property
    def phases(self) -> int:
        """Number of phases: the clocks without any conflict."""
        return max(self.lane_phase) + 1

    @property
    def alignment(self) -> int:
        """Natural alignment in bytes: the access width, rounded up to a power of two."""
        return 1 << (self.bytes_per_lane - 1).bit_length()

    @property
    def assumed(self) -> bool:
        """Whether banks or phases are an assumption."""
        return any(entry.confidence == "assumed" for entry in self.provenance)

    def lanes(self, phase: int) -> NDArray[np.int64]:
        """The lanes of a phase, ascending."""
        return np.flatnonzero(np.array(self.lane_phase) == phase)


@dataclass(frozen=True)
class LdsAccess:
    """One executed instruction: what each lane asked for, and the clocks of each phase."""

    instruction: LdsInstruction
    addresses: tuple[int, ...]
    active: tuple[bool, ...]
    phases: tuple[int, ...]

    @property
    def clocks(self) -> int:
        """Clocks of all phases."""
        return sum(self.phases)

    @property
    def conflict_clocks(self) -> int:
        """Clocks beyond one per phase: what SQ_LDS_BANK_CONFLICT counts."""
        return self.clocks - len(self.phases)


@cache
def lds_instructions() -> dict[str, dict[str, LdsInstruction]]:
    """All described instructions: architecture → name → instruction."""
    with resources.as_file(resources.files("cdnasim.isa") / "lds_instructions.toml") as path:
        return instructions_from_toml(path)


def instructions_from_toml(path: Path) -> dict[str, dict[str, LdsInstruction]]:
    """Read a file like lds_instructions.toml; raises InputError naming the file and the key."""
    return {
        arch: {name: _instruction(path, arch, name, entry) for name, entry in table.items()}
        for arch, table in read_toml(path).items()
    }


def _instruction(path: Path, arch: str, name: str, table: Any) -> LdsInstruction:
    units = {"bytes_per_lane": "B/lane", "banks": "banks of 4 B", "phases": "phases"}
    where = f"{arch}.{name}"
    check_keys(f"{path}: [{where}]", table, (*units, "lanes"))
    entries = {
        key: provenance_entry(path, f"{where}.{key}", table[key], unit)
        for key, unit in units.items()
    }
    lane_phase = _lane_phase(f"{path}: {where}.lanes", table["lanes"])
    if max(lane_phase) + 1 != entries["phases"].value:
        raise InputError(f"{path}: {where}.phases: value must be the length of lanes")
    for key in ("bytes_per_lane", "banks"):
        value = entries[key].value
        if value != int(value) or value < 1:
            raise InputError(f"{path}: {where}.{key}: value {value} must be a whole number above 0")
    return LdsInstruction(
        arch,
        name,
        int(entries["bytes_per_lane"].value),
        int(entries["banks"].value),
        lane_phase,
        tuple(entries.values()),
    )


def _lane_phase(where: str, texts: Any) -> tuple[int, ...]:
    """Phase of each lane from one text per phase such as "0-3 12-15 20-27"."""
    phase_of: dict[int, int] = {}
    count = 0
    for phase, text in enumerate(texts if isinstance(texts, list) else []):
        for part in str(text).split():
            if not re.fullmatch(r"[0-9]{1,2}(-[0-9]{1,2})?", part):
                raise InputError(f"{where}: '{part}' is not a lane or a range of lanes like 0-3")
            first, _, last = part.partition("-")
            lanes = range(int(first), int(last or first) + 1)
            count += len(lanes)
            phase_of |= dict.fromkeys(lanes, phase)
    if count not in WAVE_LANES or sorted(phase_of) != list(range(count)):
        raise InputError(f"{where}: must name each lane 0-{LANES - 1} once, in one text per phase")
    if len(set(phase_of.values())) != len(texts):
        raise InputError(f"{where}: a phase has no lanes")
    return tuple(phase_of[lane] for lane in range(count))


def phases_of(instruction: str, arch: str) -> LdsInstruction:
    """The phases, banks and bytes per lane of an instruction; raises InputError if unknown."""
    known = lds_instructions()
    if arch not in known:
        raise InputError(f"LDS of '{arch}' is not described; allowed: {', '.join(known)}")
    if instruction not in known[arch]:
        allowed = ", ".join(known[arch])
        raise InputError(
            f"LDS instruction '{instruction}' is unknown for {arch}; allowed: {allowed}"
        )
    return known[arch][instruction]


def conflict(
    addresses: ArrayLike, instruction: str, arch: str, active: ArrayLike | None = None
) -> LdsAccess:
    """What `instruction` costs when lane i accesses byte address `addresses[i]`; shape (lanes,).

    active: bool per lane, shape (lanes,); left out, all lanes take part. Raises InputError for an
    unknown instruction, a wrong shape or type, or an address that is negative or not a multiple of
    4.
    """
    described = phases_of(instruction, arch)
    lanes, count = np.asarray(addresses), len(described.lane_phase)
    mask = np.ones(count, bool) if active is None else np.asarray(active)
    if lanes.shape != (count,) or lanes.dtype.kind not in "iu":
        raise InputError(f"{instruction}: addresses must be {count} integers, one per lane")
    if mask.shape != (count,) or mask.dtype.kind != "b":
        raise InputError(f"{instruction}: active must be {count} booleans, one per lane")
    wrong = np.flatnonzero(mask & ((lanes < 0) | (lanes % BANK_BYTES != 0)))
    if wrong.size:
        lane = int(wrong[0])
        raise InputError(
            f"{instruction}: address {lanes[lane]} of lane {lane} must be a multiple of "
            f"{BANK_BYTES} and not negative"
        )
    clocks = phase_clocks(lanes.astype(np.int64), described, mask)
    return LdsAccess(
        described,
        tuple(int(address) for address in lanes),
        tuple(bool(on) for on in mask),
        tuple(int(clock) for clock in clocks),
    )


def phase_clocks(
    addresses: LaneArray, instruction: LdsInstruction, active: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Clocks of each phase, shape (..., phases), for byte addresses of shape (..., 64).

    A phase takes as many clocks as its busiest bank has distinct addresses, and at least one.
    """
    clocks = np.ones((*addresses.shape[:-1], instruction.phases), np.int64)
    for phase in range(instruction.phases):
        lanes = instruction.lanes(phase)
        lanes = lanes[active[lanes]]
        if len(lanes) > 1:
            clocks[..., phase] = _requests(addresses[..., lanes], instruction.banks).max(axis=-1)
    return clocks


def _requests(addresses: LaneArray, banks: int) -> NDArray[np.int64]:
    """For each of the lanes (last axis): how many distinct addresses start in its first bank."""
    bank = addresses % (banks * BANK_BYTES)
    repeats = addresses[..., :, None] == addresses[..., None, :]
    first_to_ask = ~np.tril(repeats, -1).any(axis=-1)
    same_bank = bank[..., :, None] == bank[..., None, :]
    requests: NDArray[np.int64] = (same_bank & first_to_ask[..., None, :]).sum(axis=-1)
    return requests


def picture(access: LdsAccess) -> str:
    """A text picture for the terminal, at most 100 columns: one row per phase, one column per bank.

    A digit is the number of distinct addresses that wait for the bank (9 stands for 9 or more), a
    dot a bank that is idle. Below each row come the lanes of the phase and, if it has conflicts,
    the lanes that wait for its busiest bank.
    """
    instruction = access.instruction
    banks = instruction.banks
    ruler = "".join(f"{bank:<8}" for bank in range(0, banks, 8))
    lines = [
        f"{instruction.name} on {instruction.arch}{' (assumed)' * instruction.assumed}: "
        f"{access.clocks} clocks for {len(access.phases)} phases, "
        f"{access.conflict_clocks} of them conflicts",
        f"   bank  {ruler.rstrip()}",
    ]
    width = -(-instruction.bytes_per_lane // BANK_BYTES)
    for phase, clocks in enumerate(access.phases):
        lanes = instruction.lanes(phase)
        served = lanes[np.array(access.active)[lanes]]
        addresses = np.array(access.addresses)[served]
        requests = _requests(addresses, banks)
        first = addresses // BANK_BYTES % banks
        waiting = np.zeros(banks, np.int64)
        for step in range(width):
            np.maximum.at(waiting, (first + step) % banks, requests)
        row = "".join("." if count == 0 else str(min(count, 9)) for count in waiting)
        notes = [f"lanes {lane_ranges(lanes)}"]
        if clocks > 1:
            busiest = first[requests.argmax()]
            notes.append(
                f"bank {busiest} is wanted by lanes {lane_ranges(served[first == busiest])}"
            )
        lines.append(f"phase {phase}  {row}  {clocks} clk")
        lines += [f"{'':9}{line}" for note in notes for line in textwrap.wrap(note, 90)]
    return "\n".join(lines)


def lane_ranges(lanes: NDArray[np.int64]) -> str:
    """Ascending lanes as text: "0-3 12 14"."""
    parts = []
    for run in np.split(lanes, np.flatnonzero(np.diff(lanes) != 1) + 1):
        parts.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return " ".join(parts)
