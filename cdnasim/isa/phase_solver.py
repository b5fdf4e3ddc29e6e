"""Finds out the phases and banks of an LDS instruction from conflicts between pairs of lanes.

Each probe runs one instruction in which lane a reads at byte 0 and lane b at some distance: a
conflict shows that both are served in the same phase and start in the same bank. All pairs at one
distance give the phases, one pair at growing distances the banks. The probes can be answered by the
model (`model_oracle`) or by hardware (`hip_microbenchmark`, then `read_counters`).
Method: HipKittens, arXiv:2511.08083, analysis/paper_experiments/phases.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import Template

import numpy as np

from cdnasim.errors import InputError
from cdnasim.isa.lds import BANK_BYTES, LANES, LdsInstruction, conflict, phases_of
from cdnasim.isa.swizzle import TRANSPOSED_READ

# (lane a, lane b, byte distance) -> whether they conflict; always a < b.
Observe = Callable[[int, int, int], bool]
Probe = tuple[int, int, int]

PAIR_DISTANCE = 256  # bytes; the same bank for any power of two up to 64 banks
SWEEP_BYTES = 512  # twice that distance, to see the pattern repeat
COUNTER = "SQ_LDS_BANK_CONFLICT"
KERNEL = "lds_probe"


@dataclass(frozen=True)
class Solution:
    """phases: the lanes of each phase, ascending, by first lane. banks: banks of 4 bytes."""

    phases: tuple[tuple[int, ...], ...]
    banks: int


def solve(observe: Observe, alignment: int) -> Solution:
    """Phases and banks of an instruction whose accesses are aligned to `alignment` bytes.

    Raises InputError if conflicts are not transitive (so they are not phases), or if no pair shows
    the bank count.
    """
    phases = solve_phases(observe)
    pair = next((lanes[:2] for lanes in phases if len(lanes) > 1), None)
    if pair is None:
        raise InputError(f"no two lanes conflict at {PAIR_DISTANCE} B: the banks cannot be found")
    for probe in sweep_probes(alignment, (pair[0], pair[1])):
        if observe(*probe):
            return Solution(phases, probe[2] // BANK_BYTES)
    raise InputError(
        f"lanes {pair[0]} and {pair[1]} do not conflict at any distance that was tried"
    )


def solve_phases(observe: Observe) -> tuple[tuple[int, ...], ...]:
    """The groups of lanes that conflict with each other at PAIR_DISTANCE bytes (2016 probes).

    Raises InputError if two lanes conflict with a third but not with each other.
    """
    conflicts = np.eye(LANES, dtype=bool)
    for a, b, distance in pair_probes():
        conflicts[a, b] = conflicts[b, a] = observe(a, b, distance)
    for a, b in itertools.combinations(range(LANES), 2):
        differ = np.flatnonzero(conflicts[a] != conflicts[b])
        if conflicts[a, b] and differ.size:
            raise InputError(
                f"conflicts are not transitive: lanes {a} and {b} conflict, but only one of them "
                f"conflicts with lane {differ[0]}"
            )
    groups = {tuple(int(lane) for lane in np.flatnonzero(row)) for row in conflicts}
    return tuple(sorted(groups))


def pair_probes() -> list[Probe]:
    """Every pair of lanes at PAIR_DISTANCE bytes."""
    return [(a, b, PAIR_DISTANCE) for a, b in itertools.combinations(range(LANES), 2)]


def sweep_probes(alignment: int, lanes: tuple[int, int] = (0, 1)) -> list[Probe]:
    """Two lanes at every aligned distance below SWEEP_BYTES.

    Only aligned ones, because accesses that overlap in part were not seen to conflict.
    """
    a, b = lanes
    return [(a, b, distance) for distance in range(alignment, SWEEP_BYTES, alignment)]


def model_oracle(instruction: str, arch: str) -> Observe:
    """Answers of the model of lds.py; raises InputError for an unknown instruction."""
    phases_of(instruction, arch)

    def observe(a: int, b: int, distance: int) -> bool:
        lane = np.arange(LANES)
        addresses = np.where(lane == b, distance, 0)
        access = conflict(addresses, instruction, arch, (lane == a) | (lane == b))
        return access.conflict_clocks > 0

    return observe


def benchmark_probes(instruction: LdsInstruction) -> list[Probe]:
    """The probes of `hip_microbenchmark`, one dispatch each, in order."""
    return pair_probes() + sweep_probes(instruction.alignment)


def read_counters(path: Path, instruction: str, arch: str) -> Observe:
    """Answers of hardware: the counter_collection.csv that rocprofv3 wrote of `hip_microbenchmark`.

    Raises InputError if the file cannot be read, lacks a column or has not one count per probe. The
    answers raise InputError for a probe that the program does not run.
    """
    probes = benchmark_probes(phases_of(instruction, arch))
    counts = sorted(_dispatch_counts(path))
    if len(counts) != len(probes):
        raise InputError(
            f"{path}: has {len(counts)} dispatches of {KERNEL} with {COUNTER}, the program for "
            f"{instruction} makes {len(probes)}"
        )
    answers = {probe: count > 0 for probe, (_, count) in zip(probes, counts, strict=True)}

    def observe(a: int, b: int, distance: int) -> bool:
        if (a, b, distance) not in answers:
            raise InputError(f"{path}: has no probe of lanes {a} and {b} at {distance} B")
        return answers[a, b, distance]

    return observe


def _dispatch_counts(path: Path) -> list[tuple[int, float]]:
    """(dispatch id, conflict count) of each probe dispatch in a counter_collection.csv."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            rows = list(reader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: is not a CSV file in UTF-8") from None
    for key in ("Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"):
        if key not in columns:
            raise InputError(f"{path}: column '{key}' is missing")
    ours = [
        row
        for row in rows
        if row["Counter_Name"] == COUNTER and (row["Kernel_Name"] or "").startswith(KERNEL)
    ]
    try:
        return [(int(row["Dispatch_Id"]), float(row["Counter_Value"])) for row in ours]
    except (TypeError, ValueError):
        raise InputError(f"{path}: Dispatch_Id and Counter_Value must be numbers") from None


