"""The Gantt chart of a compute unit shows the clocks of the result, and what a wave does."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from cdnasim.cu.profile import run_steps
from cdnasim.errors import InputError
from cdnasim.plots.gantt import COLOURS, MFMA, PIPE, PIPE_WAIT, cu_gantt
from cdnasim.trace.model import SIMDS, flat_instructions
from hk_kernels.catalog import gemm_trace

STEPS = 2
MAX_JSON_BYTES = 300_000
SHAPES = {
    "pingpong8": (256, 256, 64),
    "interleave4": (256, 256, 64),
    "specialized:p=4,c=8": (128, 256, 64),
}


class Chart:
    """A kernel's result, its figure, and the bars of each row as (start, length)."""

    def __init__(self, schedule):
        self.trace = gemm_trace(schedule, "gfx950", "bf16", SHAPES[schedule])
        self.result = run_steps(self.trace, 8, keep_spans=True)
        self.figure = cu_gantt(self.trace, self.result, STEPS)
        axis = self.figure.layout.yaxis
        self.labels = dict(zip(np.float32(axis.tickvals), axis.ticktext, strict=True))
        self.length = self.figure.layout.xaxis.range[1]
        self.bars = {label: [] for label in self.labels.values()}
        self.kinds = {label: Counter() for label in self.labels.values()}
        for trace in self.figure.data:
            for row, start, length in zip(trace.y, trace.base, trace.x, strict=True):
                self.bars[self.labels[row]].append((float(start), float(length)))
                self.kinds[self.labels[row]][trace.name] += float(length)

    def window(self):
        """Start and end (clk) of what is shown: k-steps of the first wave with MFMA."""
        instructions = flat_instructions(self.trace)
        wave = min(s.wave for s in self.result.spans if instructions[s.key].unit == "mfma")
        starts = self.result.iteration_starts[wave]  # every wave of these kernels has its own
        return starts[len(starts) // 3], starts[len(starts) // 3 + STEPS]


@cache
def chart_of(schedule):
    return Chart(schedule)


@pytest.fixture(scope="module", params=SHAPES)
def chart(request):
    return chart_of(request.param)


@pytest.fixture(scope="module")
def pingpong():
    return chart_of("pingpong8")


def row(record):
    return f"SIMD {record.simd}, wave {record.wave}"


def test_every_wave_has_a_row_grouped_by_simd(chart):
    assert {row(w) for w in chart.result.waves} <= set(chart.bars)
    top_down = [chart.labels[place] for place in sorted(chart.labels)]
    low, high = sorted(chart.figure.layout.yaxis.range)
    assert all(low < place < high for place in chart.labels)
    assert chart.figure.layout.yaxis.range[0] == high  # the first row is on top
    expected = []
    for simd in range(SIMDS):
        expected += [row(w) for w in chart.result.waves if w.simd == simd]
        expected.append(f"SIMD {simd}, matrix pipe")
    assert top_down == expected


def test_bars_of_a_wave_fill_the_window_and_do_not_overlap(chart):
    for wave in chart.result.waves:
        end = 0.0
        for start, length in sorted(chart.bars[row(wave)]):
            assert start == end and length > 0
            end = start + length
        assert end == chart.length


def test_window_begins_behind_the_first_third_of_the_k_steps(chart):
    first, last = chart.window()
    assert chart.length == last - first
    in_window = (s for s in chart.result.spans if first < s.end and s.start < last)
    assert {s.wave for s in in_window} == {w.wave for w in chart.result.waves}


def test_pipe_bars_are_the_matrix_clocks_in_the_window(chart):
    instructions = flat_instructions(chart.trace)
    simd_of = {w.wave: w.simd for w in chart.result.waves}
    first, last = chart.window()
    busy = Counter()
    for span in chart.result.spans:
        if not span.cause and instructions[span.key].unit == "mfma":
            end = span.start + instructions[span.key].clocks
            busy[simd_of[span.wave]] += max(0.0, min(end, last) - max(span.start, first))
    for simd in range(SIMDS):
        assert chart.kinds[f"SIMD {simd}, matrix pipe"] == {PIPE: busy[simd]}
        runs = sorted(chart.bars[f"SIMD {simd}, matrix pipe"])
        ends = [start + length for start, length in runs]
        assert all(end < start for end, (start, _) in zip(ends[:-1], runs[1:], strict=True))
        assert runs[0][0] >= 0 and ends[-1] <= chart.length


def test_neighbours_on_a_row_differ_in_kind(chart):
    for wave in chart.result.waves:
        place = next(p for p, label in chart.labels.items() if label == row(wave))
        bars = sorted(
            (start, trace.name)
            for trace in chart.figure.data
            for y, start in zip(trace.y, trace.base, strict=True)
            if y == place
        )
        assert all(a[1] != b[1] for a, b in pairwise(bars))


def test_figure_is_light_and_the_same_each_time(chart):
    text = chart.figure.to_json()
    assert len(text) < MAX_JSON_BYTES
    assert cu_gantt(chart.trace, chart.result, STEPS).to_json() == text
    json.loads(text)


def test_colours_and_legend_name_what_is_seen(chart):
    names = [trace.name for trace in chart.figure.data]
    assert names == [kind for kind in (*COLOURS, PIPE) if kind in names]
    colours = [trace.marker.color for trace in chart.figure.data]
    assert len(set(colours)) == len(names)
    assert chart.figure.layout.legend.yanchor == "bottom"


def test_hover_tells_clocks_instruction_and_line(chart):
    mnemonics = {i.mnemonic for i in flat_instructions(chart.trace)}
    for trace in chart.figure.data:
        for text, length in zip(trace.customdata, trace.x, strict=True):
            assert text[0] >= length  # the whole bar's, though the window may cut it
            if trace.name != PIPE:
                assert any(name in text[1] for name in mnemonics)
                assert text[2].startswith("gemm.py:")


def test_note_names_kernel_tile_and_busy_pipe(chart):
    note = chart.figure.layout.title.subtitle.text
    step = chart.result.iteration_clk()
    assert note.startswith(chart.trace.kernel)
    assert "x".join(map(str, chart.trace.tile)) in note
    assert f"{step:,.0f} clk" in note
    assert f"{100 * chart.trace.matrix_clocks / step:.1f} %" in note


def test_waves_of_a_simd_take_turns(pingpong):
    """A cluster is one bar, and while one wave is in it the other one is not."""
    matrix = next(trace for trace in pingpong.figure.data if trace.name == MFMA)
    bars = sorted(zip(matrix.base, matrix.x, matrix.y, strict=True))
    on_simd_0 = [b for b in bars if pingpong.labels[b[2]].startswith("SIMD 0")]
    assert len(on_simd_0) <= STEPS * pingpong.trace.clusters + 1
    for (start, length, y), (next_start, _, next_y) in pairwise(on_simd_0):
        assert y != next_y and start + length <= next_start


def test_producers_show_no_matrix_work_and_consumers_contend():
    chart = chart_of("specialized:p=4,c=8")
    producers = [w for w in chart.result.waves if w.wave in chart.trace.roles[0].waves]
    consumers = [w for w in chart.result.waves if w.wave in chart.trace.roles[1].waves]
    assert all(MFMA not in chart.kinds[row(w)] for w in producers)
    assert all(chart.kinds[row(w)][MFMA] > 0 for w in consumers)
    assert any(chart.kinds[row(w)][PIPE_WAIT] > 0 for w in consumers)


def test_more_k_steps_than_the_loop_makes_are_refused(pingpong):
    made = len(pingpong.result.iteration_starts[0])
    with pytest.raises(InputError, match=f"at least {made + 1}, but the result has {made}"):
        cu_gantt(pingpong.trace, pingpong.result, made)
    cu_gantt(pingpong.trace, pingpong.result, made - 1)


def test_fewer_than_two_k_steps_are_refused(pingpong):
    few = run_steps(pingpong.trace, 3, keep_spans=True)
    assert few.iteration_starts == []
    with pytest.raises(InputError, match="fewer than 2; simulate more"):
        cu_gantt(pingpong.trace, few)


def test_no_steps_and_no_spans_are_refused(pingpong):
    with pytest.raises(InputError, match="at least 1"):
        cu_gantt(pingpong.trace, pingpong.result, 0)
    with pytest.raises(InputError, match="without its spans"):
        cu_gantt(pingpong.trace, replace(pingpong.result, spans=[]))


def test_every_workgroup_of_the_cu_has_its_rows():
    trace = gemm_trace("interleave4", "gfx950", "bf16", (128, 128, 64))
    result = run_steps(trace, 8, workgroups=2, keep_spans=True)
    figure = cu_gantt(trace, result)
    labels = figure.layout.yaxis.ticktext
    assert {f"SIMD {w.simd}, wave {w.wave}" for w in result.waves} <= set(labels)
    busy = 100 * 2 * trace.matrix_clocks / result.iteration_clk()
    assert f"{busy:.1f} %" in figure.layout.title.subtitle.text
