"""What the waves of one compute unit do over a few k-steps, as a Gantt chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from cdnasim.cu.model import CuResult, Span
from cdnasim.errors import InputError
from cdnasim.plots.style import NEUTRAL, PALETTE, escaped, style
from cdnasim.trace.model import KernelTrace, TraceInstruction, flat_instructions

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

WARM_UP = 1 / 3  # of the k-steps in the loop are skipped: the first ones are not steady yet
LINES_SHOWN = 2  # source lines in the hover text of a bar that has more
LINE_LENGTH = 80  # characters of a source line that are shown

# What a wave does → colour, in the order of the legend. A tint is a wait for the unit of the full
# colour.
MFMA = "MFMA"
PIPE_WAIT = "stall: matrix pipe"
LDS_WAIT = "stall: LDS queue"
VMEM_WAIT = "stall: VMEM queue"
COUNTER_WAIT = "waitcnt"
BARRIER = "barrier"
OTHER_WAIT = "stall: other"
COLOURS = {
    MFMA: PALETTE[0],
    PIPE_WAIT: "#99C7E0",
    "VALU": PALETTE[2],
    "LDS": PALETTE[1],
    LDS_WAIT: "#F5D999",
    "VMEM": PALETTE[3],
    VMEM_WAIT: "#EBC9DC",
    "scalar": "#777777",
    BARRIER: NEUTRAL,
    COUNTER_WAIT: PALETTE[5],
    OTHER_WAIT: PALETTE[6],
}
PIPE = "matrix pipe busy"
PIPE_COLOUR = PALETTE[7]
DOING = {
    "mfma": MFMA,
    "valu": "VALU",
    "lds": "LDS",
    "vmem": "VMEM",
    "salu": "scalar",
    "smem": "scalar",
    "none": "scalar",
    "barrier": BARRIER,
    "wait": COUNTER_WAIT,
}
WAITING = {
    "mfma busy": PIPE_WAIT,
    "lds queue": LDS_WAIT,
    "vmem queue": VMEM_WAIT,
    "barrier": BARRIER,
    "vmcnt": COUNTER_WAIT,
    "lgkmcnt": COUNTER_WAIT,
}

# Heights in rows of a wave.
PIPE_ROW = 0.5
SIMD_GAP = 0.4
BAR = 0.86  # of its row
ROW_PX = 30
TOP_PX, BOTTOM_PX = 135, 60
LABEL_GAP_PX = 6


@dataclass(frozen=True)
class _Bar:
    """A stretch (clk) in which a wave keeps doing the same: spans that follow one another."""

    kind: str
    spans: list[Span]

    @property
    def start(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        return self.spans[-1].end


@dataclass(frozen=True)
class _Window:
    """The part of the simulated time that is shown (clk), and the starts of its k-steps.

    number: of the first one in the k-loop, from 1.
    """

    starts: list[float]
    end: float
    number: int

    @property
    def start(self) -> float:
        return self.starts[0]

    def shows(self, start: float, end: float) -> bool:
        return end > self.start and start < self.end

    def clip(self, start: float, end: float) -> tuple[float, float]:
        """Start of what is shown, from the window's start, and its length."""
        first = max(start, self.start)
        return first - self.start, min(end, self.end) - first


@dataclass(frozen=True)
class _Rows:
    """Where the rows are, from the top down: centre of each wave and of each SIMD's pipe."""

    waves: Mapping[int, float]
    pipes: Mapping[int, float]
    labels: Mapping[float, str]
    bottom: float


def cu_gantt(trace: KernelTrace, result: CuResult, steps: int = 2) -> Figure:
    """Gantt chart of the waves and matrix pipes of a CU over `steps` steady k-steps (clk).

    result: of `trace`, simulated with its spans kept. A wave that waits for the pipe behind an MFMA
    of its own still counts as MFMA: its run of them is one bar. Raises InputError if the spans are
    missing or the result has too few k-steps to show.
    """
    import plotly.graph_objects as go

    instructions = flat_instructions(trace)
    window = _window(result, instructions, steps)
    simd_of = {wave.wave: wave.simd for wave in result.waves}
    in_order = sorted(result.spans, key=lambda span: (span.start, span.cause != ""))
    rows = _rows(simd_of)
    figure = go.Figure(layout={"barmode": "overlay"})
    bars = _wave_bars(in_order, instructions, simd_of)
    _add_waves(figure, bars, rows, window, lambda bar: _hover(bar, instructions, trace.lines))
    _add_pipes(figure, _pipe_runs(in_order, instructions, simd_of), rows, window)
    _style_axes(figure, rows, window)
    height = TOP_PX + BOTTOM_PX + round(ROW_PX * rows.bottom)
    title = f"What the waves of a compute unit do over {steps} k-step{'s' if steps > 1 else ''}"
    return style(figure, title, _note(trace, result), height=height, top=TOP_PX)


