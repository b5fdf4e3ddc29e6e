// The instructions of the kernels below as functions of one statement each, for NVIDIA GPUs from
// sm_80 on. The names are those of prelude.hip: a wave is a warp, LDS is shared memory.

#define INLINE static __device__ __forceinline__

using f32 = float;
using u32 = unsigned;

template <typename T, int count>
struct Vector {
    T values[count];
    __device__ __forceinline__ T& operator[](int i) { return values[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }
};
using u32x4 = Vector<u32, 4>;
using f32x8 = Vector<f32, 8>;

// Where a tensor starts; the program's offsets stay within it.
struct Buffer {
    char* start;
};

INLINE Buffer buffer(const void* start, u32) { return {(char*)start}; }

// The grid order: the tile of a workgroup, from a table of the host's or, without one, its number.
INLINE u32 ordered(const void* order, u32 workgroup) {
    return order ? ((const u32*)order)[workgroup] : workgroup;
}

// --- order and synchronisation ---

// The compiler's own order is kept: registers say what depends on what.
INLINE void fence() {}

template <typename T>
INLINE void hold(T&) {}

template <typename T>
INLINE void arrived(T&) {}

constexpr int ANY_VM = 63, ANY_LGKM = 15;  // no wait

// Each load to shared memory is a group of its own. What ldmatrix reads needs no wait.
template <int vm, int lgkm>
INLINE void wait() {
    if constexpr (vm != ANY_VM) asm volatile("cp.async.wait_group %0;" ::"n"(vm) : "memory");
}

// Counts all warps of the block, wherever in the program they are.
INLINE void barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

// --- shared memory ---

INLINE u32 lds_address(char* shared) { return (u32)__cvta_generic_to_shared(shared); }

template <int offset>
INLINE void ldmatrix_x4(u32x4& to, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address + offset)
                 : "memory");
}

// --- global memory; offsets in bytes: voffset a lane's own, soffset the wave's ---

// Lane l writes 16 B at lds + 16 l.
INLINE void load_to_lds(Buffer from, u32 lds, u32 voffset, u32 soffset) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;" ::"r"(
                     lds + 16 * (threadIdx.x % 32)),
                 "l"(from.start + voffset + soffset)
                 : "memory");
}

INLINE void store(Buffer to, u32 pair, u32 voffset, u32 soffset) {
    *(u32*)(to.start + voffset + soffset) = pair;
}

// --- registers ---

// Two floats as bf16, round to nearest even.
INLINE u32 packed(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// --- matrices ---

#define MMA_SYNC(TYPE, c, first, a, b0, b1)                                                     \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                         \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"         \
                 : "+f"(c[first]), "+f"(c[first + 1]), "+f"(c[first + 2]), "+f"(c[first + 3])   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

INLINE f32x8 mma_m16n16k16_bf16(u32x4 a, u32x4 b, f32x8 c) {
    MMA_SYNC("bf16", c, 0, a, b[0], b[2]);
    MMA_SYNC("bf16", c, 4, a, b[1], b[3]);
    return c;
}

INLINE f32x8 mma_m16n16k16_fp16(u32x4 a, u32x4 b, f32x8 c) {
    MMA_SYNC("f16", c, 0, a, b[0], b[2]);
    MMA_SYNC("f16", c, 4, a, b[1], b[3]);
    return c;
}
