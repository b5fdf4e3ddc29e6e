"""The published GEMM schedules: C[m,n] = A[m,k] · B[n,k]ᵀ, fp32 accumulators, C as bf16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hk_kernels.tile.expr import Expr
from hk_kernels.tile.language import Builder, kernel
from hk_kernels.tile.tiles import GlobalTensor

Step = Expr | int
Part = Callable[[], None]


@contextmanager
def prioritised(k: Builder, wanted: int | bool) -> Iterator[None]:
    """The instructions inside at priority 1, if `wanted`."""
    if wanted:
        k.priority(1)
    yield
    if wanted:
        k.priority(0)


@kernel(waves=8, waves_per_simd=2)
def pingpong8(
    k: Builder,
    A: GlobalTensor,
    B: GlobalTensor,
    C: GlobalTensor,
    bm: int = 256,
    bn: int = 256,
    bk: int = 64,
    stagger: int = 1,
    setprio: int = 1,
    swizzle: int = 1,
    inflight: int = 3,
) -> None:
    """Two waves a SIMD take turns at MFMA and memory.

    Source of the schedule: HipKittens 256_256_64_32_with16x32 (f09e968). A k-step has four
    quadrants of C; the loads for the next two k-steps are spread over the memory clusters between
    them. Where half of A does not divide into loads of all waves (bm=192), A is fetched whole.
    stagger, setprio, swizzle: 0 leaves them out. inflight: half tiles, 3 as published, that may
    still be coming when a k-step ends.
    """
    row, col = k.output_tile(C, bm, bn, bk)  # the grid order decides
    k.require(inflight <= 3, f"inflight={inflight}: allowed are 0 to 3")
    wave_row, wave_col = k.wave // 4, k.wave % 4
    pattern = None if swizzle else "none"
    As = k.shared(A.dtype, bm, bk, (2,), pattern)  # [stage]
    Bs = k.shared(B.dtype, bn, bk, (2,), pattern)
    a = k.registers(A.dtype, bm // 4, bk)
    b = [k.registers(B.dtype, bn // 8, bk) for _ in (0, 1)]
    acc = [[k.accumulators(A.dtype, bm // 4, bn // 8) for _ in (0, 1)] for _ in (0, 1)]
    steps = A.cols // bk
    unit = k.waves * k.load_bytes // (bk * A.dtype.bytes)  # rows that one load of all waves brings
    is_halved = bm // 2 % unit == 0

    def fetch_a(half: int, t: Step) -> None:  # HBM → LDS, no registers in between
        first, rows = (half * bm // 2, bm // 2) if is_halved else (0, bm)
        k.load_async(As[t % 2].part(first, rows), A.tile(row * bm + first, t * bk, rows, bk))

    def fetch_b(half: int, t: Step) -> None:
        first, rows = half * bn // 2, bn // 2
        k.load_async(Bs[t % 2].part(first, rows), B.tile(col * bn + first, t * bk, rows, bk))

    def read_a(half: int, t: Step) -> None:
        k.load(a, As[t % 2].band(wave_row + 2 * half, bm // 4))

    def read_b(half: int, t: Step) -> None:
        k.load(b[half], Bs[t % 2].band(wave_col + 4 * half, bn // 8))

    def compute(i: int, j: int) -> None:
        with prioritised(k, setprio):
            k.mma_ABt(acc[i][j], a, b[j])
        k.barrier()

    def step(t: Step, *, next_a: bool, next_two: bool, vm: int) -> None:
        read_b(0, t)
        read_a(0, t)
        if next_a and is_halved:
            fetch_a(1, t + 1)
        k.wait(lgkm=k.reads(a))  # B0 has been read: the next cluster overwrites it
        k.barrier()
        k.wait(lgkm=0)
        compute(0, 0)

        read_b(1, t)
        if next_two:
            fetch_b(0, t + 2)
        k.barrier()
        k.wait(lgkm=0)
        compute(0, 1)

        read_a(1, t)
        if next_two and is_halved:
            fetch_a(0, t + 2)
        if not is_halved:
            k.wait(lgkm=0)  # A has been read: the next cluster overwrites all of it
        k.barrier()
        k.wait(lgkm=0)
        compute(1, 0)

        if next_two and not is_halved:
            fetch_a(0, t + 2)
        if next_two:
            fetch_b(1, t + 2)
        k.wait(vm=vm)
        k.barrier()
        compute(1, 1)

    for quadrant in (acc[0][0], acc[0][1], acc[1][0], acc[1][1]):
        k.zero(quadrant)
    fetch_b(0, 0)
    fetch_a(0, 0)
    fetch_b(1, 0)
    if is_halved:
        fetch_a(1, 0)
    half_a = k.loads(As[0].part(0, bm // 2 if is_halved else bm))  # loads of a wave
    half_b = k.loads(Bs[0].part(0, bn // 2))
    if stagger:
        with k.only(wave_row.equals(1)):
            k.barrier()  # from here on the second four waves are one barrier behind
    k.wait(vm=half_b + (half_a if is_halved else 0))
    k.barrier()
    fetch_b(0, 1)
    fetch_a(0, 1)
    fetch_b(1, 1)
    k.wait(vm=half_b + half_a + half_b)
    k.barrier()
    youngest = [half_b, half_a, half_b][-inflight:] if inflight else []
    for t in k.loop(steps - 2):
        step(t, next_a=True, next_two=True, vm=sum(youngest))
    step(steps - 2, next_a=True, next_two=False, vm=0)
    step(steps - 1, next_a=False, next_two=False, vm=0)
    if stagger:
        with k.only(wave_row.equals(0)):
            k.barrier()
    for i in (0, 1):
        for j in (0, 1):
            first_row = row * bm + i * bm // 2 + wave_row * (bm // 4)
            first_col = col * bn + j * bn // 2 + wave_col * (bn // 8)
            k.store(C.tile(first_row, first_col, bm // 4, bn // 8), acc[i][j])


@kernel(waves=8, waves_per_simd=2)
def pingpong8_registers(
    k: Builder,
    A: GlobalTensor,
    B: GlobalTensor,
    C: GlobalTensor,
    bm: int = 256,
    bn: int = 256,
    bk: int = 64,
    stagger: int = 1,
    setprio: int = 1,
    swizzle: int = 1,
) -> None:
    """Ping-pong for a target without wide loads to LDS: through registers, one LDS buffer.

    Source of the schedule: HipKittens MI325X 256_256_64_16 (f09e968). A compute cluster is one
    k-slice of the MFMA's depth over the wave's whole tile.
    """
    row, col = k.output_tile(C, bm, bn, bk)
    wave_row, wave_col = k.wave // 4, k.wave % 4
    wm, wn = bm // 2, bn // 4
    pattern = None if swizzle else "none"
    As = k.shared(A.dtype, bm, bk, (1,), pattern)[0]
    Bs = k.shared(B.dtype, bn, bk, (1,), pattern)[0]
    depth = k.target.mfma(A.dtype).k
    slices = bk // depth
    k.require(slices > 2, f"bk={bk}: needs three k-slices of {depth} or more")
    a = [k.registers(A.dtype, wm, depth) for _ in range(2)]
    b = [k.registers(B.dtype, wn, depth) for _ in range(2)]
    acc = k.accumulators(A.dtype, wm, wn)
    next_a, next_b = k.staging(As), k.staging(Bs)
    steps = A.cols // bk

    def fetch(t: Step) -> None:  # HBM → registers
        k.load_global(next_a, As, A.tile(row * bm, t * bk, bm, bk))
        k.load_global(next_b, Bs, B.tile(col * bn, t * bk, bn, bk))

    def keep() -> None:  # registers → LDS
        k.store_shared(As, next_a)
        k.store_shared(Bs, next_b)

    def read(s: int) -> None:
        k.load(a[s % 2], As.band(wave_row, wm).columns(s * depth, depth))
        k.load(b[s % 2], Bs.band(wave_col, wn).columns(s * depth, depth))

    def compute(s: int) -> None:
        k.wait(lgkm=0)
        with prioritised(k, setprio):
            k.mma_ABt(acc, a[s % 2], b[s % 2])
        k.barrier()

    def step(t: Step, *, is_last: bool) -> None:
        read(0)
        if not is_last:
            fetch(t + 1)
        k.barrier()
        compute(0)
        for s in range(1, slices - 2):
            read(s)
            k.barrier()
            compute(s)
        read(slices - 2)
        read(slices - 1)
        k.wait(lgkm=0)  # the last reads of the buffer, before any wave writes the next tile
        k.barrier()
        compute(slices - 2)
        if not is_last:
            k.wait(vm=0)
            keep()
        k.wait(lgkm=0)
        k.barrier()
        compute(slices - 1)

    k.zero(acc)
    fetch(0)
    k.wait(vm=0)
    keep()
    k.wait(lgkm=0)
    k.barrier()
    if stagger:
        with k.only(wave_row.equals(1)):
            k.barrier()  # from here on the second four waves are one barrier behind
    for t in k.loop(steps - 1):
        step(t, is_last=False)
    step(steps - 1, is_last=True)
    if stagger:
        with k.only(wave_row.equals(0)):
            k.barrier()
    k.store(C.tile(row * bm + wave_row * wm, col * bn + wave_col * wn, wm, wn), acc)


@kernel(waves=8, waves_per_simd=2)
def kslices8(
    k: Builder,
    A: GlobalTensor,
    B: GlobalTensor,
    C: GlobalTensor,
    bm: int = 256,
    bn: int = 256,
    bk: int = 64,
    mfma: int = 32,
) -> None:
    """Ping-pong over halves of the k-step; all loads of the next one at its beginning.

    Source of the schedule: HipKittens 256_256_64_32_with32x16 (f09e968). mfma: rows of the matrix
    instruction, 32 as published or 16.
    """
    row, col = k.output_tile(C, bm, bn, bk)
    k.require(mfma in (16, 32), f"mfma={mfma}: allowed are 16 and 32")
    wave_row, wave_col = k.wave // 4, k.wave % 4
    wm, wn, depth = bm // 2, bn // 4, bk // 2
    shape = (mfma, mfma)
    is_square = mfma == 32 and A.dtype.bits == 16
    swizzle, subtile = ("st_32x32", (32, 32)) if is_square else (None, None)
    As = k.shared(A.dtype, bm, bk, (2,), swizzle, subtile)  # [stage]
    Bs = k.shared(B.dtype, bn, bk, (2,), swizzle, subtile)
    a = k.registers(A.dtype, wm, depth, shape)
    b = k.registers(B.dtype, wn, depth, shape)
    acc = k.accumulators(A.dtype, wm, wn, shape)
    steps = A.cols // bk

    def fetch(t: Step) -> None:  # HBM → LDS
        k.load_async(As[t % 2], A.tile(row * bm, t * bk, bm, bk))
        k.load_async(Bs[t % 2], B.tile(col * bn, t * bk, bn, bk))

    def read(t: Step, half: int) -> None:
        k.load(a, As[t % 2].band(wave_row, wm).columns(half * depth, depth))
        k.load(b, Bs[t % 2].band(wave_col, wn).columns(half * depth, depth))

    def compute() -> None:
        with prioritised(k, True):
            k.mma_ABt(acc, a, b)
        k.barrier()

    def step(t: Step, *, has_next: bool) -> None:
        read(t, 0)
        if has_next:
            fetch(t + 1)
        k.barrier()
        k.wait(lgkm=0)
        compute()

        read(t, 1)
        k.wait(vm=0, lgkm=0)  # this stage is read, the next one is there
        k.barrier()
        compute()

    k.zero(acc)
    fetch(0)
    k.wait(vm=0)
    k.barrier()
    with k.only(wave_row.equals(1)):
        k.barrier()  # from here on the second four waves are one barrier behind
    for t in k.loop(steps - 1):
        step(t, has_next=True)
    step(steps - 1, has_next=False)
    with k.only(wave_row.equals(0)):
        k.barrier()
    k.store(C.tile(row * bm + wave_row * wm, col * bn + wave_col * wn, wm, wn), acc)


@kernel(waves=4, waves_per_simd=1)
def interleave4(
    k: Builder,
    A: GlobalTensor,
    B: GlobalTensor,
    C: GlobalTensor,
    bm: int = 256,
    bn: int = 256,
    bk: int = 128,
) -> None:
    """One wave a SIMD with large register tiles; loads and LDS reads woven between its MFMAs.

    Source of the schedule: HipKittens FP8_4wave (f09e968). Each of the four clusters of a k-step
    reads the operand half that the next ones need and fetches the half whose buffer has just become
    free.
    """
    row, col = k.output_tile(C, bm, bn, bk)
    wave_row, wave_col = k.wave // 2, k.wave % 2
    hm, hn = bm // 2, bn // 2
    As = k.shared(A.dtype, hm, bk, buffers=(2, 2))  # [stage][half]
    Bs = k.shared(B.dtype, hn, bk, buffers=(2, 2))
    a = [k.registers(A.dtype, hm // 2, bk) for _ in range(2)]
    b = [k.registers(B.dtype, hn // 2, bk) for _ in range(2)]
    acc = [[k.accumulators(A.dtype, hm // 2, hn // 2) for _ in range(2)] for _ in range(2)]
    steps = A.cols // bk

    def fetch_a(half: int, t: Step) -> None:
        k.load_async(As[t % 2][half], A.tile(row * bm + half * hm, t * bk, hm, bk))

    def fetch_b(half: int, t: Step) -> None:
        k.load_async(Bs[t % 2][half], B.tile(col * bn + half * hn, t * bk, hn, bk))

    def read_a(half: int, t: Step) -> None:
        k.load(a[half], As[t % 2][half].band(wave_row, hm // 2))

    def read_b(half: int, t: Step) -> None:
        k.load(b[half], Bs[t % 2][half].band(wave_col, hn // 2))

    def fetch_all(t: Step) -> None:
        fetch_a(0, t)
        fetch_b(0, t)
        fetch_b(1, t)
        fetch_a(1, t)

    a_and_b = k.loads(As[0][0]) + k.loads(Bs[0][0])  # loads of a wave for a half of each

    def step(t: Step, *, has_next: bool, next_two: bool) -> None:
        def cluster(i: int, j: int, *others: Part) -> None:
            k.interleave(lambda: k.mma_ABt(acc[i][j], a[i], b[j]), *others)

        def when(condition: bool, part: Part) -> list[Part]:
            return [part] if condition else []

        cluster(0, 0, lambda: read_b(1, t), *when(next_two, lambda: fetch_a(0, t + 2)))
        k.wait(lgkm=0)
        cluster(0, 1, lambda: read_a(1, t), *when(next_two, lambda: fetch_b(0, t + 2)))
        # A0 and B0 of the next step have come, B1 and A1 of this one are read
        k.wait(vm=(2 if next_two else 1) * a_and_b if has_next else 0, lgkm=0)
        k.barrier()
        early = when(has_next, lambda: read_a(0, t + 1))
        cluster(1, 0, *early, *when(next_two, lambda: fetch_b(1, t + 2)))
        k.wait(lgkm=0)
        early = when(has_next, lambda: read_b(0, t + 1))
        cluster(1, 1, *early, *when(next_two, lambda: fetch_a(1, t + 2)))
        k.wait(vm=2 * a_and_b if next_two else 0, lgkm=0)
        k.barrier()

    for quadrant in (acc[0][0], acc[0][1], acc[1][0], acc[1][1]):
        k.zero(quadrant)
    fetch_all(0)
    fetch_all(1)
    k.wait(vm=3 * a_and_b)  # A0 and B0 of the first step
    k.barrier()
    read_a(0, 0)
    read_b(0, 0)
    k.wait(vm=2 * a_and_b, lgkm=0)
    k.barrier()
    for t in k.loop(steps - 2):
        step(t, has_next=True, next_two=True)
    step(steps - 2, has_next=True, next_two=False)
    step(steps - 1, has_next=False, next_two=False)
    for i in (0, 1):
        for j in (0, 1):
            first_row = row * bm + i * hm + wave_row * (hm // 2)
            first_col = col * bn + j * hn + wave_col * (hn // 2)
            k.store(C.tile(first_row, first_col, hm // 2, hn // 2), acc[i][j])


def _specialized_waves(p: int, c: int, **_: int) -> int:
    return p + c


def _specialized_per_simd(p: int, c: int, **_: int) -> int:
    return -(-(p + c) // 4)


@kernel(waves=_specialized_waves, waves_per_simd=_specialized_per_simd)
def specialized(
    k: Builder,
    A: GlobalTensor,
    B: GlobalTensor,
    C: GlobalTensor,
    bm: int = 128,
    bn: int = 256,
    bk: int = 64,
    p: int = 4,
    c: int = 8,
    stages: int = 2,
) -> None:
    """p producer waves load, c consumer waves compute, one barrier a k-step.

    Source of the schedule: HipKittens producer_consumer_micro/16x32 (f09e968). The registers of a
    SIMD are split evenly among its waves, producers included.
    """
    row, col = k.output_tile(C, bm, bn, bk)
    k.require(p >= 1, f"p={p}: someone must load")
    k.require(c >= 4 and c % 4 == 0, f"c={c}: consumers stand in rows of 4")
    k.require(stages >= 2, f"stages={stages}: one is filled while another is read")
    consumer = k.wave - p
    wave_row, wave_col = consumer // 4, consumer % 4
    wm, wn = _up(bm / (c // 4)), _up(bn / 4)
    k.require(
        (wm * (c // 4), wn * 4) == (bm, bn),
        f"a {bm}x{bn} tile does not divide among {c // 4} x 4 consumers in MFMA rows of 16",
        after_registers=True,
    )
    As = k.shared(A.dtype, bm, bk, buffers=(stages,))
    Bs = k.shared(B.dtype, bn, bk, buffers=(stages,))
    steps, ahead = A.cols // bk, stages - 1

    def fetch(t: Step) -> None:
        k.load_async(As[t % stages], A.tile(row * bm, t * bk, bm, bk), waves=(0, p))
        k.load_async(Bs[t % stages], B.tile(col * bn, t * bk, bn, bk), waves=(0, p))

    # A step's loads are there a barrier before it is read; those of later steps may be on the way.
    loads = k.loads(As[0], p) + k.loads(Bs[0], p)  # of a producer in a k-step
    with k.only(k.wave < p):
        for first in range(ahead):
            fetch(first)
        k.wait(vm=(ahead - 1) * loads)
        k.barrier()
        for t in k.loop(steps - ahead):
            fetch(t + ahead)
            k.wait(vm=(ahead - 1) * loads)
            k.barrier()
        for left in reversed(range(ahead)):
            if left:
                k.wait(vm=(left - 1) * loads)
            k.barrier()

    with k.only(k.wave >= p):
        depth = k.target.mfma(A.dtype).k
        a = k.registers(A.dtype, wm, depth)
        b = k.registers(B.dtype, wn, depth)
        acc = k.accumulators(A.dtype, wm, wn)
        k.zero(acc)
        k.barrier()
        for t in k.loop(steps):
            for first in range(0, bk, depth):
                k.load(a, As[t % stages].band(wave_row, wm).columns(first, depth))
                k.load(b, Bs[t % stages].band(wave_col, wn).columns(first, depth))
                k.wait(lgkm=0)
                k.mma_ABt(acc, a, b)
            k.barrier()
        k.store(C.tile(row * bm + wave_row * wm, col * bn + wave_col * wn, wm, wn), acc)


def _up(rows: float) -> int:
    """The next multiple of 16: the smallest MFMA's rows."""
    return -(-int(-(-rows // 1)) // 16) * 16