def _window(result: CuResult, instructions: Sequence[TraceInstruction], steps: int) -> _Window:
    """`steps` k-steps of the first wave with MFMA, behind the warm-up as far as there are enough.

    The length of a k-step is known only if another one follows it.
    """
    if steps < 1:
        raise InputError(f"timeline of a compute unit: {steps} k-steps to show; at least 1")
    if not result.spans:
        raise InputError("timeline of a compute unit: the result was simulated without its spans")
    starts = _matrix_steps(result, instructions)
    if len(starts) <= steps:
        raise InputError(
            f"timeline of a compute unit: to show {steps} k-steps, the loop must make at least "
            f"{steps + 1}, but the result has {len(starts) or 'fewer than 2'}; simulate more"
        )
    first = min(int(len(starts) * WARM_UP), len(starts) - 1 - steps)
    return _Window(starts[first : first + steps], starts[first + steps], first + 1)


def _matrix_steps(result: CuResult, instructions: Sequence[TraceInstruction]) -> list[float]:
    """The starts of the k-steps (clk) of the first wave with MFMA; empty if it makes only one.

    A result leaves out the starts of waves with one k-step, so they are found by their clocks.
    """
    matrix_waves = {s.wave for s in result.spans if instructions[s.key].unit == "mfma"}
    issues: dict[int, set[float]] = {wave: set() for wave in sorted(matrix_waves)}
    for span in result.spans:
        if not span.cause and span.wave in matrix_waves:
            issues[span.wave].add(span.start)
    for clocks in issues.values():
        for starts in result.iteration_starts:
            if clocks.issuperset(starts):
                return starts
    return []


def _wave_bars(
    spans: Iterable[Span], instructions: Sequence[TraceInstruction], simd_of: Mapping[int, int]
) -> dict[int, list[_Bar]]:
    """The bars of each wave: neighbouring spans of one kind are one. spans: by start."""
    bars: dict[int, list[_Bar]] = {wave: [] for wave in simd_of}
    pipe_user: dict[int, int] = {}  # SIMD → wave of its last MFMA
    for span in spans:
        unit, simd = instructions[span.key].unit, simd_of[span.wave]
        if unit == "mfma" and not span.cause:
            pipe_user[simd] = span.wave
        kind = _kind(span.cause, unit, pipe_user.get(simd) == span.wave)
        own = bars[span.wave]
        if own and own[-1].kind == kind:
            own[-1].spans.append(span)
        else:
            own.append(_Bar(kind, [span]))
    return bars


def _kind(cause: str, unit: str, is_own_pipe: bool) -> str:
    """What a wave does that is held by `cause`, if any, before an instruction of `unit`.

    is_own_pipe: whether the last MFMA of its SIMD was its own.
    """
    if not cause:
        return DOING[unit]
    if unit == "mfma" and cause == "mfma busy" and is_own_pipe:
        return MFMA
    if unit == "mfma" and cause == "issue":
        return PIPE_WAIT  # another wave took the pipe at the moment it was free
    return WAITING.get(cause, OTHER_WAIT)


def _pipe_runs(
    spans: Iterable[Span], instructions: Sequence[TraceInstruction], simd_of: Mapping[int, int]
) -> dict[int, list[tuple[float, float]]]:
    """Start and end (clk) of each run of MFMA without a gap on each SIMD. spans: by start."""
    runs: dict[int, list[tuple[float, float]]] = {simd: [] for simd in simd_of.values()}
    for span in spans:
        instruction = instructions[span.key]
        if span.cause or instruction.unit != "mfma":
            continue
        own = runs[simd_of[span.wave]]
        start = own.pop()[0] if own and own[-1][1] >= span.start else span.start
        own.append((start, span.start + instruction.clocks))
    return runs


def _rows(simd_of: Mapping[int, int]) -> _Rows:
    """Waves by SIMD and number, each SIMD's pipe below its waves."""
    waves: dict[int, float] = {}
    pipes: dict[int, float] = {}
    labels: dict[float, str] = {}
    top = 0.0
    for simd in sorted(set(simd_of.values())):
        for wave in sorted(w for w, s in simd_of.items() if s == simd):
            waves[wave] = top + 0.5
            labels[waves[wave]] = f"SIMD {simd}, wave {wave}"
            top += 1
        pipes[simd] = top + PIPE_ROW / 2
        labels[pipes[simd]] = f"SIMD {simd}, matrix pipe"
        top += PIPE_ROW + SIMD_GAP
    return _Rows(waves, pipes, labels, top - SIMD_GAP)


