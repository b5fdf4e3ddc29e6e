"""Reading assembly, comparing it with a program, and finding a compiler."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdnasim.errors import InputError
from hk_kernels.catalog import gemm_program
from hk_kernels.lower.hip import hip_source
from hk_kernels.lower.program import Program
from hk_kernels.native import compile as native
from hk_kernels.native.compare import compare_isa, is_rotation
from hk_kernels.native.compile import compile_assembly, compile_object, find_compiler
from hk_kernels.native.isa import AsmInstruction, early_uses, parse_kernel

METADATA = """\
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     4
    .args:
      - .address_space:  global
        .name:           out
        .size:           8
    .group_segment_fixed_size: 2048
    .name:           probe
    .private_segment_fixed_size: 16
    .sgpr_count:     20
    .sgpr_spill_count: 1
    .vgpr_count:     44
    .vgpr_spill_count: 3
    .wavefront_size: 64
amdhsa.version:
  - 1
  - 2
	.end_amdgpu_metadata
"""
LOOPS = """\
	.text
other:
	s_endpgm
.Lfunc_end0:
probe:                                  ; @probe
; %bb.0:
	s_load_dwordx2 s[0:1], s[4:5], 0x0
	s_cbranch_scc1 .LBB1_9
.LBB1_1:                                ; =>This Inner Loop Header: Depth=1
	s_add_i32 m0, s6, 0x100
	buffer_load_dwordx4 v1, s[8:11], s7 offen lds
	buffer_load_dwordx4 v1, s[8:11], s7 offen offset:16 lds
	s_barrier
	s_cbranch_scc1 .LBB1_1
.LBB1_2:                                ; =>This Loop Header: Depth=1
	buffer_load_dwordx4 v[4:7], v1, s[8:11], s7 offen
.LBB1_3:                                ;   Parent Loop BB1_2 Depth=1
	v_add_u32_e32 v177, s19, v193
	;;#ASMSTART
	ds_read_b128 v[128:131], v177 offset:0x400
	;;#ASMEND
	ds_read2_b64 v[8:11], v177 offset1:8
	s_waitcnt vmcnt(6) lgkmcnt(0)
	; sched_barrier mask(0x00000000)
	s_nop 1
	v_mfma_f32_16x16x32_bf16 a[0:3], v[128:131], v[8:11], a[0:3]
	v_accvgpr_read_b32 v2, a0
	scratch_store_dwordx4 off, v[2:5], off offset:8 ; 16-byte Folded Spill
	s_setprio 1
	s_cbranch_vccnz .LBB1_3
; %bb.4:
	ds_write_b64 v3, v[4:5]
	s_cbranch_scc0 .LBB1_2
.LBB1_9:
	global_store_dwordx4 v[2:3], v[4:7], off
	s_endpgm
	.section	.rodata,"a",@progbits
	.amdhsa_kernel probe
	.end_amdhsa_kernel
	.text
.Lfunc_end1:
	.size	probe, .Lfunc_end1-probe
