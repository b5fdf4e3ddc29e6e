"""The HIP reading: a lowered program as C++ source of a kernel.

One statement for each instruction of the program, in its order, under the line of the definition
that it came from. Lane addresses are the program's own expressions; what of them is equal for a
wave goes into scalars and immediates, so that loops move no lane addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources

from cdnasim.errors import InputError
from hk_kernels.lower.addresses import Address, Space, simplify, split
from hk_kernels.lower.program import Instruction, Line, Loop, Node, Only, Program, walk
from hk_kernels.lower.registers import register_needs
from hk_kernels.lower.target import target_named
from hk_kernels.tile.expr import Binary, Expr

INDENT = "    "
COMMANDS = {"gf": "hipcc -O3 --genco --offload-arch=", "sm": "nvcc -O3 -std=c++17 -arch="}
AMD = ("gfx950", "gfx942")
TARGETS = (*AMD, "sm_90")
LDS_IMMEDIATES = 1 << 16  # values of the 16-bit offset of an LDS instruction
BUFFER_BYTES = (1 << 32) - 1  # most that a buffer's 32-bit size can say
PURE = ("mfma", "valu")  # units whose instructions have no side effects
OPERATORS = {"v_add_f32": "{} + {}", "v_sub_f32": "{} - {}", "v_mul_f32": "{} * {}"}
FUNCTIONS = {
    "v_max_f32": "__builtin_fmaxf({}, {})",
    "v_exp_f32": "__builtin_amdgcn_exp2f({})",
    "v_rcp_f32": "__builtin_amdgcn_rcpf({})",
}
# mnemonic → operand type, expression of a, b, c ("" if the prelude has it). Scales of 0 stand for
# no scaling, as published.
_F8F6F4 = "__builtin_bit_cast(i32x8, a), __builtin_bit_cast(i32x8, b), c, 0, 0, 0, 0, 0, 0"
_BF16_1K = "__builtin_bit_cast(i16x4, a), __builtin_bit_cast(i16x4, b), c, 0, 0, 0"
MATRIX = {
    "v_mfma_f32_16x16x32_bf16": ("bf16x8", "mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0)"),
    "v_mfma_f32_32x32x16_bf16": ("bf16x8", "mfma_f32_32x32x16_bf16(a, b, c, 0, 0, 0)"),
    "v_mfma_f32_16x16x32_f16": ("f16x8", "mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0)"),
    "v_mfma_f32_32x32x16_f16": ("f16x8", "mfma_f32_32x32x16_f16(a, b, c, 0, 0, 0)"),
    "v_mfma_f32_16x16x128_f8f6f4": ("u32x8", f"mfma_scale_f32_16x16x128_f8f6f4({_F8F6F4})"),
    "v_mfma_f32_32x32x64_f8f6f4": ("u32x8", f"mfma_scale_f32_32x32x64_f8f6f4({_F8F6F4})"),
    "v_mfma_f32_16x16x16_bf16": ("bf16x4", f"mfma_f32_16x16x16bf16_1k({_BF16_1K})"),
    "v_mfma_f32_32x32x8_bf16": ("bf16x4", f"mfma_f32_32x32x8bf16_1k({_BF16_1K})"),
    "v_mfma_f32_16x16x16_f16": ("f16x4", "mfma_f32_16x16x16f16(a, b, c, 0, 0, 0)"),
    "v_mfma_f32_32x32x8_f16": ("f16x4", "mfma_f32_32x32x8f16(a, b, c, 0, 0, 0)"),
    "mma.m16n16k16.bf16": ("u32x4", ""),
    "mma.m16n16k16.fp16": ("u32x4", ""),
}


def hip_source(program: Program) -> str:
    """C++ (HIP) source of the kernel `program`, device code without any header.

    Its arguments are the starts of A, B and C, and the grid order: a row-major tile of C (u32) for
    each workgroup, or none. Registers are the compiler's choice, pins are not
    kept. Raises InputError for a target or an instruction without a HIP reading, or a tensor
    beyond 4 GiB.
    """
    if program.arch not in TARGETS:
        raise InputError(f"{program.arch} has no HIP reading; allowed: {', '.join(TARGETS)}")
    return _Printer(program).source()


@dataclass(frozen=True)
class Piece:
    """The registers of a C++ variable: element `index` of the array `tile`."""

    tile: str
    index: int
    first: int
    size: int

    def __str__(self) -> str:
        return f"{self.tile}[{self.index}]"


@dataclass(frozen=True)
class TileVariable:
    """A register tile as an array of `count` vectors of `size` registers."""

    name: str
    type: str
    first: int
    count: int
    size: int

    def piece(self, register: int) -> Piece:
        """The piece that has `register`."""
        index = (register - self.first) // self.size
        return Piece(self.name, index, self.first + index * self.size, self.size)


@dataclass
class LaneVariable:
    """A lane address kept in a register: addresses of one shape whose constants are in reach."""

    name: str
    is_lds: bool
    address: Address
    is_declared: bool = False


@dataclass
class _Scope:
    """What waves of one condition execute: its accesses' parts and its lane variables."""

    space: Space
    parts: dict[int, tuple[LaneVariable, Expr, int]] = field(default_factory=dict)