def _add_waves(
    figure: Figure,
    bars: Mapping[int, list[_Bar]],
    rows: _Rows,
    window: _Window,
    hover: Callable[[_Bar], tuple[float, str, str]],
) -> None:
    """One trace for each kind of bar that is seen."""
    shown = [(w, b) for w, own in bars.items() for b in own if window.shows(b.start, b.end)]
    for kind in COLOURS:
        members = [(wave, bar) for wave, bar in shown if bar.kind == kind]
        places = [(rows.waves[wave], *window.clip(bar.start, bar.end)) for wave, bar in members]
        _add_bars(figure, kind, COLOURS[kind], places, BAR, [hover(bar) for _, bar in members])


def _add_pipes(
    figure: Figure,
    runs: Mapping[int, list[tuple[float, float]]],
    rows: _Rows,
    window: _Window,
) -> None:
    shown = [(s, run) for s, own in runs.items() for run in own if window.shows(*run)]
    places = [(rows.pipes[simd], *window.clip(*run)) for simd, run in shown]
    clocks = [(end - start,) for _, (start, end) in shown]
    _add_bars(figure, PIPE, PIPE_COLOUR, places, BAR * PIPE_ROW, clocks)


def _add_bars(
    figure: Figure,
    name: str,
    colour: str,
    places: Sequence[tuple[float, float, float]],
    width: float,
    hovers: Sequence[tuple[Any, ...]],
) -> None:
    """A trace of bars, each given as (centre of its row, start, length); none if there are none.

    hovers: what the hover text of each tells, clocks first, each on a line of its own.
    """
    if not places:
        return
    rows, starts, lengths = np.array(places, np.float32).T
    more = "".join(f"<br>%{{customdata[{i}]}}" for i in range(1, len(hovers[0])))
    figure.add_bar(
        x=lengths,
        base=starts,
        y=rows,
        width=width,
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        customdata=hovers,
        hovertemplate="%{fullData.name}, %{customdata[0]:,.0f} clk" + more + "<extra></extra>",
    )


def _hover(
    bar: _Bar, instructions: Sequence[TraceInstruction], lines: Sequence[str]
) -> tuple[float, str, str]:
    """Clocks of the whole bar; instructions issued, else what held it; their source lines."""
    issued = [instructions[span.key] for span in bar.spans if not span.cause]
    if issued:
        counts = Counter(i.mnemonic for i in issued)
        what = [f"{count} × {name}" if count > 1 else name for name, count in counts.items()]
    else:
        held = [f"{span.cause} before {instructions[span.key].mnemonic}" for span in bar.spans]
        what = list(dict.fromkeys(held))
    concerned = issued or [instructions[span.key] for span in bar.spans]
    keys = list(dict.fromkeys(i.line for i in concerned))
    where = [shorten(lines[key], LINE_LENGTH, placeholder=" …") for key in keys[:LINES_SHOWN]]
    if len(keys) > LINES_SHOWN:
        where.append(f"and {len(keys) - LINES_SHOWN} more lines")
    return bar.end - bar.start, "<br>".join(escaped(what)), "<br>".join(escaped(where))


def _style_axes(figure: Figure, rows: _Rows, window: _Window) -> None:
    """Rows with their names, the first on top; time from the first k-step's start."""
    figure.update_yaxes(
        tickvals=list(rows.labels),
        ticktext=list(rows.labels.values()),
        range=[rows.bottom, 0],
        fixedrange=True,  # zoom along time only
        showgrid=False,
        zeroline=False,
        automargin=True,
        ticklabelstandoff=LABEL_GAP_PX,
    )
    figure.update_xaxes(
        title_text=f"time (clk from the start of k-step {window.number} of the loop)",
        range=[0, window.end - window.start],
        zeroline=False,
    )
    for start in window.starts[1:]:
        figure.add_vline(start - window.start, line={"color": "#222", "width": 1, "dash": "dash"})
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"}
    figure.update_layout(legend=legend, hovermode="closest")


def _note(trace: KernelTrace, result: CuResult) -> str:
    """Kernel and tile, the mean steady k-step, and how busy it keeps the matrix pipes."""
    step = result.iteration_clk()
    workgroups = len(result.waves) // trace.waves
    busy = 100 * workgroups * trace.matrix_clocks / step
    tile = "x".join(str(size) for size in trace.tile)
    (kernel,) = escaped([f"{trace.kernel}, {trace.dtype} on {trace.arch}, tile {tile}"])
    return f"{kernel}: {step:,.0f} clk a k-step, matrix pipe busy {busy:.1f} %"