"""


def test_loops_and_their_mix() -> None:
    kernel = parse_kernel(LOOPS + METADATA)
    assert kernel.name == "probe"
    assert [(loop.label, loop.is_innermost) for loop in kernel.loops] == [
        (".LBB1_1", True),
        (".LBB1_3", True),
        (".LBB1_2", False),
    ]
    assert kernel.hot_loop(has_mfma=False).label == ".LBB1_1"
    assert kernel.hot_loop(has_mfma=False).mix() == {"load_lds": 2, "barrier": 1, "salu": 2}
    assert kernel.hot_loop(has_mfma=True).mix() == {
        "valu": 1,
        "ds_read_b128": 1,
        "ds_read2_b64": 1,
        "wait": 1,
        "nop": 1,
        "mfma": 1,
        "accvgpr": 1,
        "scratch": 1,
        "priority": 1,
        "salu": 1,
    }
    outer = kernel.loops[2].mix()
    assert (outer["load"], outer["ds_write_b64"], outer["mfma"]) == (1, 1, 1)
    assert kernel.instructions[0].family == "smem"
    assert kernel.instructions[-2].family == "store"


def test_resources() -> None:
    resources = parse_kernel(LOOPS + METADATA).resources
    assert resources.vgprs == 40  # vgpr_count is of both kinds
    assert (resources.agprs, resources.sgprs) == (4, 20)
    assert (resources.vgpr_spills, resources.sgpr_spills) == (3, 1)
    assert (resources.scratch_bytes, resources.lds_bytes) == (16, 2048)
    exact = LOOPS + "\t.set probe.num_vgpr, 37\n" + METADATA
    assert parse_kernel(exact).resources.vgprs == 37


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (LOOPS + METADATA, "nobody", "the assembly has no kernel 'nobody'; it has: probe"),
        ("", "", "the assembly has no single kernel; it has: none"),
        (LOOPS, "probe", "probe: the assembly has no metadata of it"),
        (LOOPS.replace(".Lfunc_end1:", "") + METADATA, "", "probe: the assembly has no end of the"),
        (LOOPS + METADATA.replace(".sgpr_count:", ".x:"), "", "its metadata has no .sgpr_count"),
    ],
)
def test_assembly_that_is_not_a_kernels(text: str, name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_kernel(text, name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loop_that_is_not_there_is_named() -> None:
    straight = parse_kernel(LOOPS.replace("s_cbranch", "s_sleep") + METADATA)
    assert straight.loops == ()
    with pytest.raises(InputError, match="probe: the assembly has no loop with matrix"):
        straight.hot_loop(has_mfma=True)
    with pytest.raises(InputError, match="probe: the assembly has no loop with loads"):
        straight.hot_loop(has_mfma=False)


def test_registers_of_an_instruction() -> None:
    i = AsmInstruction("v_mfma_f32_16x16x32_bf16", "a[0:3], v[8:9], v12, a[0:3]", 1)
    assert i.registers == {"a0", "a1", "a2", "a3", "v8", "v9", "v12"}
    assert AsmInstruction("buffer_load_dwordx4", "v1, s[8:11], s7 offen", 1).registers == {"v1"}


BETWEEN = "\ts_waitcnt vmcnt(6) lgkmcnt(0)\n"


def test_a_register_used_before_its_wait_is_found() -> None:
    assert early_uses(parse_kernel(LOOPS + METADATA)) == []
    copied = LOOPS.replace(BETWEEN, "\tv_mov_b32_e32 v3, v129\n" + BETWEEN)
    assert [i.mnemonic for i in early_uses(parse_kernel(copied + METADATA))] == ["v_mov_b32"]
    short = LOOPS.replace("lgkmcnt(0)", "lgkmcnt(1)")  # the younger read is still under way
    early = early_uses(parse_kernel(short + METADATA))
    assert "v_mfma_f32_16x16x32_bf16" in [i.mnemonic for i in early]
    # of an iteration's end, at the next one's beginning
    late = LOOPS.replace("\ts_setprio 1\n", "\tds_read_b64 v[192:193], v2\n")
    assert "v_add_u32" in [i.mnemonic for i in early_uses(parse_kernel(late + METADATA))]


def test_rotations() -> None:
    assert is_rotation(list("abcab"), list("cabab"))
    assert not is_rotation(list("abc"), list("acb"))
    assert not is_rotation(list("abc"), list("ab"))
    assert is_rotation([], [])


@pytest.fixture(scope="module")
def compiled() -> tuple[Program, str]:
    program = gemm_program("specialized:p=2,c=4", "gfx950", "bf16", (64, 64, 64))
    return program, compile_assembly(hip_source(program), "gfx950")


def test_a_changed_assembly_is_reported(compiled: tuple[Program, str]) -> None:
    program, assembly = compiled
    found = compare_isa(program, assembly)
    assert found.is_equal
    report = found.report()
    assert report[0].startswith("specialized: ")
    assert "0 B of scratch" in report[0]
    assert [line.split(":")[0] for line in report[1:]] == ["waves 0-1"] * 2 + ["waves 2-5"] * 2

    def differences(before: str, after: str) -> str:
        assert before in assembly
        return "\n".join(compare_isa(program, assembly.replace(before, after)).differences())

    reads = differences("ds_read_b128", "ds_read_b64")
    assert "waves 2-5: 10 ds_read_b128 a k-step traced, 0 compiled" in reads
    assert "waves 2-5: 0 ds_read_b64 a k-step traced, 10 compiled" in reads
    assert "1 barrier a k-step traced, 0 compiled" in differences("s_barrier", "s_sleep 1")
    assert "not in the traced order" in differences("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)")
    assert "may come before its registers are read" in differences("lgkmcnt(0)", "lgkmcnt(15)")


def test_extras_are_counted(compiled: tuple[Program, str]) -> None:
    program, assembly = compiled
    copied = assembly.replace(
        "\tv_mfma", "\tv_accvgpr_read_b32 v200, a0\n\tscratch_load_dword v201, off\n\tv_mfma"
    )
    found = compare_isa(program, copied)
    consumer = found.roles[1]
    mfma = consumer.traced["mfma"]
    assert (consumer.extras["accvgpr"], consumer.extras["scratch"]) == (mfma, mfma)
    assert found.is_equal  # what was traced is there all the same


def test_another_kernel_is_refused(compiled: tuple[Program, str]) -> None:
    program, assembly = compiled
    with pytest.raises(InputError, match="no kernel 'other'; it has: specialized"):
        compare_isa(replace(program, name="other"), assembly)


# --- the compiler ---


def message_of(function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without_rocm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HIPCC", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_a_compiler_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_rocm(monkeypatch, tmp_path)
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: None)
    message = message_of(compile_assembly, "", "gfx950")
    assert message.startswith("no compiler for HIP: install ROCm")
    assert "pip install ziglang" in message


def program_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_hipcc_is_found_where_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_rocm(monkeypatch, tmp_path)
    assert not find_compiler().is_hipcc  # the ziglang wheel
    in_path = program_file(tmp_path / "hipcc", "#!/bin/sh\n")
    assert find_compiler().command == (str(in_path),)
    in_rocm = program_file(tmp_path / "bin" / "hipcc", "#!/bin/sh\n")
    assert find_compiler().command == (str(in_rocm),)
    named = program_file(tmp_path / "mine", "#!/bin/sh\n")
    monkeypatch.setenv("HIPCC", str(named))
    assert find_compiler().command == (str(named),)
    assert find_compiler().is_hipcc
    monkeypatch.setenv("HIPCC", str(tmp_path / "none"))
    assert message_of(find_compiler).startswith(f"HIPCC={tmp_path / 'none'} is not a program")


HIPCC = """\
#!{python}
import sys
arguments = sys.argv[1:]
text = " ".join(arguments)
out = arguments[arguments.index("-o") + 1]
if out == "-":
    print(text)
