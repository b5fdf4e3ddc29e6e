"""The chip model: CU slots replay a workgroup profile on private L2s and a shared fabric.

Every CU slot is a simpy process. It costs one event per loop iteration: bandwidth servers and
caches are plain state, which the processes touch in order of time, so that only the passing of time
itself is an event. Workgroups drift apart because CUs differ a little in speed and because loads
come late; they are pulled together because whoever runs ahead misses and waits, and its followers
hit.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from cdnasim.gpu.power import Activity, sustained_clock_ghz
from cdnasim.gpu.profile import Launch
from cdnasim.gpu.result import Result, TimeSeries, Traffic, WorkgroupLog
from cdnasim.machine.model import Machine
from cdnasim.memory.fabric import Fabric, Link, SlabSizes

Events = Generator[simpy.Event, Any, None]
SAMPLES = 48  # how often the clock follows the activity and the counters are sampled, about


@dataclass(frozen=True)
class Options:
    """How to run a launch.

    warm: the LLC starts as an identical previous launch left it (else empty; L2s always start
    empty).
    seed: of the random part of the workgroups' speeds. log_requests: keep every slab request.
    """

    warm: bool = True
    seed: int = 0
    log_requests: bool = False


class Xcd:
    """One XCD: its queue, and its L2 as an LRU cache: slab → clk at which the data are there."""

    __slots__ = ("hit_bytes", "l2", "link", "merged_bytes", "miss_bytes", "queue", "used")

    def __init__(self, queue: Iterator[int]) -> None:
        self.l2: OrderedDict[int, float] = OrderedDict()
        self.used = 0
        self.link = Link()
        self.queue = queue
        self.hit_bytes = 0
        self.merged_bytes = 0
        self.miss_bytes = 0


class Chip:
    """One launch on one machine. `run()` plays it; the state can be read afterwards."""

    def __init__(self, machine: Machine, launch: Launch, options: Options) -> None:
        self.machine = machine
        self.launch = launch
        self.options = options
        profile = launch.profile
        a, b = profile.operands
        first_b = launch.block_counts[0] * profile.iterations
        self.sizes = SlabSizes(
            a=a.slab_bytes,
            b=b.slab_bytes,
            store=profile.store_bytes,
            first_b=first_b,
            first_store=first_b + launch.block_counts[1] * profile.iterations,
        )
        # Before anything has run the best guess of the clock is that of full matrix load.
        self.ghz = sustained_clock_ghz(machine, Activity(1.0, 0.0, 0.0, 0.0))
        piece = min(a.piece_bytes, b.piece_bytes)
        self.fabric = Fabric(machine, self.sizes, piece, options.seed)
        self.fabric.set_clock(self.ghz)
        self.workgroups = len(launch.blocks)
        self.store_keys = (
            self.sizes.first_store
            + launch.blocks[:, 0].astype(np.int64) * launch.block_counts[1]
            + launch.blocks[:, 1]
        ).tolist()
        if options.warm and machine.llc.bytes:
            self.fabric.warm(self._previous_launch())
        xcds = machine.compute.xcds
        self.xcds = [Xcd(iter(range(x, self.workgroups, xcds))) for x in range(xcds)]
        self.coalesced = coalesced_fraction(launch, machine.l2.coalesced_cus)
        self.env = simpy.Environment()
        self.stall_llc = 0.0
        self.latency_sum = [0.0, 0.0]  # of A's and of B's slabs, from request to data (clk)
        self.slabs = 0  # of each of them
        self.stall_hbm = 0.0
        self.active = 0
        self.wg_xcd = [0] * self.workgroups
        self.wg_cu = [0] * self.workgroups
        self.wg_start = [0.0] * self.workgroups
        self.wg_loop_start = [0.0] * self.workgroups
        self.wg_loop_end = [0.0] * self.workgroups
        self.wg_end = [0.0] * self.workgroups
        self.samples: list[tuple[Any, ...]] = []
        self.requests: list[tuple[int, int]] = []

    def run(self) -> None:
        """Play the launch from the first workgroup's start to the last one's end."""
        machine = self.machine
        dispatch, cus = machine.dispatch, machine.compute.cus_per_xcd
        rng = np.random.default_rng(self.options.seed)
        steady = 1.0 + machine.drift.steady_sd * rng.standard_normal((len(self.xcds), cus))
        cold = dispatch.cold_start_clk + dispatch.cold_start_sd_clk * rng.standard_normal(
            (len(self.xcds), cus)
        )
        self.wg_speed = (
            1.0 + machine.drift.random_sd * rng.standard_normal(self.workgroups)
        ).tolist()
        profile = self.launch.profile
        crowds = [[[0] for _ in range(cus)] for _ in self.xcds]  # workgroups on each CU
        for x, xcd in enumerate(self.xcds):
            waiting = -(-(self.workgroups - x) // len(self.xcds))
            for place in range(min(cus * profile.residents, waiting)):
                cu = place % cus  # every CU gets a workgroup before one gets its second
                start = place * dispatch.spacing_clk
                extra = max(0.0, float(cold[x, cu]))
                speed = float(steady[x, cu])
                self.env.process(self._slot(xcd, x, cu, start, extra, speed, crowds[x][cu]))
                self.active += 1
        rounds = math.ceil(self.workgroups / (machine.cus * profile.residents))
        span = profile.prologue_clk + profile.iterations * profile.loop_clk + profile.epilogue_clk
        self.env.process(self._govern(rounds * span / SAMPLES))
        self.env.run()

    def _govern(self, interval: float) -> Events:
        """Power management: let the clock follow the activity; sample the counters."""
        while self.active:
            yield self.env.timeout(interval)
            self.ghz = sustained_clock_ghz(self.machine, self.activity(self.env.now))
            self.fabric.set_clock(self.ghz)
            self._sample()

    def activity(self, clocks: float) -> Activity:
        """Mean activity over the first `clocks` of the launch."""
        profile = self.launch.profile
        step_bytes = self.sizes.a + self.sizes.b
        reads = sum(x.hit_bytes + x.miss_bytes for x in self.xcds)
        busy = reads / step_bytes * profile.matrix_clk / (self.machine.cus * clocks)
        fabric = self.fabric
        return Activity(
            matrix=min(1.0, busy),
            l2_bytes=reads * self.coalesced / clocks,
            llc_bytes=(fabric.llc_read_bytes + fabric.write_bytes) / clocks,
            hbm_bytes=(fabric.hbm_read_bytes + fabric.write_bytes) / clocks,
        )

    def l2_counts(self, xcd: Xcd) -> tuple[int, int]:
        """Bytes that the L2 of `xcd` was asked for and that it had.

        What neighbouring CUs ask for together reaches it once, so the rest are not its hits.
        """
        requested = xcd.hit_bytes + xcd.miss_bytes
        read = max(xcd.miss_bytes, round(requested * self.coalesced))
        return read, read - xcd.miss_bytes

    def _sample(self) -> None:
        fabric = self.fabric
        read, hit = zip(*map(self.l2_counts, self.xcds), strict=True)
        self.samples.append(
            (
                self.env.now,
                read,
                hit,
                fabric.llc_read_bytes,
                fabric.llc_hit_bytes,
                fabric.hbm_read_bytes,
                self.ghz,
            )
        )

    def _slot(
        self,
        xcd: Xcd,
        x: int,
        cu: int,
        start: float,
        cold: float,
        steady: float,
        crowd: list[int],
    ) -> Events:
        """One place on a CU: take the XCD's next workgroup, replay its profile, until none is left.

        crowd: how many workgroups the CU holds, shared by its places.

        This loop is the simulator's hot path: names are local, and a slab costs one dictionary
        look-up when it hits.
        """
        env, fabric, sizes, profile = self.env, self.fabric, self.sizes, self.launch.profile
        timeout, fetch, link = env.timeout, fabric.read, xcd.link
        l2, find, touch, pop = xcd.l2, xcd.l2.get, xcd.l2.move_to_end, xcd.l2.popitem
        capacity = self.machine.l2.bytes // self.machine.l2.copies
        hit_latency = self.machine.l2.latency_clk
        blocks, iterations = self.launch.blocks, profile.iterations
        a_bytes, b_bytes = sizes.a, sizes.b
        loop_clk = profile.loop_clk
        # A slab's load is issued at the start of an iteration, `ahead` rounded up before the one
        # that needs it. `stretch` and `late` turn its latency into the arrival at which iterations
        # that wait for it last loop + (latency - lead) / ahead.
        a_ahead, b_ahead = (math.ceil(o.ahead) for o in profile.operands)
        a_stretch, b_stretch = (math.ceil(o.ahead) / o.ahead for o in profile.operands)
        a_late, b_late = (
            math.ceil(o.ahead) * (loop_clk - o.lead_clk / o.ahead) for o in profile.operands
        )
        ahead = max(a_ahead, b_ahead)
        shared = profile.shared_loop_clk
        first_load, fill = profile.first_load_clk, profile.fill_clk
        log = self.requests if self.options.log_requests else None

        yield timeout(start)
        for wg in xcd.queue:
            self.wg_xcd[wg], self.wg_cu[wg], self.wg_start[wg] = x, cu, env.now
            speed = steady * self.wg_speed[wg]
            step_clk = loop_clk * speed
            crowd[0] += 1
            a_first = int(blocks[wg, 0]) * iterations
            b_first = sizes.first_b + int(blocks[wg, 1]) * iterations
            a_due = [0.0] * (iterations + 1)
            b_due = [0.0] * (iterations + 1)
            a_latency = b_latency = 0.0
            if first_load:
                yield timeout(first_load * speed)
            for t in range(-ahead, iterations):
                now = env._now  # env.now without the property call
                slab = t + a_ahead
                if 0 <= slab < iterations:
                    key = a_first + slab
                    ready = find(key)
                    if ready is None:
                        xcd.miss_bytes += a_bytes
                        ready = l2[key] = fetch(link, key, a_bytes, now)
                        xcd.used += a_bytes
                    else:
                        touch(key)
                        xcd.hit_bytes += a_bytes
                        if ready > now:
                            xcd.merged_bytes += a_bytes
                        if ready < now + hit_latency:
                            ready = now + hit_latency
                    a_latency += ready - now
                    a_due[slab] = now + a_stretch * (ready - now) + a_late
                    if log is not None:
                        log.append((x, key))
                slab = t + b_ahead
                if 0 <= slab < iterations:
                    key = b_first + slab
                    ready = find(key)
                    if ready is None:
                        xcd.miss_bytes += b_bytes
                        ready = l2[key] = fetch(link, key, b_bytes, now)
                        xcd.used += b_bytes
                    else:
                        touch(key)
                        xcd.hit_bytes += b_bytes
                        if ready > now:
                            xcd.merged_bytes += b_bytes
                        if ready < now + hit_latency:
                            ready = now + hit_latency
                    b_latency += ready - now
                    b_due[slab] = now + b_stretch * (ready - now) + b_late
                    if log is not None:
                        log.append((x, key))
                while xcd.used > capacity:
                    key, _ = pop(False)
                    xcd.used -= sizes.of(key)
                if t < -1:
                    continue  # the prologue issues the first slabs back to back
                if t < 0:
                    end = now + (profile.prologue_clk - first_load) * speed + cold
                    cold = 0.0
                    # no k-step hides the latency of the first slabs
                    a_due[0] = now + (a_due[0] - now - a_late) / a_stretch + fill
                    b_due[0] = now + (b_due[0] - now - b_late) / b_stretch + fill
                else:
                    if t == 0:
                        self.wg_loop_start[wg] = now
                    end = now + (step_clk if crowd[0] == 1 else shared[crowd[0] - 2] * speed)
                if t + 1 < iterations and (a_due[t + 1] > end or b_due[t + 1] > end):
                    slab = t + 1
                    due = max(a_due[slab], b_due[slab])
                    # The part that the LLC's queue explains is the LLC's, the rest that of the
                    # level that the slab still came from when it should have been there.
                    wait = due - end
                    queued = min(wait, max(0.0, fabric.llc_free - now))
                    self.stall_llc += queued
                    if fabric.waits_for_hbm(a_first + slab, end - a_late) or fabric.waits_for_hbm(
                        b_first + slab, end - b_late
                    ):
                        self.stall_hbm += wait - queued
                    else:
                        self.stall_llc += wait - queued
                    end = due
                yield timeout(end - now)
            self.wg_loop_end[wg] = env.now
            self.latency_sum[0] += a_latency
            self.latency_sum[1] += b_latency
            self.slabs += iterations
            self._store(xcd, x, wg, capacity, log)
            yield timeout(profile.epilogue_clk * speed)
            self.wg_end[wg] = env.now
            crowd[0] -= 1
            yield timeout(self.machine.dispatch.restart_clk)
        self.active -= 1

    def _store(
        self, xcd: Xcd, x: int, wg: int, capacity: int, log: list[tuple[int, int]] | None
    ) -> None:
        """Write the output tile: it takes a place in the L2 and goes on to memory."""
        key, nbytes = self.store_keys[wg], self.sizes.store
        self.fabric.write(key, nbytes, self.env.now)
        xcd.l2[key] = self.env.now
        xcd.used += nbytes
        while xcd.used > capacity:
            old, _ = xcd.l2.popitem(last=False)
            xcd.used -= self.sizes.of(old)
        if log is not None:
            log.append((x, key))

    def _previous_launch(self) -> Iterator[int]:
        """Slabs as an identical launch asks the LLC for them: round by round in lock step."""
        blocks, iterations, sizes = self.launch.blocks, self.launch.profile.iterations, self.sizes
        cus = self.machine.cus
        for first in range(0, self.workgroups, cus):
            resident = blocks[first : first + cus]
            bases = (np.unique(resident[:, 0]).astype(np.int64) * iterations).tolist()
            bases += (
                sizes.first_b + np.unique(resident[:, 1]).astype(np.int64) * iterations
            ).tolist()
            for k in range(iterations):
                for base in bases:
                    yield base + k


def coalesced_fraction(launch: Launch, neighbours: int) -> float:
    """Fraction of the requested bytes that reach the L2 when `neighbours` CUs merge their requests.

    Consecutive workgroups start on neighbouring CUs and are taken to stay in step, so a group asks
    once for each block that its workgroups share.
    """
    usable = len(launch.blocks) // neighbours * neighbours
    if neighbours == 1 or usable == 0:
        return 1.0
    groups = np.sort(launch.blocks[:usable].reshape(-1, neighbours, 2), axis=1)
    distinct = 1 + np.count_nonzero(np.diff(groups, axis=1), axis=1).mean(axis=0)
    sizes = np.array([o.slab_bytes for o in launch.profile.operands])
    return float((distinct / neighbours * sizes).sum() / sizes.sum())


def simulate(
    machine: Machine,
    launch: Launch,
    *,
    kernel: str,
    params: Mapping[str, Any],
    options: Options | None = None,
) -> Result:
    """Run `launch` on `machine` and return its Result. Same inputs, same result."""
    begin = time.perf_counter()
    chip = Chip(machine, launch, options or Options())
    chip.run()
    return chip_result(chip, kernel, params, time.perf_counter() - begin)


def chip_result(chip: Chip, kernel: str, params: Mapping[str, Any], wall_s: float) -> Result:
    """The Result of a chip that has run."""
    machine, launch, fabric = chip.machine, chip.launch, chip.fabric
    profile, workgroups = launch.profile, chip.workgroups
    cycles = max(chip.wg_end)
    activity = chip.activity(cycles)
    ghz = sustained_clock_ghz(machine, activity)
    time_us = cycles / (ghz * 1e3) + machine.dispatch.launch_us
    read, hit = (sum(counts) for counts in zip(*map(chip.l2_counts, chip.xcds), strict=True))
    traffic = Traffic(
        requested_bytes=sum(x.hit_bytes + x.miss_bytes for x in chip.xcds),
        l2_read_bytes=read,
        l2_hit_bytes=hit,
        l2_merged_bytes=sum(x.merged_bytes for x in chip.xcds),
        llc_read_bytes=fabric.llc_read_bytes,
        llc_hit_bytes=fabric.llc_hit_bytes,
        hbm_read_bytes=fabric.hbm_read_bytes,
        hbm_write_bytes=fabric.write_bytes,
    )
    slot_clk = machine.cus * profile.residents * cycles
    resident = sum(chip.wg_end) - sum(chip.wg_start)
    edges = workgroups * (profile.prologue_clk + profile.epilogue_clk)
    stalls = {
        "hbm": chip.stall_hbm / slot_clk,
        "llc": chip.stall_llc / slot_clk,
        "prologue_epilogue": edges / slot_clk,
        "no_workgroup": 1.0 - resident / slot_clk,
    }
    own_matrix = activity.matrix / profile.residents
    stalls["loop_overhead"] = max(0.0, 1.0 - own_matrix - sum(stalls.values()))
    stalls["busy"] = own_matrix
    clk, l2_read, l2_hit, llc_read, llc_hit, hbm_read, clock = zip(*chip.samples, strict=True)
    return Result(
        machine=machine.name,
        kernel=kernel,
        params=dict(params),
        time_us=time_us,
        tflops=launch.flops / time_us / 1e6,
        clock_mhz=ghz * 1e3,
        cycles=cycles,
        traffic=traffic,
        mfma_utilisation=activity.matrix,
        occupancy=resident / slot_clk,
        stalls=stalls,
        k_step_clk=profile.loop_clk,
        load_latency_clk={
            operand.name: total / chip.slabs
            for operand, total in zip(profile.operands, chip.latency_sum, strict=True)
        },
        series=TimeSeries(
            clk=np.array(clk),
            l2_read=np.array(l2_read),
            l2_hit=np.array(l2_hit),
            llc_read=np.array(llc_read),
            llc_hit=np.array(llc_hit),
            hbm_read=np.array(hbm_read),
            clock_ghz=np.array(clock),
        ),
        log=WorkgroupLog(
            xcd=np.array(chip.wg_xcd, dtype=np.int32),
            cu=np.array(chip.wg_cu, dtype=np.int32),
            start_clk=np.array(chip.wg_start),
            loop_start_clk=np.array(chip.wg_loop_start),
            loop_end_clk=np.array(chip.wg_loop_end),
            end_clk=np.array(chip.wg_end),
        ),
        wall_s=wall_s,
    )
