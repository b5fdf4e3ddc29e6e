"""A kernel's whole program: device source, and around it a host that runs, times and checks it."""

from __future__ import annotations

from importlib import resources

from cdnasim.errors import InputError
from hk_kernels.lower.hip import hip_source
from hk_kernels.lower.program import Program

ELEMENTS = {"bf16": ("unsigned short", 16), "fp8": ("unsigned char", 8)}
# Of C, relative to its root mean square: rounding to bf16 makes up to 2 to the -8 of an element,
# and the largest of many elements is four times the mean.
MAX_ERROR = 2e-2


def program_source(program: Program) -> str:
    """HIP source, on sm_90 for NVIDIA's compiler, that `hipcc` or `nvcc` makes a program of.

    It runs the kernel and prints one line of JSON; its options are in host.hip. Raises InputError
    for a dtype that the host makes no data of.
    """
    dtype = program.tensors[0].dtype.name
    if dtype not in ELEMENTS:
        raise InputError(f"dtype={dtype}: the host program makes data of {', '.join(ELEMENTS)}")
    kind, bits = ELEMENTS[dtype]
    (a, _, c), (rows, cols) = program.tensors, program.grid
    is_amd = program.arch.startswith("gfx")
    facts = {
        "double MAX_ERROR": MAX_ERROR,
        "long M": c.rows,
        "long N": c.cols,
        "long K": a.cols,
        "unsigned WORKGROUPS": rows * cols,
        "unsigned THREADS": program.waves * program.lanes,
    }
    runtime = "#include <hip/hip_runtime.h>\n" if is_amd else _text("hip_to_cuda.h")
    return "\n".join(
        [
            runtime,
            hip_source(program),
            f"#define KERNEL {program.name}",
            f'#define KERNEL_NAME "{program.name}"',
            f"#define ELEMENT_BITS {bits}",
            f"#define DYNAMIC_BYTES {0 if is_amd else program.lds_bytes}",
            f"using Element = {kind};",
            *(f"constexpr {name} = {value};" for name, value in facts.items()),
            _text("host.hip"),
        ]
    )


def _text(name: str) -> str:
    return resources.files("hk_kernels.native").joinpath(name).read_text("utf-8")
