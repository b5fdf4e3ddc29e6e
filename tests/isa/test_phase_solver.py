"""The solver recovers what answers it: the model, random phase maps, a counter file."""

import csv
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdnasim.errors import InputError
from cdnasim.isa.lds import LANES, LdsInstruction, lds_instructions, phases_of
from cdnasim.isa.phase_solver import (
    benchmark_probes,
    hip_microbenchmark,
    model_oracle,
    pair_probes,
    read_counters,
    solve,
    solve_phases,
)

ALL = [
    one
    for table in lds_instructions().values()
    for one in table.values()
    if len(one.lane_phase) == LANES
]
every_instruction = pytest.mark.parametrize(
    "described", ALL, ids=[f"{one.arch}-{one.name}" for one in ALL]
)


def described_phases(described: LdsInstruction) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(tuple(described.lanes(phase)) for phase in range(described.phases)))


@every_instruction
def test_solver_recovers_the_described_instructions(described: LdsInstruction) -> None:
    found = solve(model_oracle(described.name, described.arch), described.alignment)
    assert found.phases == described_phases(described)
    assert found.banks == described.banks


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 7), min_size=LANES, max_size=LANES),
    st.sampled_from([16, 32, 64]),
    st.sampled_from([4, 8, 16]),
)
def test_solver_recovers_random_phases(labels: list[int], banks: int, alignment: int) -> None:
    found = solve(lambda a, b, d: labels[a] == labels[b] and d % (banks * 4) == 0, alignment)
    assert found.banks == banks
    groups = {
        tuple(lane for lane in range(LANES) if labels[lane] == label) for label in set(labels)
    }
    assert set(found.phases) == groups


def test_every_pair_is_probed_once() -> None:
    pairs = {(a, b) for a, b, _ in pair_probes()}
    assert len(pairs) == len(pair_probes()) == 2016


def test_conflicts_that_are_no_phases_are_refused() -> None:
    with pytest.raises(InputError, match="lanes 0 and 1 conflict, but only one of them"):
        solve_phases(lambda a, b, _: b == a + 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [(lambda *_: False, "no two lanes conflict"), (lambda *probe: probe[2] == 256, "any distance")],
)
def test_missing_conflicts_are_named(answer: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve(answer, 512)  # type: ignore[arg-type]


def write_counters(path: Path, instruction: str, arch: str) -> None:
    """A counter_collection.csv as rocprofv3 would write it if the model were the hardware."""
    observe = model_oracle(instruction, arch)
    rows = [
        [dispatch, "lds_probe(unsigned int, ...)", counter, value]
        for dispatch, probe in enumerate(benchmark_probes(phases_of(instruction, arch)), start=7)
        for counter, value in (
            ("SQ_LDS_BANK_CONFLICT", f"{float(observe(*probe)):.8e}"),
            ("SQ_INSTS_LDS", "1.0"),
        )
    ]
    random.Random(0).shuffle(rows)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value"])
        writer.writerows([*rows, [1, "other", "SQ_LDS_BANK_CONFLICT", "5.0"]])


def test_solver_reads_the_counters_of_a_run(tmp_path: Path) -> None:
    described = phases_of("ds_read_b128", "gfx950")
    path = tmp_path / "counter_collection.csv"
    write_counters(path, described.name, described.arch)
    observe = read_counters(path, described.name, described.arch)
    found = solve(observe, described.alignment)
    assert (found.phases, found.banks) == (described_phases(described), described.banks)
    with pytest.raises(InputError, match="no probe of lanes 0 and 5 at 16 B"):
        observe(0, 5, 16)
    with pytest.raises(InputError, match="the program for ds_read_b64 makes"):
        read_counters(path, "ds_read_b64", "gfx950")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Dispatch_Id,Kernel_Name\n", "column 'Counter_Name' is missing"),
        (b"", "column 'Dispatch_Id' is missing"),
        (b"\xff\xfe\n", "not a CSV file in UTF-8"),
        (
            b"Dispatch_Id,Kernel_Name,Counter_Name,Counter_Value\n"
            b"x,lds_probe,SQ_LDS_BANK_CONFLICT,1\n",
            "must be numbers",
        ),
        (
            b"Dispatch_Id,Kernel_Name,Counter_Name,Counter_Value\n1\n",
            "has 0 dispatches of lds_probe",
        ),
    ],
)
def test_bad_counter_files_are_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "counters.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_counters(path, "ds_read_b128", "gfx950")
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_missing_counter_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_counters(tmp_path / "none.csv", "ds_read_b128", "gfx950")


@every_instruction
def test_benchmark_names_what_it_needs(described: LdsInstruction) -> None:
    source = hip_microbenchmark(described.name, described.arch)
    assert "$" not in source
    assert max(map(len, source.splitlines())) <= 100
    assert f'"{described.name} %0, %1' in source
    assert f"--offload-arch={described.arch}" in source
    assert "rocprofv3 --pmc SQ_LDS_BANK_CONFLICT" in source


@pytest.mark.slow
@every_instruction
def test_device_part_compiles_to_the_one_instruction(
    described: LdsInstruction, tmp_path: Path
) -> None:
    source = tmp_path / "probe.hip"
    source.write_text(hip_microbenchmark(described.name, described.arch))
    flags = ["-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-O3", "-S", "-o", "-"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ziglang", "clang", *flags),
            *(f"--offload-arch={described.arch}", str(source)),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lds = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("\tds_")]
    assert lds == [described.name]
