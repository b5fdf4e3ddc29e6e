// Stands in for prelude.hip on a CPU: a value is that of all 64 lanes of a wave, a wave a thread.
// Loads come at once; whether waits and barriers suffice is what the reference reading judges.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline
#define __global__
#define __shared__
#define IN_LDS
constexpr int LANES = 64;

template <typename T>
struct Lanes {
    T of[LANES];
    Lanes() = default;
    Lanes(T value) {
        for (T& one : of) one = value;
    }
    explicit Lanes(char* start);
    explicit operator bool() const {
        for (T one : of)
            if (!one != !of[0]) abort();  // a branch must be the wave's
        return of[0];
    }
    Lanes& operator++() {
        for (T& one : of) ++one;
        return *this;
    }
};
using u32 = Lanes<uint32_t>;
using f32 = Lanes<float>;

static char* lds_bytes;
template <>
u32::Lanes(char* start) : Lanes(0u) {
    lds_bytes = start;
}

#define OPERATOR(op)                                             \
    INLINE u32 operator op(const u32& a, const u32& b) {         \
        u32 result;                                              \
        for (int l = 0; l < LANES; ++l) result.of[l] = a.of[l] op b.of[l]; \
        return result;                                           \
    }
OPERATOR(+) OPERATOR(-) OPERATOR(*) OPERATOR(/) OPERATOR(%) OPERATOR(^) OPERATOR(<) OPERATOR(==)

template <int dwords>
struct Vector {  // dwords of a lane, lane by lane
    uint32_t of[LANES][dwords];
};
using u32x2 = Vector<2>;
struct u32x4 {
    u32x2 xy, zw;
};
using u32x8 = Vector<8>;
using i32x8 = Vector<8>;
using i16x4 = Vector<2>;
using bf16x4 = Vector<2>;
using bf16x8 = Vector<4>;
using f16x4 = Vector<2>;
using f16x8 = Vector<4>;
template <int count>
struct Sums {
    f32 of[count];
    f32& operator[](int i) { return of[i]; }
};
using f32x4 = Sums<4>;
using f32x16 = Sums<16>;

struct Buffer {
    char* start;
    uint32_t bytes;
};
static pthread_barrier_t all_waves;
static thread_local uint32_t this_wave;
static uint32_t this_workgroup;

INLINE u32 __builtin_amdgcn_workitem_id_x() {
    u32 id;
    for (int l = 0; l < LANES; ++l) id.of[l] = this_wave * LANES + l;
    return id;
}
INLINE u32 __builtin_amdgcn_workgroup_id_x() { return this_workgroup; }
INLINE u32 __builtin_amdgcn_readfirstlane(const u32& value) { return value.of[0]; }

INLINE u32 lds_address(char* shared) { return u32(shared); }
INLINE u32 ordered(const void*, u32 workgroup) { return workgroup; }

constexpr int ANY_VM = 63, ANY_LGKM = 15;
INLINE void fence() {}
template <int vm, int lgkm>
INLINE void wait() {}
template <int level>
INLINE void priority() {}
INLINE void barrier() { pthread_barrier_wait(&all_waves); }
template <typename T>
INLINE void hold(T&) {}
template <typename T>
INLINE void arrived(T&) {}

template <int offset, int bytes, typename T>
INLINE void ds_read(T& to, const u32& address) {
    char (&lanes)[LANES][bytes] = reinterpret_cast<char (&)[LANES][bytes]>(to);
    for (int l = 0; l < LANES; ++l) memcpy(lanes[l], lds_bytes + address.of[l] + offset, bytes);
}
template <int offset, typename T>
INLINE void ds_read_b128(T& to, const u32& address) {
    ds_read<offset, 16>(to, address);
}
template <int offset, typename T>
INLINE void ds_read_b64(T& to, const u32& address) {
    ds_read<offset, 8>(to, address);
}
template <int offset>
INLINE void ds_write_b64(const u32& address, const u32x2& data) {
    for (int l = 0; l < LANES; ++l) memcpy(lds_bytes + address.of[l] + offset, data.of[l], 8);
}

