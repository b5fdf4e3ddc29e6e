"""Launches of kernels as profilers recorded them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from cdnasim.errors import InputError
from cdnasim.validation.table import shown

_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Agent:
    """The GPU that a kernel ran on; None for what the files do not tell.

    arch: as in machine descriptions (gfx950, sm_90). cus: enabled CUs (SMs) of all XCDs.
    """

    arch: str | None = None
    xcds: int | None = None
    cus: int | None = None


@dataclass(frozen=True)
class Pass:
    """What one run of the application counted during a launch.

    counters: name → value, over the device. duration_us: of this launch in this run, if told.
    """

    counters: dict[str, float]
    duration_us: float | None = None


@dataclass(frozen=True)
class Dispatch:
    """One launch of a kernel; None for what the files do not tell.

    where: file and line it stands in. agent: as the profiler names the GPU. duration_us: without
    counters, as far as there was such a run. workgroup_size: work-items. lds_bytes: per workgroup.
    scratch_bytes: per work-item. passes: one for each run with counters, in order.
    """

    kernel: str
    dispatch_id: int
    where: str
    agent: str = ""
    device: Agent | None = None
    duration_us: float | None = None
    workgroups: int | None = None
    workgroup_size: int | None = None
    vgprs: int | None = None
    agprs: int | None = None
    sgprs: int | None = None
    lds_bytes: int | None = None
    scratch_bytes: int | None = None
    passes: tuple[Pass, ...] = field(default=(), repr=False)

    @property
    def counters(self) -> dict[str, float]:
        """The counters of all passes; of one counted in several passes, the first value."""
        found: dict[str, float] = {}
        for one in self.passes:
            found = one.counters | found
        return found

    def counted(self, *names: str) -> Pass | None:
        """A pass with all these counters, as a ratio needs them from one launch.

        If no pass has them all, the counters of all passes and the duration of the launch without
        counters; None if a counter is in no pass.
        """
        together = Pass(self.counters, self.duration_us)
        for one in (*self.passes, together):
            if all(name in one.counters for name in names):
                return one
        return None

    def unknown(self) -> list[str]:
        """The fields that are None."""
        return [f.name for f in fields(self) if getattr(self, f.name) is None]


def choose_kernels(
    dispatches: Iterable[Dispatch], kernel_pattern: str | None, where: str
) -> list[Dispatch]:
    """The dispatches whose kernel name has a match of the regular expression; None: all of them.

    Raises InputError for a malformed pattern, or one that no kernel matches.
    """
    every = list(dispatches)
    if kernel_pattern is None:
        return every
    try:
        pattern = re.compile(kernel_pattern)
    except re.error as error:
        raise InputError(
            f"kernel pattern {shown(kernel_pattern)} is not a regular expression: {error}"
        ) from None
    found = [d for d in every if pattern.search(d.kernel)]
    if not found:
        names = kernel_names(every)
        raise InputError(
            f"{where}: no kernel matches {shown(kernel_pattern)}; kernels there: {names}"
        )
    return found


def kernel_names(dispatches: Sequence[Dispatch]) -> str:
    """The kernels' names as errors list them."""
    names = list(dict.fromkeys(shown(d.kernel) for d in dispatches))
    more = [f"and {len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN else []
    return ", ".join(names[:_NAMES_SHOWN] + more)
