// The instructions of the kernels below as functions of one statement each. Device code only: no
// header is needed, so hipcc and a plain clang with an AMDGPU back end both compile it.

#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif
#ifndef __shared__
#define __shared__ __attribute__((shared))
#endif
#define INLINE static __device__ inline __attribute__((always_inline))
#define IN_LDS __attribute__((address_space(3)))

using f32 = float;
using u32 = unsigned;
using u64 = unsigned long long;
using u32x2 = u32 __attribute__((ext_vector_type(2)));
using u32x4 = u32 __attribute__((ext_vector_type(4)));
using u32x8 = u32 __attribute__((ext_vector_type(8)));
using i16x4 = short __attribute__((ext_vector_type(4)));
using i32x8 = int __attribute__((ext_vector_type(8)));
using f32x4 = f32 __attribute__((ext_vector_type(4)));
using f32x16 = f32 __attribute__((ext_vector_type(16)));
using f16x4 = _Float16 __attribute__((ext_vector_type(4)));
using f16x8 = _Float16 __attribute__((ext_vector_type(8)));
using bf16x2 = __bf16 __attribute__((ext_vector_type(2)));
using bf16x4 = __bf16 __attribute__((ext_vector_type(4)));
using bf16x8 = __bf16 __attribute__((ext_vector_type(8)));
using i32x4 = int __attribute__((ext_vector_type(4)));

// Where a compiler has no builtin for the load to LDS, LLVM's intrinsics are called by their names.
#if !defined(BUFFER_INTRINSICS) && !__has_builtin(__builtin_amdgcn_raw_ptr_buffer_load_lds)
#define BUFFER_INTRINSICS
#endif

// The grid order: the tile of a workgroup, from a table of the host's or, without one, its number.
INLINE u32 ordered(const void* order, u32 workgroup) {
    return order ? ((const u32*)order)[workgroup] : workgroup;
}

// --- order and synchronisation ---

// Nothing is scheduled across it.
INLINE void fence() { __builtin_amdgcn_sched_barrier(0); }

// MFMA have no side effects, so a compiler may move them down to where their sums are used. This
// uses them where the kernel has the MFMA. ACCUMULATOR: "+a" if AGPRs are needed, else "+v".
template <typename T>
INLINE void hold(T& sum) {
    asm volatile("" : ACCUMULATOR(sum));
}

template <typename T, int count>
INLINE void hold(T (&sums)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) hold(sums[i]);
}

constexpr int ANY_VM = 63, ANY_LGKM = 15;  // the counters' most: no wait

// s_waitcnt: bits 3:0 and 15:14 vmcnt, 6:4 expcnt (7: no wait), 11:8 lgkmcnt.
template <int vm, int lgkm>
INLINE void wait() {
    __builtin_amdgcn_s_waitcnt((vm & 15) | 7 << 4 | lgkm << 8 | (vm >> 4) << 14);
}

INLINE void barrier() { __builtin_amdgcn_s_barrier(); }

template <int level>
INLINE void priority() {
    __builtin_amdgcn_s_setprio(level);
}

// --- LDS ---

// By way of 64 bits: a compiler that checks this for the host has wide pointers.
INLINE u32 lds_address(char* shared) { return (u32)(u64)(IN_LDS char*)shared; }

// Reads are inline assembly because the compiler would wait for every outstanding load to LDS
// before a read of its own that may alias it, and would join two reads of 8 B into one. It does not
// know when their registers are filled: `arrived`, after the wait, is what their uses depend on.
template <int offset, typename T>
INLINE void ds_read_b128(T& to, u32 address) {
    static_assert(sizeof(T) == 16);
    asm volatile("ds_read_b128 %0, %1 offset:%2" : "=v"(to) : "v"(address), "n"(offset) : "memory");
}

template <int offset, typename T>
INLINE void ds_read_b64(T& to, u32 address) {
    static_assert(sizeof(T) == 8);
    asm volatile("ds_read_b64 %0, %1 offset:%2" : "=v"(to) : "v"(address), "n"(offset) : "memory");
}