else:
    open(out, "w").write(text)
"""


def test_hipcc_is_called_for_the_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hipcc = program_file(tmp_path / "hipcc", HIPCC.format(python=sys.executable))
    monkeypatch.setenv("HIPCC", str(hipcc))
    flags = compile_assembly("", "gfx942").split()
    assert {"--offload-arch=gfx942", "--cuda-device-only", "-O3", "-S"} <= set(flags)
    assert "-nogpulib" not in flags
    compile_object("", "gfx950", tmp_path / "out.co")
    written = (tmp_path / "out.co").read_text().split()
    assert {"--genco", "--offload-arch=gfx950"} <= set(written)


def test_an_error_of_the_compiler_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    source = "int good;\nint bad = nothing;\nint worse = none;\n"
    message = message_of(compile_assembly, source, "gfx950")
    assert "failed: kernel.hip:2:11: error: use of undeclared identifier 'nothing'" in message
    keep = tmp_path / "kept.hip"
    message = message_of(compile_assembly, source, "gfx950", keep=keep)
    assert message.endswith(f"; the source is in {keep}")
    assert keep.read_text() == source
    assert list(temporary.iterdir()) == []
    message = message_of(compile_assembly, source, "gfx950", keep=tmp_path / "none" / "x.hip")
    assert "none/x.hip: cannot be written" in message


def test_a_compiler_that_does_not_start_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = program_file(tmp_path / "hipcc", "#!/no/such/interpreter\n")
    monkeypatch.setenv("HIPCC", str(broken))
    assert message_of(compile_assembly, "", "gfx950").startswith(f"{broken} does not start: ")


def test_an_unknown_target_is_refused() -> None:
    wanted = "HIP is not compiled for 'sm_90'; allowed: gfx950, gfx942"
    assert message_of(compile_assembly, "", "sm_90") == wanted
    assert message_of(compile_object, "", "sm_90", Path("x")) == wanted


def test_code_objects_are_elf_files_with_the_kernel(tmp_path: Path) -> None:
    program = gemm_program("specialized:p=2,c=4", "gfx950", "bf16", (64, 64, 64))
    path = tmp_path / "kernel.co"
    compile_object(hip_source(program), "gfx950", path)
    content = path.read_bytes()
    assert content[:4] == b"\x7fELF"
    assert content[18:20] == bytes([224, 0])  # EM_AMDGPU
    assert b"specialized.kd" in content
    assert list(tmp_path.iterdir()) == [path]
    message = message_of(compile_object, hip_source(program), "gfx950", tmp_path / "no" / "x.co")
    assert "cannot be written" in message


def test_the_version_names_a_clang() -> None:
    compiler = find_compiler()
    assert "clang version" in compiler.version()
    done = subprocess.run([*compiler.command, "--version"], capture_output=True, text=True)
    assert compiler.version() in done.stdout
