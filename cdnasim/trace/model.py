"""What a kernel does, as the simulator sees it. Plain records, saved as JSON.

A trace describes one workgroup; which tile it computes and how long the loop over k is are left to
the launch.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

from cdnasim.errors import InputError

SIMDS = 4  # of a CU; wave w of a workgroup runs on SIMD w mod 4
VERSION = 2
AXES = ("row", "column")
MAX_COUNT = 1 << 20  # turns of a loop, more than any problem's k-steps
UNITS = ("mfma", "valu", "salu", "smem", "lds", "vmem", "barrier", "wait", "none")


@dataclass(frozen=True)
class TraceInstruction:
    """One instruction of a wave.

    line: index into `KernelTrace.lines`. dst, src: 32-bit registers of a lane (virtual numbers); an
    MFMA also reads its dst. bytes: moved by the wave. clocks: of the unit (an MFMA's pipe, the LDS
    phases), conflict_clocks: on top for bank conflicts. operand: index of the operand loaded, or
    -1.
    vm, lgkm: operations that a wait leaves outstanding, -1 if it does not wait for that counter.
    """

    mnemonic: str
    unit: str
    line: int
    dst: list[int]
    src: list[int]
    bytes: int = 0
    clocks: int = 0
    conflict_clocks: int = 0
    operand: int = -1
    loads_lds: bool = False
    vm: int = -1
    lgkm: int = -1
    value: int = 0


@dataclass(frozen=True)
class TraceLoop:
    """A body that repeats; `is_k_loop`: its count follows the problem's k."""

    count: int
    is_k_loop: bool
    body: list[TraceNode]


TraceNode: TypeAlias = "TraceInstruction | TraceLoop"


@dataclass(frozen=True)
class TraceRole:
    """Waves that execute the same stream. vgprs, agprs: registers that each needs."""

    waves: list[int]
    vgprs: int
    agprs: int
    body: list[TraceNode]


def flat_length(body: list[TraceNode]) -> int:
    """Instructions of a stream, loops counted once: how the compute unit numbers them."""
    return sum(flat_length(n.body) if isinstance(n, TraceLoop) else 1 for n in body)


@dataclass(frozen=True)
class TraceOperand:
    """A streamed operand: what a k-step loads of it.

    axis: whether the workgroup's tile row or column chooses its block. slab_bytes: per k-step and
    workgroup; piece_bytes: contiguous bytes of each of its rows. lead: matrix clocks of the
    workgroup between the issue of a slab's youngest load and the wait for it, as a fraction of a
    k-step's.
    """

    tensor: str
    axis: str
    slab_bytes: int
    piece_bytes: int
    lead: float


@dataclass(frozen=True)
class KernelTrace:
    """The trace of a kernel. tile: rows, columns, depth of a k-step. lines: source lines.

    k_steps: of the problem that the loop counts belong to.
    matrix_clocks: of a SIMD's matrix pipe in a k-step. clusters: runs of MFMA between barriers in a
    k-step, of all waves of a SIMD. store_bytes: of C per workgroup.
    """

    version: int
    kernel: str
    arch: str
    dtype: str
    parameters: dict[str, int]
    waves: int
    waves_per_simd: int
    lds_bytes: int
    tile: list[int]
    k_steps: int
    matrix_clocks: int
    clusters: int
    store_bytes: int
    operands: list[TraceOperand]
    roles: list[TraceRole]
    lines: list[str]


def flat_instructions(trace: KernelTrace) -> list[TraceInstruction]:
    """The instructions of all roles in the compute unit's numbering, loops counted once."""

    def flat(body: list[TraceNode]) -> list[TraceInstruction]:
        nodes: list[TraceInstruction] = []
        for node in body:
            nodes += flat(node.body) if isinstance(node, TraceLoop) else [node]
        return nodes

    return [i for role in trace.roles for i in flat(role.body)]


def k_loops(body: list[TraceNode]) -> list[TraceLoop]:
    """The loops of a stream whose count follows the problem's k, which may lie in others."""
    loops = [node for node in body if isinstance(node, TraceLoop)]
    inner = [found for loop in loops for found in k_loops(loop.body)]
    return [loop for loop in loops if loop.is_k_loop] + inner


def fewest_k_steps(trace: KernelTrace) -> int:
    """K-steps that the kernel makes beside its k-loop: no problem has fewer."""
    return trace.k_steps - min(loop.count for role in trace.roles for loop in k_loops(role.body))