template <typename T>
INLINE void arrived(T& loaded) {
    asm volatile("" : "+v"(loaded));
}

template <typename T, int count>
INLINE void arrived(T (&loaded)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) arrived(loaded[i]);
}

// Writes too: the compiler would join two of 8 B.
template <int offset>
INLINE void ds_write_b64(u32 address, u32x2 data) {
    asm volatile("ds_write_b64 %0, %1 offset:%2" ::"v"(address), "v"(data), "n"(offset) : "memory");
}

// --- global memory; offsets in bytes: voffset a lane's own, soffset the wave's ---

// A raw buffer: accesses past its end return 0 or are dropped.
constexpr int BUFFER_FLAGS = 0x00020000;  // word 3: 32-bit data format

#if defined(BUFFER_INTRINSICS)
using Buffer = i32x4;

extern "C" __device__ void load_to_lds_intrinsic(Buffer, IN_LDS void*, int size, int voffset,
                                                 int soffset, int offset, int aux)
    __asm("llvm.amdgcn.raw.buffer.load.lds");
extern "C" __device__ i32x4 load_intrinsic(Buffer, int voffset, int soffset, int aux)
    __asm("llvm.amdgcn.raw.buffer.load.v4i32");

INLINE Buffer buffer(const void* start, u32 bytes) {
    const u64 address = (u64)start;
    return {(int)address, (int)(address >> 32), (int)bytes, BUFFER_FLAGS};
}

// Lane l writes 16 B at lds + 16 l; `lds` goes to M0.
INLINE void load_to_lds(Buffer from, u32 lds, u32 voffset, u32 soffset) {
    load_to_lds_intrinsic(from, (IN_LDS void*)lds, 16, voffset, soffset, 0, 0);
}

INLINE u32x4 load(Buffer from, u32 voffset, u32 soffset) {
    return (u32x4)load_intrinsic(from, voffset, soffset, 0);
}
#else
using Buffer = __amdgpu_buffer_rsrc_t;

INLINE Buffer buffer(const void* start, u32 bytes) {
    return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(start), 0, bytes, BUFFER_FLAGS);
}

#if defined(__gfx950__)
// Lane l writes 16 B at lds + 16 l; `lds` goes to M0.
INLINE void load_to_lds(Buffer from, u32 lds, u32 voffset, u32 soffset) {
    __builtin_amdgcn_raw_ptr_buffer_load_lds(from, (IN_LDS void*)lds, 16, voffset, soffset, 0, 0);
}
#endif

INLINE u32x4 load(Buffer from, u32 voffset, u32 soffset) {
    return __builtin_amdgcn_raw_buffer_load_b128(from, voffset, soffset, 0);
}
#endif

// Inline assembly: no builtin stores the upper half of a register without a shift before it.
INLINE void store_low(Buffer to, u32 pair, u32 voffset, u32 soffset) {
    asm volatile("buffer_store_short %0, %1, %2, %3 offen" ::"v"(pair), "v"(voffset),
                 "s"(to), "s"(soffset)
                 : "memory");
}

INLINE void store_high(Buffer to, u32 pair, u32 voffset, u32 soffset) {
    asm volatile("buffer_store_short_d16_hi %0, %1, %2, %3 offen" ::"v"(pair), "v"(voffset),
                 "s"(to), "s"(soffset)
                 : "memory");
}

// --- registers ---

// Two floats as bf16, round to nearest even. gfx950 has v_cvt_pk_bf16_f32; before it, several
// instructions do the same.
INLINE u32 packed(f32 low, f32 high) {
    return __builtin_bit_cast(u32, bf16x2{(__bf16)low, (__bf16)high});
}

// The value of the lane that is `turn` places to the left in a row of 16 lanes, cyclically.
template <int turn>
INLINE f32 rotated(f32 value) {
    const int bits = __builtin_bit_cast(int, value);
    constexpr int ROW_ROR = 0x120;
    return __builtin_bit_cast(
        f32, __builtin_amdgcn_update_dpp(bits, bits, ROW_ROR + turn, 0xf, 0xf, false));
}

INLINE u32x8 joined(u32x4 low, u32x4 high) {
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
