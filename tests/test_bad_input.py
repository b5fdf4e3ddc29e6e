"""Bad input through the real command line: exit code 2, one clear line, nothing on stdout."""

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from cdnasim import cli

GEMM = ("simulate", "gemm", "m=512", "n=512", "k=512")
MI355X = (resources.files("cdnasim.machine") / "mi355x.toml").read_text(encoding="utf-8")
SCENARIO = """
title = "t"
question = "q"
machine = "mi355x"
kernel = "gemm"

[[group]]
title = "g"
params = {m = 512, n = 512, k = 64}
sweep = {order = ["row-major", "col-major"]}
"""
HEADER = "suite,machine,kernel,params,metric,value,unit,source\n"
ROW = "mine,mi355x,gemm,m=512;n=512;k=64,tflops,5,TFLOPS,me\n"


def edited(text: str, old: str, new: str) -> str:
    changed = re.sub(old, new, text, count=1, flags=re.MULTILINE)
    assert changed != text
    return changed


FILES = {
    # grid orders
    "twice.txt": "0 1 1 3",
    "short.txt": "0 1 2",
    "beyond.txt": "0 1 2 4",
    "words.txt": "0 1 two 3",
    "latin.txt": b"0 1 2 3 \xe9",
    "cut.npy": b"\x93NUMPY\x01\x00v\x00{'descr'",
    # machines
    "cut.toml": MI355X[: len(MI355X) // 2],
    "extra_key.toml": edited(MI355X, r"^xcds = ", 'colour = {value = 1, unit = "x"}\nxcds = '),
    "no_xcds.toml": edited(MI355X, r"^xcds = .*\n", ""),
    "mhz.toml": edited(MI355X, 'unit = "GHz"', 'unit = "MHz"'),
    "sure.toml": edited(MI355X, 'confidence = "documented"', 'confidence = "sure"'),
    "text.toml": edited(MI355X, "value = 8, unit", 'value = "8", unit'),
    "negative.toml": edited(MI355X, "value = 8, unit", "value = -8, unit"),
    "fraction.toml": edited(MI355X, "value = 8, unit", "value = 8.5, unit"),
    "not_utf8.toml": MI355X.encode() + b"# \xff",
    # scenarios
    "s_cut.toml": SCENARIO[:-15],
    "s_key.toml": "colour = 1\n" + SCENARIO,
    "s_sweep.toml": edited(SCENARIO, "{order = ", "{ordr = "),
    "s_params.toml": edited(SCENARIO, "k = 64", "kk = 64"),
    "s_group.toml": SCENARIO[: SCENARIO.index("[[")] + "[[group]]\n",
    "s_groups.toml": SCENARIO[: SCENARIO.index("[[")] + "group = []\n",
    "s_empty.toml": edited(SCENARIO, r'\["row-major", "col-major"\]', "[]"),
    "s_suite.toml": edited(SCENARIO, "^kernel", 'measured = ["nope"]\nkernel'),
    "s_machine.toml": edited(SCENARIO, "mi355x", "mi999"),
    # measured figures
    "column.csv": HEADER.replace("metric", "metrics") + ROW,
    "ragged.csv": HEADER + ROW.replace(",me", ""),
    "number.csv": HEADER + ROW.replace(",5,", ",five,"),
    "metric.csv": HEADER + ROW.replace("tflops", "speed"),
    "unit.csv": HEADER + ROW.replace("TFLOPS", "GFLOPS"),
    "quote.csv": HEADER + ROW.replace("me\n", '"me\n'),
    "latin.csv": (HEADER + ROW.replace("me\n", "mé\n")).encode("latin-1"),
    "empty.csv": "",
    "a_file": "",
}
KNOWN_MACHINES = "allowed: h200, mi300x, mi325x, mi350x, mi355x"
KNOWN_ORDERS = "allowed: row-major, col-major, window, xcd, xcd-contiguous, hilbert, morton, file"
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # a case of simulate: what is asked for, what the line must say
    "unknown kernel": (
        ("simulate", "conv", "m=512", "n=512", "k=512"),
        ("kernel 'conv'", "allowed: gemm"),
    ),
    "unknown parameter": ((*GEMM, "split=2"), ("'split'", "allowed: m, n, k, dtype, tile")),
    "unknown machine": ((*GEMM, "--machine", "mi999"), ("'mi999'", KNOWN_MACHINES)),
    "unknown order": ((*GEMM, "order=spiral"), ("'spiral'", KNOWN_ORDERS)),
    "unknown schedule": (
        (*GEMM, "schedule=interleave9"),
        ("'interleave9'", "allowed: pingpong8:"),
    ),
    "schedule of another machine": (
        (*GEMM, "schedule=kslices8", "--machine", "h200"),
        ("kslices8", "no kernel for sm_90", "gfx950"),
    ),
    "too many stages": ((*GEMM, "schedule=pipelined:s=99"), ("pipelined:s=99", "from 2 to 16")),
    "unknown dtype": ((*GEMM, "dtype=fp64"), ("dtype=fp64", "allowed: bf16, fp16, fp8")),
    "unknown caches": ((*GEMM, "caches=hot"), ("caches=hot", "allowed: warm, cold")),
    "tile does not divide m": ((*GEMM, "tile=192x256x64"), ("m=512", "multiple of 192")),
    "tile does not divide k": ((*GEMM, "tile=128x128x96"), ("k=512", "multiple of 96")),
    "tile of two numbers": ((*GEMM, "tile=256x256"), ("tile=256x256", "<rows>x<columns>x<depth>")),
    "tile of words": ((*GEMM, "tile=axbxc"), ("tile=axbxc", "multiple of 16 up to 1024")),
    "tile of zeros": ((*GEMM, "tile=0x256x64"), ("tile=0x256x64", "multiple of 16 up to 1024")),
    "tile too large for the LDS": (
        (*GEMM, "tile=256x256x128", "--machine", "mi325x"),
        ("131072 B of LDS", "gfx942 has 65536 B"),
    ),
    "too many stages for the LDS": (
        (*GEMM, "tile=128x256x64", "schedule=pipelined:s=8", "--machine", "h200"),
        ("8 stages need 393216 B of LDS", "h200 has 232448 B"),
    ),
    "w=0": ((*GEMM, "order=window:w=0"), ("w must be an integer >= 1", "'0'")),
    "c=0": ((*GEMM, "order=xcd:w=8,c=0"), ("c must be an integer >= 1", "'0'")),
    "c<0": ((*GEMM, "order=xcd:w=8,c=-1"), ("c must be an integer >= 1", "'-1'")),
    "c missing": ((*GEMM, "order=xcd:w=8"), ("key c is missing", "xcd:w=W,c=C")),
    "w missing": ((*GEMM, "order=window"), ("key w is missing", "window:w=W")),
    "unknown key of an order": ((*GEMM, "order=window:h=8"), ("'h'", "allowed: w")),
    "order file with a duplicate": (
        (*GEMM, "order=file:twice.txt"),
        ("twice.txt", "entry 2 is a duplicate of 1", "2 is missing"),
    ),
    "order file of another length": (
        (*GEMM, "order=file:short.txt"),
        ("short.txt", "3 entries", "2 x 2 tiles needs 4"),
    ),
    "order file out of range": (
        (*GEMM, "order=file:beyond.txt"),
        ("beyond.txt", "entry 3 is 4", "allowed: 0 to 3"),
    ),
    "order file of words": ((*GEMM, "order=file:words.txt"), ("words.txt", "entry 2", "'two'")),
    "order file that is not UTF-8": ((*GEMM, "order=file:latin.txt"), ("latin.txt", "UTF-8")),
    "order file that is not there": ((*GEMM, "order=file:no.txt"), ("no.txt", "No such file")),
    "damaged .npy": ((*GEMM, "order=file:cut.npy"), ("cut.npy", "not a .npy file")),
    "m=0": (("simulate", "gemm", "m=0", "n=512", "k=64"), ("m=0", "from 1 to")),
    "m=-1": (("simulate", "gemm", "m=-1", "n=512", "k=64"), ("m=-1", "from 1 to")),
    "m=1e4": (("simulate", "gemm", "m=1e4", "n=512", "k=64"), ("m=1e4", "whole number")),
    "huge m": (("simulate", "gemm", "m=99999999999", "n=512", "k=64"), ("m=999", "from 1 to")),
    "huge grid": (
        ("simulate", "gemm", "m=16777216", "n=16777216", "k=512"),
        ("m=16777216 n=16777216 k=512", "allowed: at most"),
    ),
    "huge grid to search": (
        ("best-order", "gemm", "m=16777216", "n=16777216", "k=512"),
        ("m=16777216 n=16777216 k=512", "allowed: at most"),
    ),
    "parameter twice": ((*GEMM, "m=256"), ("'m' is given twice",)),
    "missing k": (("simulate", "gemm", "m=512", "n=512"), ("'k' is missing", "needed: m, n, k")),
    "parameter without a value": ((*GEMM, "order="), ("'order='", "key=value")),
    "not a parameter": ((*GEMM, "fast"), ("'fast'", "key=value")),
    "missing kernel": (("simulate",), ("'kernel'",)),
    "negative seed": ((*GEMM, "--seed", "-1"), ("--seed", "greater than or equal to 0")),
    # machine files
    "machine file cut": ((*GEMM, "--machine", "cut.toml"), ("cut.toml",)),
    "machine file with another key": (
        (*GEMM, "--machine", "extra_key.toml"),
        ("extra_key.toml: [compute]", "'colour'", "allowed: xcds, cus_per_xcd"),
    ),
    "machine file without a key": (
        (*GEMM, "--machine", "no_xcds.toml"),
        ("no_xcds.toml: [compute]", "'xcds' is missing"),
    ),
    "machine file with a wrong unit": (
        ("machine", "show", "mhz.toml"),
        ("mhz.toml: compute.clock_max_ghz", "'MHz'", "allowed: 'GHz'"),
    ),
    "machine file with a wrong confidence": (
        ("machine", "show", "sure.toml"),
        ("sure.toml: compute.xcds", "'sure'", "allowed: documented, measured, calibrated, assum"),
    ),
    "machine file with a text for a value": (
        ("machine", "show", "text.toml"),
        ("text.toml: compute.xcds", "must be a number", "'8'"),
    ),
    "machine file with a negative value": (
        ("machine", "show", "negative.toml"),
        ("negative.toml: compute.xcds", "-8", "more than 0"),
    ),
    "machine file with part of an XCD": (
        ("machine", "show", "fraction.toml"),
        ("fraction.toml: compute.xcds", "8.5", "whole number"),
    ),
    "machine file that is not UTF-8": (
        ("machine", "show", "not_utf8.toml"),
        ("not_utf8.toml", "UTF-8"),
    ),
    "machine file that is not there": (("machine", "show", "no.toml"), ("no.toml", "No such")),
    # scenarios
    "unknown scenario": (("run", "nope"), ("'nope'", "allowed: ", "xcd_grid_order")),
    "scenario file that is not there": (("run", "no.toml"), ("no.toml", "No such file")),
    "scenario cut": (("run", "s_cut.toml"), ("s_cut.toml", "not valid TOML")),
    "scenario with another key": (("run", "s_key.toml"), ("'colour'", "allowed: title, question")),
    "scenario with another sweep": (
        ("run", "s_sweep.toml"),
        ("s_sweep.toml: group 1: sweep", "'ordr'", "allowed: m, n, k"),
    ),
    "scenario with another parameter": (
        ("run", "s_params.toml"),
        ("s_params.toml: group 1: params", "'kk'", "allowed: m, n, k"),
    ),
    "scenario with an empty group": (("run", "s_group.toml"), ("group 1", "'title' is missing")),
    "scenario without groups": (("run", "s_groups.toml"), ("s_groups.toml", "[[group]]")),
    "scenario with an empty sweep": (("run", "s_empty.toml"), ("group 1: sweep.order", "empty")),
    "scenario with an unknown suite": (
        ("run", "s_suite.toml"),
        ("'nope'", "allowed: h200_grid_order"),
    ),
    "scenario with an unknown machine": (("run", "s_machine.toml"), ("'mi999'", KNOWN_MACHINES)),
    "unknown --set": (
        ("run", "last_round", "--set", "speed=1"),
        ("--set speed", "allowed: machine, m, n, k"),
    ),
    "--set without a value": (("run", "last_round", "--set", "k"), ("'k'", "key=value")),
    "--set that does not divide": (("run", "last_round", "--set", "k=65"), ("group 1", "k=65")),
    # measured figures
    "unknown suite": (("validate", "nope"), ("'nope'", "allowed: h200_grid_order")),
    "measured file that is not there": (("validate", "--measured", "no.csv"), ("no.csv", "No su")),
    "measured column": (("validate", "--measured", "column.csv"), ("column.csv:1", "columns must")),
    "measured ragged": (("validate", "--measured", "ragged.csv"), ("ragged.csv:2", "7 cells")),
    "measured number": (("validate", "--measured", "number.csv"), ("number.csv:2", "'five'")),
    "measured metric": (
        ("validate", "--measured", "metric.csv"),
        ("metric.csv:2", "'speed'", "allowed: tflops, time_us"),
    ),
    "measured unit": (
        ("validate", "--measured", "unit.csv"),
        ("unit.csv:2", "'GFLOPS'", "allowed: TFLOPS"),
    ),
    "measured quote": (("validate", "--measured", "quote.csv"), ("quote.csv:2", "not valid CSV")),
    "measured encoding": (("validate", "--measured", "latin.csv"), ("latin.csv:2", "UTF-8")),
    "measured nothing": (("validate", "--measured", "empty.csv"), ("empty.csv", "columns must")),
    # options and commands
    "run --jobs 0": (("run", "s_ok.toml", "--jobs", "0"), ("jobs", "1 or more")),
    "validate --jobs 0": (("validate", "--jobs", "0"), ("jobs", "1 or more")),
    "best-order --jobs 0": (("best-order", *GEMM[1:], "--jobs", "0"), ("jobs", "1 or more")),
    "--jobs many": (("validate", "--jobs", "many"), ("--jobs", "integer")),
    "best-order with an order": (
        ("best-order", *GEMM[1:], "order=hilbert"),
        ("'order'", "leave it out"),
    ),
    "round too large": (
        ("order", "show", "row-major", "m=512", "n=512", "--round", "9"),
        ("--round 9", "the last round is 0"),
    ),
    "order show with k": (
        ("order", "show", "row-major", "m=512", "n=512", "k=64"),
        ("'k'", "allowed: m, n, tile"),
    ),
    "order show without n": (("order", "show", "row-major", "m=512"), ("'n' is missing",)),
    "unknown option": ((*GEMM, "--fast"), ("--fast",)),
    "unknown command": (("simulat",), ("simulat",)),
    "unknown subcommand": (("machine", "buy"), ("buy",)),
    "out is a file": (("run", "s_ok.toml", "--out", "a_file"), ("a_file", "cannot be made")),
    "out is a file for the search": (
        ("best-order", *GEMM[1:], "--out", "a_file"),
        ("a_file", "cannot be made"),
    ),
    "a name over several lines": ((*GEMM, "--machine", "a\nb"), ("is unknown", KNOWN_MACHINES)),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in {**FILES, "s_ok.toml": SCENARIO}.items():
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(code: object, out: str, err: str, said: tuple[str, ...]) -> None:
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("cdnasim: ") and len(err.splitlines()) == 1
    for text in said:
        assert text in err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", CASES)
def test_bad_input_ends_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, said = CASES[name]
    monkeypatch.setattr(sys, "argv", ["cdnasim", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    check(stopped.value.code, printed.out, printed.err, said)


@pytest.mark.parametrize(
    "name", ["unknown order", "machine file cut", "scenario with an empty sweep", "unknown option"]
)
def test_the_process_ends_so_too(name: str, folder: Path) -> None:
    arguments, said = CASES[name]
    done = subprocess.run(
        [sys.executable, "-m", "cdnasim.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    check(done.returncode, done.stdout, done.stderr, said)


def test_nothing_is_left_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Input that is refused at once makes no output folder."""
    before = sorted(folder.iterdir())
    for name in ("unknown scenario", "scenario cut", "unknown --set", "unknown suite"):
        monkeypatch.setattr(sys, "argv", ["cdnasim", *CASES[name][0]])
        with pytest.raises(SystemExit):
            cli.main()
    assert sorted(folder.iterdir()) == before
    assert len(capsys.readouterr().err.splitlines()) == 4
