"""The compute-unit model: waves of one workgroup issue instructions on four SIMDs.

Each SIMD is considered every `issue_clk`; it issues at most one instruction per wave and per
category (VALU with MFMA, scalar, LDS, VMEM), priority first, then age. An instruction that cannot
issue blocks its wave, and the reason is what the wave's time is booked on until it issues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import simpy

from cdnasim.cu.timing import CuTiming, cu_timing
from cdnasim.errors import InputError
from cdnasim.isa.mfma import mfma_wait_states
from cdnasim.trace.model import (
    SIMDS,
    KernelTrace,
    TraceInstruction,
    TraceLoop,
    TraceNode,
    flat_length,
)

SETTLED = 3  # k-steps after which a loop is steady enough to read its slack
NEVER = float("inf")
CATEGORY = {
    "mfma": "valu",
    "valu": "valu",
    "salu": "salu",
    "lds": "lds",
    "vmem": "vmem",
    "barrier": "internal",
    "wait": "internal",
    "none": "internal",
}
Latency = Callable[[TraceInstruction], float]  # clk from the issue of a global load to its data


@dataclass
class InstructionClocks:
    """What one instruction of a role's stream cost, summed over its waves and executions."""

    hits: int = 0
    issue: float = 0.0
    stalls: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WaveRecord:
    """One wave: its life (clk) and what it spent it on; busy and stalls sum to its length."""

    wave: int
    simd: int
    start: float
    end: float
    busy: float
    stalls: dict[str, float]


@dataclass(frozen=True)
class Span:
    """A stretch of a wave's life (clk): held by `cause` before instruction `key`, or issuing it.

    The spans of a wave follow one another without a gap from its start to its end.
    """

    wave: int
    key: int
    start: float
    end: float
    cause: str  # "" while issuing