def accesses(i: Instruction) -> list[Expr]:
    """The lane addresses of an instruction: of LDS, or of global memory."""
    if i.memory is not None:
        return [i.memory.offset]
    return [i.lds] if i.lds is not None else []


class _Printer:
    """Prints one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.line: Line | None = None
        self.depth = 1
        self.is_pure = False
        self.now: dict[str, str] = {}  # LDS address that a loop moves → its name
        self.names_of_target = target_named(program.arch).names
        self.is_amd = program.arch.startswith("gfx")
        self.moved: frozenset[str] = frozenset()  # those that the present loop has made
        self.summed: list[Piece] = []  # accumulators written since the last fence
        self.names: set[str] = {t.name for t in program.tensors} | {
            node.variable for node in walk(program.body) if isinstance(node, Loop)
        }
        self.tiles = self._tile_variables()
        self.pieces = {
            register: tile.piece(register)
            for tile in self.tiles
            for register in range(tile.first, tile.first + tile.count * tile.size)
        }
        self.arrivals = _arrivals(program.body)

    def source(self) -> str:
        head = _head(self.program)
        file = "prelude.hip" if self.is_amd else "prelude.cu"
        prelude = resources.files("hk_kernels.lower").joinpath(file).read_text("utf-8")
        self._entry()
        self._scope(self.program.body, tuple(range(self.program.waves)))
        needs = register_needs(self.program)
        is_in_agprs = any(need.agprs and need.budget > need.vgprs for need in needs)
        define = f'#define ACCUMULATOR "+{"a" if is_in_agprs else "v"}"\n'
        parts = [head, define, prelude, _matrix_functions(self.program), _grid_order(self.program)]
        return "\n".join([*parts, _signature(self.program), *self.lines, "}", ""])

    # names ------------------------------------------------------------------------------------

    def _name(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name

    def _tile_variables(self) -> list[TileVariable]:
        sizes: dict[int, tuple[int, str]] = {}  # first register of a piece → size, type
        for i in _instructions(self.program.body):
            if i.mfma:
                sizes[i.dst[0]] = len(i.dst), f"f32x{len(i.dst)}"
            elif i.unit in ("vmem", "lds") and i.dst:
                sizes[i.dst[0]] = len(i.dst), f"u32x{len(i.dst)}"
        operands = self._operand_types()
        tiles, counts = [], dict[str, int]()
        for tile in self.program.registers:
            size, kind = sizes.get(tile.first, (1, "f32"))
            kind = operands.get(tile.first, kind)
            if tile.name == "conversion":
                kind = "u32"
            match = re.match(r"(\w+)\s*=[^=]", tile.line.text)
            base = match[1] if match and tile.name != "conversion" else tile.name
            number = counts[base] = counts.get(base, -1) + 1
            name = self._name(f"{base}{number}")
            tiles.append(TileVariable(name, kind, tile.first, tile.count // size, size))
        return tiles

    def _operand_types(self) -> dict[int, str]:
        """Types of operand pieces that are whole MFMA operands, by first register."""
        return {
            first: MATRIX[i.mnemonic][0]
            for i in _instructions(self.program.body)
            if i.mfma and i.mnemonic in MATRIX and MATRIX[i.mnemonic][0] != "u32x8"
            for first in (i.src[0], i.src[i.mfma.operand_vgprs])
        }

    # structure --------------------------------------------------------------------------------

    def _print(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + text)

    def _entry(self) -> None:
        lds, lanes = self.program.lds_bytes, self.program.lanes
        if self.is_amd:
            thread, workgroup = (
                "__builtin_amdgcn_workitem_id_x()",
                "__builtin_amdgcn_workgroup_id_x()",
            )
        else:
            thread, workgroup = "threadIdx.x", "blockIdx.x"
        self._print(f"const u32 lane = {thread} % {lanes};")
        if self.is_amd:
            self._print(
                "// readfirstlane tells the compiler that it is a scalar: roles are branches"
            )
            self._print(f"const u32 wave = __builtin_amdgcn_readfirstlane({thread} / {lanes});")
        else:
            self._print(f"const u32 wave = __shfl_sync(~0u, {thread} / {lanes}, 0);")
        self._print(f"const auto [tile_row, tile_col] = output_tile(ordered(order, {workgroup}));")
        if lds and self.is_amd:
            self._print(f"static __shared__ __attribute__((aligned(1024))) char shared[{lds}];")
        elif lds:
            self._print("extern __shared__ __align__(1024) char shared[];")
        if lds:
            self._print("const u32 lds = lds_address(shared);")
        for tensor in self.program.tensors:
            size = tensor.rows * tensor.pitch
            if size > BUFFER_BYTES:
                raise InputError(
                    f"{self.program.name}: tensor {tensor.name} has {size} B, a buffer at most "
                    f"{BUFFER_BYTES}"
                )
            self._print(f"const Buffer {tensor.name} = buffer({tensor.name}_start, {size}u);")
        for tile in self.tiles:
            self._print(f"{tile.type} {tile.name}[{tile.count}];")

    def _scope(self, body: list[Node], waves: tuple[int, ...]) -> None:
        """A body that `waves` execute: lane addresses are made where it first needs them."""
        scope = _Scope(self._space(waves))
        self._plan(body, scope)
        for node in body:
            for lane in self._lanes_of(node, scope):
                if not lane.is_declared:
                    lane.is_declared = True
                    value = lane.address.lane + lane.address.constant
                    text = f"lds + {_factor(value)}" if lane.is_lds else value.cpp()
                    self._print(f"const u32 {lane.name} = {text};")
            self._node(node, scope)

    def _space(self, waves: tuple[int, ...]) -> Space:
        rows, cols = self.program.grid
        ranges = {"tile_row": (0, rows - 1), "tile_col": (0, cols - 1)}
        loops = [node for node in walk(self.program.body) if isinstance(node, Loop)]
        ranges |= {loop.variable: (0, loop.count - 1) for loop in loops}
        return Space(waves, ranges, self.program.lanes)

    def _node(self, node: Node, scope: _Scope) -> None:
        if isinstance(node, Instruction):
            self._instruction(node, scope)
            return
        self._switch(is_pure=False)
        self._comment(node.line)
        if isinstance(node, Loop):
            self._loop(node, scope)
            return
        waves = tuple(w for w in scope.space.waves if node.condition.evaluate({"wave": w}))
        condition = simplify(node.condition, scope.space.all_ranges())
        self._print(f"if ({condition.cpp()}) {{")
        self.depth += 1
        self._scope(node.body, waves)
        self._switch(is_pure=False)
        self.depth -= 1
        self._print("}")
        self.line = None

    def _loop(self, loop: Loop, scope: _Scope) -> None:
        variable = loop.variable
        self._print("#pragma clang loop unroll(disable)" if self.is_amd else "#pragma unroll 1")
        self._print(f"for (u32 {variable} = 0; {variable} < {loop.count}; ++{variable}) {{")
        self.depth += 1
        outer, made = self.moved, self._moving(loop, scope)
        self.moved |= made.keys()
        for value, name in made.items():
            self._print(f"const u32 {name} = {value};")
        for node in loop.body:
            self._node(node, scope)
        self.moved = outer
        self._switch(is_pure=False)
        self.depth -= 1
        self._print("}")
        self.line = None

    def _comment(self, line: Line) -> None:
        if line != self.line:
            self._print(f"// {line}")
            self.line = line

    def _switch(self, *, is_pure: bool) -> None:
        """Instructions with and without side effects keep their places around a fence."""
        if is_pure != self.is_pure:
            for statement in self._each("hold", self.summed):
                self._print(statement)
            self.summed.clear()
            self._print("fence();")
            self.is_pure = is_pure

    def _each(self, function: str, pieces: Iterable[Piece]) -> list[str]:
        """A call of `function` for each tile that is whole among `pieces`, and each other piece."""
        chosen = list(dict.fromkeys(pieces))
        statements = []
        for tile in self.tiles:
            mine = [piece for piece in chosen if piece.tile == tile.name]
            if len(mine) == tile.count:
                statements.append(f"{function}({tile.name});")
            else:
                statements += [f"{function}({piece});" for piece in mine]
        return statements

    # addresses --------------------------------------------------------------------------------

    def _plan(self, body: list[Node], scope: _Scope) -> None:
        """Group the lane addresses of a scope by shape; each group gets a variable."""
        groups: dict[tuple[bool, bytes], list[tuple[Expr, Address]]] = {}
        names: dict[tuple[bool, bytes], str] = {}
        for i in _own(body):
            for expr in accesses(i):
                address = split(expr, scope.space)
                if address is None:
                    continue
                is_lds = i.memory is None
                key = (is_lds, address.shape)
                groups.setdefault(key, []).append((expr, address))
                tile = self.pieces[(i.dst or i.src)[0]].tile if is_lds else ""
                names.setdefault(key, f"lds_{tile}" if is_lds else "lane_offset")
        for key, members in groups.items():
            reach = LDS_IMMEDIATES if key[0] else BUFFER_BYTES
            variable: LaneVariable | None = None
            for expr, address in sorted(members, key=lambda member: member[1].constant):
                start = variable.address.constant if variable else 0
                if variable is None or address.constant - start >= reach:
                    variable = LaneVariable(self._name(names[key]), key[0], address)
                offset = address.constant - variable.address.constant
                scope.parts[id(expr)] = variable, address.uniform, offset

    def _lanes_of(self, node: Node, scope: _Scope) -> Iterator[LaneVariable]:
        for i in _own([node]):
            for expr in accesses(i):
                if id(expr) in scope.parts:
                    yield scope.parts[id(expr)][0]

    def _moving(self, loop: Loop, scope: _Scope) -> dict[str, str]:
        """LDS addresses that change from iteration to iteration, made at its beginning.

        LDS instructions take no scalar: one addition an iteration serves all reads of a buffer.
        """
        made: dict[str, str] = {}
        for i in loop.body:
            if isinstance(i, Instruction) and id(i.lds) in scope.parts:
                lane, uniform, _ = scope.parts[id(i.lds)]
                if uniform.symbols():
                    value = f"{lane.name} + {_factor(uniform)}"
                    if value not in self.now:
                        self.now[value] = self._name(f"{lane.name}_now")
                    made[value] = self.now[value]
        return made

    def _lds_address(self, i: Instruction, scope: _Scope) -> tuple[str, int]:
        """The register expression and the immediate."""
        assert i.lds is not None
        if id(i.lds) not in scope.parts:
            return f"lds + {_factor(simplify(i.lds, scope.space.all_ranges()))}", 0
        lane, uniform, offset = scope.parts[id(i.lds)]
        if not uniform.symbols():
            return lane.name, offset
        value = f"{lane.name} + {_factor(uniform)}"
        return (self.now[value] if value in self.moved else value), offset

    def _offsets(self, i: Instruction, scope: _Scope) -> str:
        """voffset and soffset."""
        assert i.memory is not None
        expr = i.memory.offset
        if id(expr) not in scope.parts:
            return f"{simplify(expr, scope.space.all_ranges()).cpp()}, 0"
        lane, uniform, offset = scope.parts[id(expr)]
        return f"{lane.name}, {(uniform + offset).cpp()}"

    # instructions -----------------------------------------------------------------------------

    def _instruction(self, i: Instruction, scope: _Scope) -> None:
        names = self.names_of_target
        if i.mnemonic in (*names.loop, names.place):
            return  # of the for statement, or M0 of load_to_lds
        self._switch(is_pure=i.unit in PURE)
        self._comment(i.line)
        for statement in self._statements(i, scope):
            self._print(statement)

    def _statements(self, i: Instruction, scope: _Scope) -> list[str]:
        if i.mfma:
            return [self._matrix(i)]
        if i.unit == "wait":
            return self._wait(i)
        if i.unit == "barrier":
            return ["barrier();"]
        if i.mnemonic == "s_setprio":
            return [f"priority<{i.value}>();"]
        if i.mnemonic == "sched_barrier":
            return ["fence();"]
        if i.unit == "lds":
            return [self._lds(i, scope)]
        if i.unit == "vmem":
            return [self._global(i, scope)]
        return [self._vector(i)]

    def _matrix(self, i: Instruction) -> str:
        assert i.mfma is not None
        size = i.mfma.operand_vgprs
        c = self.pieces[i.dst[0]]
        self.summed.append(c)
        a, b = self._operand(i.src[:size]), self._operand(i.src[size:])
        return f"{c} = {_function(i.mnemonic)}({a}, {b}, {c});"

    def _operand(self, registers: tuple[int, ...]) -> str:
        pieces = list(dict.fromkeys(self.pieces[r] for r in registers))
        if len(pieces) == 1:
            return str(pieces[0])
        return f"joined({', '.join(map(str, pieces))})"

    def _wait(self, i: Instruction) -> list[str]:
        vm = "ANY_VM" if i.vm is None else str(i.vm)
        lgkm = "ANY_LGKM" if i.lgkm is None else str(i.lgkm)
        arrived = (self.pieces[r] for r in self.arrivals.get(id(i), ()))
        return [f"wait<{vm}, {lgkm}>();", *self._each("arrived", arrived)]

    def _lds(self, i: Instruction, scope: _Scope) -> str:
        address, offset = self._lds_address(i, scope)
        if i.dst:
            return f"{_function(i.mnemonic)}<{offset}>({self.pieces[i.dst[0]]}, {address});"
        piece = self.pieces[i.src[0]]
        half = ("xy", "zw")[(i.src[0] - piece.first) // 2]
        return f"{i.mnemonic}<{offset}>({address}, {piece}.{half});"

    def _global(self, i: Instruction, scope: _Scope) -> str:
        assert i.memory is not None
        tensor, offsets = i.memory.tensor, self._offsets(i, scope)
        if i.loads_lds:
            assert i.lds is not None
            place = simplify(i.lds, scope.space.all_ranges())
            return f"load_to_lds({tensor}, lds + {_factor(place)}, {offsets});"
        if i.dst:
            return f"{self.pieces[i.dst[0]]} = load({tensor}, {offsets});"
        if i.width > 2:
            name = "store"
        else:
            name = "store_high" if i.mnemonic.endswith("d16_hi") else "store_low"
        return f"{name}({tensor}, {self._element(i.src[0])}, {offsets});"

    def _vector(self, i: Instruction) -> str:
        to = self._element(i.dst[0])
        if self.pieces[i.dst[0]].size > 1:
            self.summed.append(self.pieces[i.dst[0]])
        sources = [self._element(r) for r in i.src]
        base = i.mnemonic.removesuffix("_dpp")
        if base != i.mnemonic:
            sources[0] = f"rotated<{i.value}>({sources[0]})"
        if base == self.names_of_target.zero:
            return f"{to} = {sources[0] if sources else 0};"
        if base in ("v_cvt_pk_bf16_f32", "cvt.rn.bf16x2.f32"):
            return f"{to} = packed({sources[0]}, {sources[1]});"
        pattern = OPERATORS.get(base) or FUNCTIONS.get(base)
        if pattern is None:
            raise InputError(f"{i.line}: {i.mnemonic} has no HIP reading")
        return f"{to} = {pattern.format(*sources)};"

    def _element(self, register: int) -> str:
        piece = self.pieces[register]
        return str(piece) if piece.size == 1 else f"{piece}[{register - piece.first}]"


def _own(body: Iterable[Node]) -> Iterator[Instruction]:
    """Instructions of a body and its loops, without those of roles inside."""
    for node in body:
        if isinstance(node, Instruction):
            yield node
        elif isinstance(node, Loop):
            yield from _own(node.body)


def _instructions(body: list[Node]) -> Iterator[Instruction]:
    for node in walk(body):
        if isinstance(node, Instruction):
            yield node


def _factor(expr: Expr) -> str:
    """An expression that a + may stand before."""
    is_loose = isinstance(expr, Binary) and expr.operator not in ("+", "*", "/", "%")
    return f"({expr.cpp()})" if is_loose else expr.cpp()


def _arrivals(body: list[Node]) -> dict[int, tuple[int, ...]]:
    """Wait (by id) → first registers of the LDS reads that it may be the first to complete."""
    found: dict[int, dict[int, None]] = {}
    queue: list[int | None] = []

    def follow(nodes: list[Node]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                follow(node.body)
                follow(node.body)  # again: what an iteration leaves to the next
            elif isinstance(node, Only):
                follow(node.body)
            elif node.unit == "lds":
                queue.append(node.dst[0] if node.dst else None)
            elif node.lgkm is not None:
                while len(queue) > node.lgkm:
                    register = queue.pop(0)
                    if register is not None:
                        found.setdefault(id(node), {})[register] = None

    follow(body)
    return {wait: tuple(registers) for wait, registers in found.items()}


def _head(program: Program) -> str:
    rows, cols = program.grid
    sizes = ", ".join(f"{t.name}[{t.rows},{t.cols}] {t.dtype}" for t in program.tensors)
    parameters = " ".join(f"{key}={value}" for key, value in program.parameters.items())
    return (
        f"// {program.name} for {program.arch}: {sizes}\n"
        f"// {parameters}; {rows * cols} workgroups of {program.waves} waves\n"
        f"//   {COMMANDS[program.arch[:2]]}{program.arch}\n"
    )


def _function(mnemonic: str) -> str:
    if not mnemonic.startswith("v_mfma"):
        return mnemonic.replace(".", "_")
    return mnemonic.removeprefix("v_").rsplit("_", 1)[0].replace("_f32", "")


def _matrix_functions(program: Program) -> str:
    used = {i.mnemonic: i for i in _instructions(program.body) if i.mfma}
    functions = []
    for mnemonic, i in used.items():
        if mnemonic not in MATRIX:
            raise InputError(f"{i.line}: {mnemonic} has no HIP reading")
        operand, call = MATRIX[mnemonic]
        if not call:
            continue  # in the prelude
        total = f"f32x{len(i.dst)}"
        functions.append(
            f"INLINE {total} {_function(mnemonic)}({operand} a, {operand} b, {total} c) {{\n"
            f"{INDENT}return __builtin_amdgcn_{call};\n}}\n"
        )
    return "\n".join(functions)


def _grid_order(program: Program) -> str:
    rows, cols = program.grid
    return (
        "struct Tile {\n    u32 row, col;\n};\n\n"
        f"// One of the {rows} x {cols} tiles of C, counted row by row.\n"
        "INLINE Tile output_tile(u32 tile) {\n"
        f"    return {{tile / {cols}u, tile % {cols}u}};\n}}\n"
    )


def _signature(program: Program) -> str:
    threads, per_simd = program.waves * program.lanes, program.waves_per_simd
    arguments = ", ".join(
        f"{'' if t.name == 'C' else 'const '}void* {t.name}_start" for t in program.tensors
    )
    arguments += ", const void* order"
    if not program.arch.startswith("gfx"):
        return (
            f'extern "C" __global__ __launch_bounds__({threads}, 1) void\n'
            f"{program.name}({arguments}) {{"
        )
    return (
        f'extern "C" __global__ __attribute__((amdgpu_flat_work_group_size({threads}, {threads}),\n'
        f"{INDENT * 9}   amdgpu_waves_per_eu({per_simd}, {per_simd}))) void\n"
        f"{program.name}({arguments}) {{"
    )
