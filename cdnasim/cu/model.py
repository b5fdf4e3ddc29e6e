"""The compute-unit model: waves of one workgroup issue instructions on four SIMDs.

Each SIMD is considered every `issue_clk`; it issues at most one instruction per wave and per
category (VALU with MFMA, scalar, LDS, VMEM), priority first, then age. An instruction that cannot
issue blocks its wave, and the reason is what the wave's time is booked on until it issues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import simpy

from cdnasim.cu.timing import CuTiming, cu_timing
from cdnasim.errors import InputError
from cdnasim.isa.instructions import Encoding, Rate, encoding_of
from cdnasim.isa.mfma import accumulate_wait_states, mfma_wait_states
from cdnasim.trace.model import (
    SIMDS,
    KernelTrace,
    TraceInstruction,
    TraceLoop,
    TraceNode,
    flat_instructions,
    flat_length,
)

PATTERN = 6  # k-steps: loads that run one, two or three ahead repeat their pattern in as many
NEVER = float("inf")
CATEGORY = {
    "mfma": "valu",
    "valu": "valu",
    "salu": "salu",
    "smem": "salu",
    "lds": "lds",
    "vmem": "vmem",
    "barrier": "internal",
    "wait": "internal",
    "none": "internal",
}
NOT_UNDER_MFMA = (Rate.PACKED, Rate.UNKNOWN)
Latency = Callable[[TraceInstruction], float]  # clk from the issue of a global load to its data


@dataclass
class InstructionClocks:
    """What one instruction of a role's stream cost, summed over its waves and executions."""

    hits: int = 0
    issue: float = 0.0
    stalls: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WaveRecord:
    """One wave: its life (clk) and what it spent it on; busy and stalls sum to its length.

    wave: its number on the CU, workgroup * waves of a workgroup + number in the workgroup.
    """

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
    """Simulated workgroups of one CU. iteration_starts: per wave, clk at which each k-step began.

    instructions: number in the flattened streams of the roles → clocks. first_load: clk of the
    first operand load. assumed: mnemonics that are not known and the clocks taken for them.
    """

    waves: list[WaveRecord]
    iteration_starts: list[list[float]]
    instructions: dict[int, InstructionClocks]
    matrix_busy: float
    spans: list[Span]
    first_load: float = 0.0
    assumed: dict[str, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """Clk at which the last wave ended."""
        return max(w.end for w in self.waves)

    def iteration_clk(self) -> float:
        """Clk of a steady k-step: the mean of the last PATTERN iterations that all waves make."""
        last = min(len(starts) for starts in self.iteration_starts) - 1
        first = max(0, last - PATTERN)
        lengths = [starts[last] - starts[first] for starts in self.iteration_starts]
        return sum(lengths) / len(lengths) / (last - first)


class _Wave:
    """One wave's place in its stream, its counters and its book of time."""

    def __init__(
        self, number: int, workgroup: int, simd: int, stream: Iterator[tuple[int, TraceInstruction]]
    ) -> None:
        self.number = number
        self.workgroup = workgroup
        self.simd = simd
        self.stream = stream
        self.priority = 0
        self.ready = 0.0  # earliest issue of the current instruction
        self.mark = 0.0  # up to here the time is booked
        self.cause = "start"
        self.busy = 0.0
        self.stalls: dict[str, float] = {}
        self.vm: deque[float] = deque()  # when the data of each load are there, in order
        self.lgkm: deque[float] = deque()
        self.registers: dict[int, float] = {}  # register → clk at which its value can be read
        self.sums: dict[int, float] = {}  # first register of a sum → clk at which it can go on
        self.iterations: list[float] = []
        self.end = NEVER
        self.key = 0
        self.current: TraceInstruction | None = None

    def advance(self) -> None:
        """Take the next instruction; markers of the k-loop are handled by the stream."""
        self.key, self.current = next(self.stream, (0, None))


class ComputeUnit:
    """Workgroups on one CU.

    k_steps: of the problem; the k-loops run as often as that asks for. latency: of global loads.
    workgroups: resident at the same time, started together. is_cold: scalar and instruction caches
    hold nothing yet. assume_unknown: take the pessimistic clocks for unknown mnemonics, which are
    otherwise refused (InputError).
    """

    def __init__(
        self,
        trace: KernelTrace,
        k_steps: int,
        latency: Latency,
        *,
        workgroups: int = 1,
        keep_spans: bool = False,
        is_cold: bool = False,
        assume_unknown: bool = False,
    ) -> None:
        self.trace = trace
        self.timing: CuTiming = cu_timing(trace.arch)[0]
        self.latency = latency
        self.k_steps = k_steps
        self.is_cold = is_cold
        self.assumed: dict[str, float] = {}
        self.encodings = [self._encoding(i, assume_unknown) for i in flat_instructions(trace)]
        self.env = simpy.Environment()
        self.pipe_free = [0.0] * SIMDS
        self.packed_free = [0.0] * SIMDS  # when a packed operation may follow the last MFMA
        self.valu_free = [0.0] * SIMDS
        self.lds_free = 0.0
        self.pair_free = [0.0, 0.0]
        # when each entry of a SIMD's share of the LDS queue leaves it
        self.lds_leaves: list[deque[float]] = [deque() for _ in range(SIMDS)]
        self.vmem_free = 0.0
        self.vmem_idle = True
        self.return_free = 0.0
        self.first_load = NEVER
        self.arrived: list[list[_Wave]] = [[] for _ in range(workgroups)]
        self.matrix_busy = 0.0
        self.instructions: dict[int, InstructionClocks] = {}
        self.spans: list[Span] = []
        self.keep_spans = keep_spans
        self.line_there: dict[int, float] = {}  # instruction cache line → clk at which it is there
        self.line_of = self._lines() if is_cold else []
        self.waves: list[_Wave] = []
        for workgroup in range(workgroups):
            offset = 0
            for role in trace.roles:
                for number in role.waves:
                    place = workgroup * trace.waves + number
                    wave = _Wave(place, workgroup, number % SIMDS, iter(()))
                    wave.stream = self._stream(wave, role.body, offset)
                    wave.advance()
                    self.waves.append(wave)
                offset += flat_length(role.body)
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
            matrix_busy=self.matrix_busy,
            spans=self.spans,
            first_load=self.first_load,
            assumed=self.assumed,
        )

    def _encoding(self, i: TraceInstruction, assume_unknown: bool) -> Encoding:
        known = encoding_of(i.mnemonic)
        if known:
            return known
        clk = self.timing.unknown_clk
        if not assume_unknown:
            raise InputError(
                f"instruction '{i.mnemonic}' is unknown ({self.trace.lines[i.line]}); "
                f"--assume-unknown takes {clk:g} clk for it"
            )
        self.assumed[i.mnemonic] = clk
        return Encoding(Rate.UNKNOWN, 8)  # the longer of the two usual encodings

    def _lines(self) -> list[int]:
        """The instruction cache line of each instruction, the roles one after the other."""
        lines, address = [], 0
        for encoding in self.encodings:
            lines.append(int(address // self.timing.icache_line_bytes))
            address += encoding.bytes
        return lines

    def _stream(
        self, wave: _Wave, body: list[TraceNode], offset: int
    ) -> Iterator[tuple[int, TraceInstruction]]:
        """The wave's instructions, loops unrolled, each with its number in the flattened body."""
        for node in body:
            if isinstance(node, TraceLoop):
                length = flat_length(node.body)
                for _ in range(self._count(node)):
                    if node.is_k_loop:
                        wave.iterations.append(NEVER)  # set when its first instruction issues
                    yield from self._stream(wave, node.body, offset)
                offset += length
            else:
                yield offset, node
                offset += 1

    def _count(self, loop: TraceLoop) -> int:
        """How often a loop runs: the k-loop as often as the problem's k-steps ask for."""
        return loop.count + (self.k_steps - self.trace.k_steps if loop.is_k_loop else 0)

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
        if self.is_cold:
            fetched = self._fetched(wave.key, now)
            if fetched > now:
                return "instruction fetch", fetched
        if is_taken:
            return "issue", now + self.timing.issue_clk
        if i.unit == "wait":
            if i.lgkm >= 0 and len(wave.lgkm) > i.lgkm:
                done = wave.lgkm[len(wave.lgkm) - i.lgkm - 1]
                if done > now:
                    return "lgkmcnt", done
            if i.vm >= 0 and len(wave.vm) > i.vm:
                done = wave.vm[len(wave.vm) - i.vm - 1]
                if done > now:
                    return "vmcnt", done
            return "", 0.0
        if i.unit == "mfma":
            if self.pipe_free[wave.simd] > now:
                return "mfma busy", self.pipe_free[wave.simd]
            summed = wave.sums.get(i.dst[0], 0.0)
            if summed > now:
                return "dependency", summed
        if i.unit in ("mfma", "valu") and self.valu_free[wave.simd] > now:
            return "valu busy", self.valu_free[wave.simd]
        is_alone = i.unit == "valu" and self.encodings[wave.key].rate in NOT_UNDER_MFMA
        if is_alone and self.packed_free[wave.simd] > now:
            return "mfma busy", self.packed_free[wave.simd]
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

    def _fetched(self, key: int, now: float) -> float:
        """When the cache line of an instruction is there; the first to need it asks for it."""
        line = self.line_of[key]
        return self.line_there.setdefault(line, now + self.timing.icache_miss_clk)

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
            self.packed_free[wave.simd] = now + i.clocks + timing.packed_drain_clk
            self.matrix_busy += i.clocks
            slots = 1 + mfma_wait_states(self.trace.arch, i.mnemonic, i.clocks)
            result = now + timing.issue_clk * slots
            for register in i.dst:
                wave.registers[register] = result
            again = accumulate_wait_states(self.trace.arch, i.mnemonic, i.clocks)
            wave.sums[i.dst[0]] = now + timing.issue_clk * (1 + again)
        elif i.unit == "valu":
            self.valu_free[wave.simd] = now + self._valu_clk(wave.key)
        elif i.unit == "lds":
            self._lds(wave, i, now)
        elif i.unit == "vmem":
            self._vmem(wave, i, now)
        elif i.unit == "smem":
            latency = timing.smem_cold_clk if self.is_cold else timing.smem_latency_clk
            wave.lgkm.append(now + latency)
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
        elif self.encodings[wave.key].rate == Rate.UNKNOWN and i.unit != "valu":
            wave.ready = now + timing.unknown_clk
            wave.cause = "unknown instruction"
        elif i.mnemonic == "s_endpgm":
            wave.cause = "end of program"
            self._book_stall(wave, now + timing.end_clk)
        wave.advance()
        if wave.current is None:
            wave.end = wave.mark
            released |= self._release(wave.workgroup, now)
        return released

    def _valu_clk(self, key: int) -> float:
        """Clocks for which a vector instruction occupies its SIMD's lanes."""
        rate = self.encodings[key].rate
        if rate == Rate.UNKNOWN:
            return self.timing.unknown_clk
        if rate == Rate.TRANSCENDENTAL:
            return self.timing.transcendental_clk
        return self.timing.valu_clk

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
        is_scattered = is_store and not i.mnemonic.startswith("scratch")
        occupied = self.timing.store_clk if is_scattered else self.timing.vmem_clk
        if self.vmem_idle:
            occupied += self.timing.vmem_start_clk
            self.vmem_idle = False
        self.vmem_free = now + occupied
        done = now
        if not is_store:
            latency = self.latency(i) if i.operand >= 0 else self.timing.scratch_clk
            returned = i.bytes / self.timing.vmem_return_bytes_per_clk
            self.return_free = max(self.return_free, now + latency) + returned
            done = self.return_free
            if i.operand >= 0:
                self.first_load = min(self.first_load, now)
        if wave.vm:
            done = max(done, wave.vm[-1])  # returns in order
        wave.vm.append(done)

    def _barrier(self, wave: _Wave, now: float) -> bool:
        """Arrive; whether that released the workgroup."""
        self.arrived[wave.workgroup].append(wave)
        wave.cause = "barrier"
        wave.ready = NEVER
        return self._release(wave.workgroup, now)

    def _release(self, workgroup: int, now: float) -> bool:
        """Release the waves at a workgroup's barrier if all that still run are there."""
        arrived = self.arrived[workgroup]
        mine = (w for w in self.waves if w.workgroup == workgroup)
        if not arrived or any(w.end == NEVER and w not in arrived for w in mine):
            return False
        release = now + self.timing.issue_clk + self.timing.barrier_clk
        for waiting in arrived:
            waiting.ready = release
        arrived.clear()
        self.vmem_idle = True
        return True


def _next_turn(now: float, wanted: float, slot: float) -> float:
    """The next turn of a SIMD considered at `now` at which `wanted` has come."""
    if wanted == NEVER:
        return NEVER
    turns = max(1, -(-(wanted - now) // slot))
    return now + turns * slot