INLINE Buffer buffer(const void* start, uint32_t bytes) {
    return {static_cast<char*>(const_cast<void*>(start)), bytes};
}
INLINE char* place(const Buffer& in, uint32_t offset, uint32_t width) {
    if (offset + width > in.bytes) abort();
    return in.start + offset;
}
INLINE void load_to_lds(const Buffer& from, const u32& lds, const u32& v, const u32& s) {
    for (int l = 0; l < LANES; ++l)
        memcpy(lds_bytes + lds.of[0] + 16 * l, place(from, v.of[l] + s.of[0], 16), 16);
}
INLINE u32x4 load(const Buffer& from, const u32& v, const u32& s) {
    u32x4 loaded;
    for (int l = 0; l < LANES; ++l) {
        memcpy(loaded.xy.of[l], place(from, v.of[l] + s.of[0], 8), 8);
        memcpy(loaded.zw.of[l], place(from, v.of[l] + s.of[0] + 8, 8), 8);
    }
    return loaded;
}
INLINE void store(const Buffer& to, const u32& pair, int shift, const u32& v, const u32& s) {
    for (int l = 0; l < LANES; ++l) {
        const uint16_t half = pair.of[l] >> shift;
        memcpy(place(to, v.of[l] + s.of[0], 2), &half, 2);
    }
}
INLINE void store_low(const Buffer& to, const u32& pair, const u32& v, const u32& s) {
    store(to, pair, 0, v, s);
}
INLINE void store_high(const Buffer& to, const u32& pair, const u32& v, const u32& s) {
    store(to, pair, 16, v, s);
}

INLINE uint32_t bf16_of(float value) {  // to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
INLINE u32 packed(const f32& low, const f32& high) {
    u32 pair;
    for (int l = 0; l < LANES; ++l) pair.of[l] = bf16_of(low.of[l]) | bf16_of(high.of[l]) << 16;
    return pair;
}
INLINE u32x8 joined(const u32x4& low, const u32x4& high) {
    // pieces as ds_read_b128 fills them: 16 B lane by lane
    u32x8 both;
    for (int l = 0; l < LANES; ++l) {
        memcpy(both.of[l], reinterpret_cast<const char*>(&low) + 16 * l, 16);
        memcpy(both.of[l] + 4, reinterpret_cast<const char*>(&high) + 16 * l, 16);
    }
    return both;
}

struct Bf16 {
    uint16_t bits;
    float value() const {
        const uint32_t wide = uint32_t(bits) << 16;
        float f;
        memcpy(&f, &wide, 4);
        return f;
    }
};
struct Fp8 {  // e4m3, no infinities
    uint8_t bits;
    float value() const {
        const int exponent = bits >> 3 & 15, mantissa = bits & 7;
        float f = exponent ? float(8 + mantissa) : float(mantissa);
        for (int e = exponent ? exponent : 1; e < 10; ++e) f /= 2;
        for (int e = 10; e < exponent; ++e) f *= 2;
        return bits & 128 ? -f : f;
    }
};

// d[m][n] += a[m][k] b[n][k]: m = n = `size`, a lane's elements in runs of `side`.
template <typename Element, int size, int depth, int side, typename Operand, typename Sum>
INLINE Sum matrix(const Operand& a, const Operand& b, Sum c) {
    constexpr int groups = LANES / size, held = size * depth / LANES;
    static_assert(sizeof(Operand) == LANES * held * sizeof(Element));
    float as[size][depth], bs[size][depth];
    for (int l = 0; l < LANES; ++l)
        for (int e = 0; e < held; ++e) {
            const int k = side * (l / size) + e / side * side * groups + e % side;
            as[l % size][k] = reinterpret_cast<const Element*>(a.of[l])[e].value();
            bs[l % size][k] = reinterpret_cast<const Element*>(b.of[l])[e].value();
        }
    for (int l = 0; l < LANES; ++l)
        for (int i = 0; i < size * size / LANES; ++i) {
            const int row = 4 * (l / size) + 4 * groups * (i / 4) + i % 4;
            float sum = 0;
            for (int k = 0; k < depth; ++k) sum += as[row][k] * bs[l % size][k];
            c.of[i].of[l] += sum;
        }
    return c;
}
#define MATRIX(name, element, size, depth, side)                                          \
    template <typename Operand, typename Sum, typename... Rest>                           \
    INLINE Sum __builtin_amdgcn_##name(const Operand& a, const Operand& b, Sum c, Rest...) { \
        return matrix<element, size, depth, side>(a, b, c);                               \
    }
MATRIX(mfma_f32_16x16x32_bf16, Bf16, 16, 32, 8)
MATRIX(mfma_f32_32x32x16_bf16, Bf16, 32, 16, 8)
MATRIX(mfma_f32_16x16x16bf16_1k, Bf16, 16, 16, 4)
MATRIX(mfma_scale_f32_16x16x128_f8f6f4, Fp8, 16, 128, 16)
MATRIX(mfma_scale_f32_32x32x64_f8f6f4, Fp8, 32, 64, 16)