def save_trace(trace: KernelTrace, path: Path) -> None:
    """Write `trace` as compressed JSON; raises InputError if `path` cannot be written."""
    text = json.dumps(dataclasses.asdict(trace), separators=(",", ":"))
    try:
        path.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def load_trace(path: Path) -> KernelTrace:
    """The trace in `path`; raises InputError (file, place, what is wrong) if it is damaged."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read as a trace: {error.strerror or error}") from None
    except (EOFError, zlib.error, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: is damaged: {error}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise InputError(f"{path}: trace version {version!r} is unknown; allowed: {VERSION}")
    try:
        trace: KernelTrace = _record(path, "trace", KernelTrace, data)
        _check(path, trace)
        for role in trace.roles:
            _check_body(path, role.body, trace)
        if not any(k_loops(role.body) for role in trace.roles):
            raise InputError(f"{path}: no role has a k-loop")
    except RecursionError:
        raise InputError(f"{path}: is damaged: nested too deeply") from None
    return trace


def _check(path: Path, trace: KernelTrace) -> None:
    """Sizes that must be positive, and parts that must go together."""
    counts = [trace.waves, trace.waves_per_simd, trace.matrix_clocks, trace.k_steps, *trace.tile]
    counts += [o.slab_bytes for o in trace.operands] + [o.piece_bytes for o in trace.operands]
    if min(counts) < 1 or len(trace.tile) != 3 or len(trace.operands) != 2:
        raise InputError(f"{path}: needs a tile of three sizes, two operands, and sizes above 0")
    if sorted(w for role in trace.roles for w in role.waves) != list(range(trace.waves)):
        raise InputError(f"{path}: the roles do not share out the waves 0 to {trace.waves - 1}")
    for operand in trace.operands:
        if operand.axis not in AXES or not 0 <= operand.lead < float("inf"):
            raise InputError(
                f"{path}: operand {operand.tensor}: axis must be one of {', '.join(AXES)}, lead "
                "a number from 0"
            )


def _check_body(path: Path, body: list[TraceNode], trace: KernelTrace) -> None:
    if not body:
        raise InputError(f"{path}: a role or loop has no instructions")
    for node in body:
        if isinstance(node, TraceLoop):
            if not 0 <= node.count <= MAX_COUNT:
                raise InputError(f"{path}: a loop runs {node.count} times")
            _check_body(path, node.body, trace)
        elif node.unit not in UNITS:
            raise InputError(f"{path}: unit '{node.unit}' is unknown; allowed: {', '.join(UNITS)}")
        elif not 0 <= node.line < len(trace.lines):
            raise InputError(f"{path}: line {node.line} is not one of the trace's lines")
        elif not -1 <= node.operand < len(trace.operands):
            raise InputError(f"{path}: operand {node.operand} is not one of the trace's operands")
        elif node.unit == "mfma" and not node.dst:
            raise InputError(f"{path}: {node.mnemonic} has no dst")


def _record(path: Path, place: str, record: Any, data: Any) -> Any:
    """`data` as a `record`, fields and their types checked."""
    if not isinstance(data, dict):
        raise InputError(f"{path}: {place} must be a table")
    hints = get_type_hints(record, globals())
    fields = {f.name for f in dataclasses.fields(record)}
    for key in data.keys() ^ fields:
        state = "missing" if key in fields else "unknown"
        raise InputError(f"{path}: {place}: key '{key}' is {state}")
    return record(**{k: _value(path, f"{place}.{k}", hints[k], v) for k, v in data.items()})


def _value(path: Path, place: str, hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _record(path, place, hint, value)
    arguments = get_args(hint)
    if hint == TraceInstruction | TraceLoop:
        is_loop = isinstance(value, dict) and "body" in value
        return _record(path, place, TraceLoop if is_loop else TraceInstruction, value)
    if getattr(hint, "__origin__", hint) is list:
        if not isinstance(value, list):
            raise InputError(f"{path}: {place} must be a list")
        return [_value(path, f"{place}[{i}]", arguments[0], v) for i, v in enumerate(value)]
    if getattr(hint, "__origin__", hint) is dict:
        if not isinstance(value, dict):
            raise InputError(f"{path}: {place} must be a table")
        return {str(k): _value(path, f"{place}.{k}", arguments[1], v) for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise InputError(f"{path}: {place} must be of type {hint.__name__}, not {value!r:.40}")
    return value