# The host part is left out of the device pass, so the kernel compiles without any HIP header.
HIP_TEMPLATE = Template("""\
// Which lanes of $name conflict, for $arch.
// One dispatch per probe: lane a accesses LDS byte 0, lane b byte `distance`.
// $idle_note
// Probes in order: all pairs a < b at $pair_distance B, then lanes 0 and 1 at $alignment, \
$twice, ... below $sweep_bytes B.
//
//   hipcc -O3 --offload-arch=$arch $name.hip -o $name
//   rocprofv3 --pmc $counter --output-format csv -- ./$name
//
// The answer of a probe is the $counter of its dispatch in counter_collection.csv:
// above 0 means that the two lanes are in one phase and start in one bank.

#if !defined(__HIP_DEVICE_COMPILE__)
#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>
#endif
#ifndef __global__
#define __global__ __attribute__((global))
#endif

using Data = $data_type;

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size($lanes, $lanes)))
$kernel(unsigned lane_a, unsigned lane_b, unsigned distance) {
    alignas(16) static __attribute__((shared)) unsigned lds[$lds_dwords];
    const unsigned lane = __builtin_amdgcn_workitem_id_x();
    const bool probed = lane == lane_a || lane == lane_b;
    const unsigned place = lane == lane_b ? distance : probed ? 0 : $alignment;
    const auto address = (__attribute__((address_space(3))) char*)lds + place;
    Data data = {};
    if ($condition) {
        asm volatile("$name %0, %1\\n\\ts_waitcnt lgkmcnt(0)"
                     $operands);
    }
}

#if !defined(__HIP_DEVICE_COMPILE__)
static void check(hipError_t status) {
    if (status != hipSuccess) {
        std::fprintf(stderr, "%s\\n", hipGetErrorString(status));
        std::exit(1);
    }
}

static void probe(unsigned lane_a, unsigned lane_b, unsigned distance) {
    $kernel<<<1, $lanes>>>(lane_a, lane_b, distance);
    check(hipGetLastError());
    check(hipDeviceSynchronize());
}

int main() {
    for (unsigned a = 0; a < $lanes; ++a)
        for (unsigned b = a + 1; b < $lanes; ++b) probe(a, b, $pair_distance);
    for (unsigned distance = $alignment; distance < $sweep_bytes; distance += $alignment)
        probe(0, 1, distance);
}
#endif
""")


def hip_microbenchmark(instruction: str, arch: str) -> str:
    """HIP source of a program that runs every probe of an instruction as one dispatch.

    Its header says how to build it and that rocprofv3 reads the counter; `read_counters` takes the
    result. The device part compiles without HIP headers. Raises InputError for an unknown
    instruction.
    """
    described = phases_of(instruction, arch)
    if "_write_" in instruction:
        operands = ':: "v"(address), "v"(data) : "memory"'
    else:
        operands = ': "=v"(data) : "v"(address) : "memory"'
    if instruction == TRANSPOSED_READ:
        note = "It needs all lanes: the others share one address in a bank of their own."
        condition = "true"
    else:
        note = "The other lanes are switched off."
        condition = "probed"
    dwords = described.bytes_per_lane // BANK_BYTES
    vector = f"unsigned __attribute__((ext_vector_type({dwords})))"
    return HIP_TEMPLATE.substitute(
        name=instruction,
        arch=arch,
        alignment=described.alignment,
        twice=2 * described.alignment,
        data_type=vector if dwords > 1 else "unsigned",  # a vector of one has no register class
        lds_dwords=(SWEEP_BYTES + described.alignment) // BANK_BYTES,
        lanes=LANES,
        pair_distance=PAIR_DISTANCE,
        sweep_bytes=SWEEP_BYTES,
        counter=COUNTER,
        kernel=KERNEL,
        operands=operands,
        condition=condition,
        idle_note=note,
    )