@dataclass(frozen=True)
class CuResult:
    """A simulated workgroup. iteration_starts: per wave, clk at which each k-step began.

    instructions: number in the flattened streams of the roles → clocks. slack: operand → least clk
    from the issue of a load to the moment at which its lateness would delay a wave, in steady
    k-steps.
    """

    waves: list[WaveRecord]
    iteration_starts: list[list[float]]
    instructions: dict[int, InstructionClocks]
    slack: dict[int, float]
    matrix_busy: float
    spans: list[Span]

    @property
    def end(self) -> float:
        """Clk at which the last wave ended."""
        return max(w.end for w in self.waves)

    def iteration_clk(self) -> float:
        """Clk of a steady k-step: the mean of the last third of all waves' iterations."""
        lengths = []
        for starts in self.iteration_starts:
            steps = [b - a for a, b in pairwise(starts)]
            lengths += steps[-max(1, len(steps) // 3) :]
        return sum(lengths) / len(lengths)


class _Wave:
    """One wave's place in its stream, its counters and its book of time."""

    def __init__(self, number: int, stream: Iterator[tuple[int, TraceInstruction]]) -> None:
        self.number = number
        self.simd = number % SIMDS
        self.stream = stream
        self.priority = 0
        self.ready = 0.0  # earliest issue of the current instruction
        self.mark = 0.0  # up to here the time is booked
        self.cause = "start"
        self.busy = 0.0
        self.stalls: dict[str, float] = {}
        self.vm: deque[tuple[float, float, int]] = deque()  # data there, issued, operand
        self.lgkm: deque[float] = deque()
        self.slack: dict[int, float] = {}  # operand → slack at the last wait, not yet kept
        self.registers: dict[int, float] = {}  # register → clk at which its value can be read
        self.iterations: list[float] = []
        self.arrival = 0.0  # at the last barrier
        self.end = NEVER
        self.key = 0
        self.current: TraceInstruction | None = None

    def advance(self) -> None:
        """Take the next instruction; markers of the k-loop are handled by the stream."""
        self.key, self.current = next(self.stream, (0, None))


class ComputeUnit:
    """One workgroup on one CU. steps: how often the k-loop runs. latency: of global loads."""

    def __init__(
        self, trace: KernelTrace, steps: int, latency: Latency, *, keep_spans: bool = False
    ) -> None:
        self.trace = trace
        self.timing: CuTiming = cu_timing(trace.arch)[0]
        self.latency = latency
        self.steps = steps
        self.env = simpy.Environment()
        self.pipe_free = [0.0] * SIMDS
        self.valu_free = [0.0] * SIMDS
        self.lds_free = 0.0
        self.pair_free = [0.0, 0.0]
        # when each entry of a SIMD's share of the LDS queue leaves it
        self.lds_leaves: list[deque[float]] = [deque() for _ in range(SIMDS)]
        self.vmem_free = 0.0
        self.vmem_idle = True
        self.arrived: list[_Wave] = []
        self.matrix_busy = 0.0
        self.instructions: dict[int, InstructionClocks] = {}
        self.slack: dict[int, float] = {}
        self.spans: list[Span] = []
        self.keep_spans = keep_spans
        self.waves: list[_Wave] = []
        offset = 0
        for role in trace.roles:
            size = flat_length(role.body)
            for number in role.waves:
                wave = _Wave(number, iter(()))
                wave.stream = self._stream(wave, role.body, offset)
                wave.advance()
                self.waves.append(wave)
            offset += size
        self.waves.sort(key=lambda w: w.number)
        self.simds = [[w for w in self.waves if w.simd == s] for s in range(SIMDS)]

    def run(self) -> CuResult:
        """Simulate to the end of the last wave. Raises InputError if the waves wait for ever."""
        self.env.process(self._issue())
        self.env.run()
        return CuResult(
            waves=[WaveRecord(w.number, w.simd, 0.0, w.end, w.busy, w.stalls) for w in self.waves],
            iteration_starts=[w.iterations for w in self.waves if len(w.iterations) > 1],
            instructions=self.instructions,
            slack=self.slack,
            matrix_busy=self.matrix_busy,
            spans=self.spans,
        )

    def _stream(
        self, wave: _Wave, body: list[TraceNode], offset: int
    ) -> Iterator[tuple[int, TraceInstruction]]:
        """The wave's instructions, loops unrolled, each with its number in the flattened body."""
        for node in body:
            if isinstance(node, TraceLoop):
                length = flat_length(node.body)
                for _ in range(self.steps if node.is_k_loop else node.count):
                    if node.is_k_loop:
                        wave.iterations.append(NEVER)  # set when its first instruction issues
                    yield from self._stream(wave, node.body, offset)
                offset += length
            else:
                yield offset, node
                offset += 1

    def _issue(self) -> Generator[simpy.Event, None, None]:
        """Consider the SIMDs in turn at every slot in which something may happen."""
        slot = self.timing.issue_clk
        turn = [float(s) for s in range(SIMDS)]  # next clk at which each SIMD is considered
        while True:
            alive = [s for s in range(SIMDS) if any(w.end == NEVER for w in self.simds[s])]
            if not alive:
                return
            simd = min(alive, key=lambda s: turn[s])
            if turn[simd] == NEVER:
                waiting = next(w for w in self.waves if w.end == NEVER)
                line = self.trace.lines[waiting.current.line] if waiting.current else ""
                raise InputError(f"wave {waiting.number} waits for ever at {line}")
            if turn[simd] > self.env.now:
                yield self.env.timeout(turn[simd] - self.env.now)
            released = self._consider(simd, self.env.now)
            turn[simd] = _next_turn(self.env.now, self._earliest(simd), slot)
            if released:
                for other in alive:
                    # its last turn lies less than a slot back
                    last = self.env.now - simd + other - slot
                    turn[other] = min(turn[other], _next_turn(last, self._earliest(other), slot))

    def _earliest(self, simd: int) -> float:
        """The earliest clk at which a wave of the SIMD may issue."""
        return min((w.ready for w in self.simds[simd] if w.end == NEVER), default=NEVER)

    def _consider(self, simd: int, now: float) -> bool:
        """Issue what can issue on this SIMD now; whether a barrier was released."""
        taken: set[str] = set()
        released = False
        waves = [w for w in self.simds[simd] if w.end == NEVER and w.ready <= now]
        for wave in sorted(waves, key=lambda w: (-w.priority, w.number)):
            i = wave.current
            assert i is not None
            category = CATEGORY[i.unit]
            cause, until = self._blocked(wave, i, now, category in taken)
            if cause:
                self._book_stall(wave, now)
                wave.cause = cause
                wave.ready = max(until, now + self.timing.issue_clk)
                continue
            if category != "internal":
                taken.add(category)
            released |= self._execute(wave, i, now)
        return released

    def _blocked(
        self, wave: _Wave, i: TraceInstruction, now: float, is_taken: bool
    ) -> tuple[str, float]:
        """Why `i` cannot issue at `now`, and until when at least; ("", 0) if it can."""
        if is_taken:
            return "issue", now + self.timing.issue_clk
        if i.unit == "wait":
            if i.lgkm >= 0 and len(wave.lgkm) > i.lgkm:
                done = wave.lgkm[len(wave.lgkm) - i.lgkm - 1]
                if done > now:
                    return "lgkmcnt", done
            if i.vm >= 0 and len(wave.vm) > i.vm:
                done = max(w[0] for w in list(wave.vm)[: len(wave.vm) - i.vm])
                if wave.cause != "vmcnt":
                    self._settle_slack(wave, 0.0)
                self._note_slack(wave, i.vm, now)
                if done > now:
                    return "vmcnt", done
            return "", 0.0
        if i.unit == "mfma" and self.pipe_free[wave.simd] > now:
            return "mfma busy", self.pipe_free[wave.simd]
        if i.unit == "valu" and self.valu_free[wave.simd] > now:
            return "valu busy", self.valu_free[wave.simd]
        if i.unit == "lds":
            leaves = self.lds_leaves[wave.simd]
            while leaves and leaves[0] <= now:
                leaves.popleft()
            if len(leaves) >= self.timing.lds_queue // SIMDS:
                return "lds queue", leaves[0]
        if i.unit == "vmem" and self.vmem_free > now:
            return "vmem queue", self.vmem_free
        if i.unit in ("valu", "vmem", "lds") and i.src:
            needed = max(wave.registers.get(r, 0.0) for r in i.src)
            if needed > now:
                return "dependency", needed
        return "", 0.0

    def _note_slack(self, wave: _Wave, outstanding: int, now: float) -> None:
        """How long before this wait the loads of steady k-steps were issued that it asks for."""
        if not SETTLED < len(wave.iterations) < self.steps:
            return
        for _, issued, operand in list(wave.vm)[: len(wave.vm) - outstanding]:
            if operand >= 0:
                wave.slack[operand] = min(wave.slack.get(operand, NEVER), now - issued)

    def _settle_slack(self, wave: _Wave, waited: float) -> None:
        """Keep the slack of the last wait; what the wave then `waited` for others adds to it."""
        for operand, slack in wave.slack.items():
            self.slack[operand] = min(self.slack.get(operand, NEVER), slack + waited)
        wave.slack.clear()

    def _book_stall(self, wave: _Wave, now: float) -> None:
        """Book the time since the wave's mark on its present cause and instruction."""
        spent = now - wave.mark
        if spent <= 0:
            return
        for stalls in (wave.stalls, self._clocks_of(wave).stalls):
            stalls[wave.cause] = stalls.get(wave.cause, 0.0) + spent
        if self.keep_spans:
            self.spans.append(Span(wave.number, wave.key, wave.mark, now, wave.cause))
        wave.mark = now

    def _clocks_of(self, wave: _Wave) -> InstructionClocks:
        return self.instructions.setdefault(wave.key, InstructionClocks())

    def _execute(self, wave: _Wave, i: TraceInstruction, now: float) -> bool:
        timing = self.timing
        self._book_stall(wave, now)
        clocks = self._clocks_of(wave)
        clocks.hits += 1
        clocks.issue += timing.issue_clk
        if self.keep_spans:
            issued = now + timing.issue_clk
            self.spans.append(Span(wave.number, wave.key, now, issued, ""))
        if wave.iterations and wave.iterations[-1] == NEVER:
            wave.iterations[-1] = now
        wave.busy += timing.issue_clk
        wave.mark = wave.ready = now + timing.issue_clk
        wave.cause = "issue"
        released = False
        if i.unit == "mfma":
            self.pipe_free[wave.simd] = now + i.clocks
            self.matrix_busy += i.clocks
            slots = 1 + mfma_wait_states(self.trace.arch, i.mnemonic, i.clocks)
            result = now + timing.issue_clk * slots
            for register in i.dst:
                wave.registers[register] = result
        elif i.unit == "valu":
            self.valu_free[wave.simd] = now + (
                timing.transcendental_clk if "exp" in i.mnemonic else timing.valu_clk
            )
        elif i.unit == "lds":
            self._lds(wave, i, now)
        elif i.unit == "vmem":
            self._vmem(wave, i, now)
        elif i.unit == "wait":
            while i.lgkm >= 0 and len(wave.lgkm) > i.lgkm:
                wave.lgkm.popleft()
            while i.vm >= 0 and len(wave.vm) > i.vm:
                wave.vm.popleft()
        elif i.unit == "barrier":
            released = self._barrier(wave, now)
        elif i.mnemonic == "s_setprio":
            wave.priority = i.value
        elif i.mnemonic.startswith("s_cbranch"):
            wave.ready += timing.branch_clk
            wave.cause = "branch"
        wave.advance()
        if wave.current is None:
            wave.end = wave.mark
        return released

    def _lds(self, wave: _Wave, i: TraceInstruction, now: float) -> None:
        """Queue an access: each pair of SIMDs has a port, the banks serve both by turns."""
        pair, clocks = wave.simd // 2, i.clocks + i.conflict_clocks
        start = max(now, self.pair_free[pair])
        self.lds_free = max(self.lds_free, start) + clocks
        port = start + i.bytes / self.timing.lds_pair_bytes_per_clk
        done = self.pair_free[pair] = max(port, self.lds_free)
        self.lds_leaves[wave.simd].append(done)
        wave.lgkm.append(done + self.timing.lds_latency_clk)

    def _vmem(self, wave: _Wave, i: TraceInstruction, now: float) -> None:
        is_store = not i.dst and not i.loads_lds
        occupied = self.timing.store_clk if is_store else self.timing.vmem_clk
        if self.vmem_idle:
            occupied += self.timing.vmem_start_clk
            self.vmem_idle = False
        self.vmem_free = now + occupied
        done = now if is_store else now + self.latency(i)
        if wave.vm:
            done = max(done, wave.vm[-1][0])  # returns in order
        wave.vm.append((done, now, i.operand))

    def _barrier(self, wave: _Wave, now: float) -> bool:
        """Arrive; the last wave to arrive releases all. Whether it did."""
        self.arrived.append(wave)
        wave.arrival = now
        wave.cause = "barrier"
        wave.ready = NEVER
        alive = sum(w.end == NEVER for w in self.waves)
        if len(self.arrived) < alive:
            return False
        release = now + self.timing.issue_clk + self.timing.barrier_clk
        for waiting in self.arrived:
            waiting.ready = release
            self._settle_slack(waiting, now - waiting.arrival)
        self.arrived.clear()
        self.vmem_idle = True
        return True


def _next_turn(now: float, wanted: float, slot: float) -> float:
    """The next turn of a SIMD considered at `now` at which `wanted` has come."""
    if wanted == NEVER:
        return NEVER
    turns = max(1, -(-(wanted - now) // slot))
    return now + turns * slot
