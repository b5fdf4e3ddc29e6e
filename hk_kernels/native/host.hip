// The program around the kernel: data, timing, check, one line of JSON. Options:
//   --order FILE   tile of C (row-major index, u32) of each workgroup; row by row without it
//   --warmup N --runs N   launches before and while times are taken (500, 100)
//   --rotate BYTES   inputs take turns until they fill BYTES (0: the same every time)
//   --seed N   of the data
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace host {

#define CHECK(call)                                                                \
    do {                                                                           \
        hipError_t error = (call);                                                 \
        if (error != hipSuccess) {                                                 \
            std::fprintf(stderr, "%s: %s\n", #call, hipGetErrorString(error));     \
            std::exit(1);                                                          \
        }                                                                          \
    } while (0)

constexpr long CHECKED_ROWS = 1024;  // of C, evenly spread: a plain product of all takes long

struct Options {
    std::string order;
    long warmup = 500, runs = 100;
    double rotate = 0;
    unsigned seed = 0;
};

Options read_options(int count, char** words) {
    Options options;
    for (int i = 1; i < count; i += 2) {
        std::string name = words[i];
        const char* value = i + 1 < count ? words[i + 1] : nullptr;
        if (!value) {
            std::fprintf(stderr, "%s needs a value\n", words[i]);
            std::exit(2);
        }
        if (name == "--order") options.order = value;
        else if (name == "--warmup") options.warmup = std::atol(value);
        else if (name == "--runs") options.runs = std::max(1L, std::atol(value));
        else if (name == "--rotate") options.rotate = std::atof(value);
        else if (name == "--seed") options.seed = (unsigned)std::atol(value);
        else {
            std::fprintf(stderr, "unknown option %s; allowed: --order --warmup --runs --rotate "
                         "--seed\n", words[i]);
            std::exit(2);
        }
    }
    return options;
}

// Storage of the operands' type, and what it stands for.
__host__ __device__ inline float bf16_value(unsigned short bits) {
    unsigned wide = (unsigned)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

__host__ __device__ inline float element_value(const Element* data, long i) {
#if ELEMENT_BITS == 8
    // e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa
    unsigned char bits = data[i];
    int exponent = (bits >> 3) & 15, mantissa = bits & 7;
    float size = exponent ? ldexpf(1 + mantissa / 8.0f, exponent - 7) : ldexpf(mantissa / 8.0f, -6);
    return bits & 128 ? -size : size;
#else
    return bf16_value(data[i]);
#endif
}

__device__ inline unsigned mixed(unsigned x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// Values of -1 to 1, spread evenly.
__global__ void fill(Element* data, long count, unsigned seed) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < count;
         i += (long)gridDim.x * blockDim.x) {
        unsigned bits = mixed(mixed((unsigned)i + seed * 0x9e3779b9u) ^ (unsigned)(i >> 32));
#if ELEMENT_BITS == 8
        // sign, exponents 4 to 6 (1/8 to 1), any mantissa
        data[i] = (Element)((bits & 128) | (4 + bits % 3) << 3 | ((bits >> 8) & 7));
#else
        float value = (bits >> 8) * (2.0f / (1 << 24)) - 1.0f;
        unsigned wide;
        memcpy(&wide, &value, 4);
        data[i] = (Element)(wide >> 16);
#endif
    }
}

// C of another kind, one thread an element of one row in each `step`, not always its first, so that
// all rows of a tile are seen: largest difference, sum of squares.
__global__ void compare(const Element* a, const Element* b, const unsigned short* c, float* worst,
                        double* squares, long step) {
    long row = blockIdx.y * step + blockIdx.y % step, col = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (col >= N) return;
    float sum = 0;
    for (long k = 0; k < K; ++k) sum += element_value(a, row * K + k) * element_value(b, col * K + k);
    float difference = fabsf(sum - bf16_value(c[row * N + col]));
    if (!(difference >= 0)) difference = INFINITY;  // not a number
    atomicMax((int*)worst, __float_as_int(difference));  // of floats from 0 the bits are in order
    atomicAdd(squares, (double)sum * sum);
}

int run(int count, char** words) {
    Options options = read_options(count, words);
    hipDeviceProp_t device;
    CHECK(hipGetDeviceProperties(&device, 0));
    const size_t a_bytes = (size_t)M * K * sizeof(Element), b_bytes = (size_t)N * K * sizeof(Element);
    const long copies = std::max(1L, (long)std::ceil(options.rotate / (double)(a_bytes + b_bytes)));
    std::vector<Element*> as(copies), bs(copies);
    for (long i = 0; i < copies; ++i) {
        CHECK(hipMalloc((void**)&as[i], a_bytes));
        CHECK(hipMalloc((void**)&bs[i], b_bytes));
        fill<<<1024, 256>>>(as[i], M * K, options.seed * 1000003u + 2 * (unsigned)i);
        fill<<<1024, 256>>>(bs[i], N * K, options.seed * 1000003u + 2 * (unsigned)i + 1);
    }
    unsigned short* c;
    CHECK(hipMalloc((void**)&c, (size_t)M * N * 2));
    CHECK(hipMemset(c, 0xff, (size_t)M * N * 2));  // what is not written stays not a number

    std::vector<unsigned> tiles(WORKGROUPS);
    for (unsigned i = 0; i < WORKGROUPS; ++i) tiles[i] = i;
    if (!options.order.empty()) {
        FILE* file = std::fopen(options.order.c_str(), "rb");
        if (!file || std::fread(tiles.data(), 4, WORKGROUPS, file) != WORKGROUPS) {
            std::fprintf(stderr, "%s: needs %u values of 4 B\n", options.order.c_str(), WORKGROUPS);
            return 2;
        }
        std::fclose(file);
    }
    unsigned* order;
    CHECK(hipMalloc((void**)&order, 4 * WORKGROUPS));
    CHECK(hipMemcpy(order, tiles.data(), 4 * WORKGROUPS, hipMemcpyHostToDevice));

#if DYNAMIC_BYTES
    CHECK(hipFuncSetAttribute((const void*)KERNEL, hipFuncAttributeMaxDynamicSharedMemorySize,
                              DYNAMIC_BYTES));
#endif
    long turn = 0;
    auto launch = [&] {
        KERNEL<<<WORKGROUPS, THREADS, DYNAMIC_BYTES>>>(as[turn % copies], bs[turn % copies], c, order);
        ++turn;
    };
    for (long i = 0; i < options.warmup; ++i) launch();
    CHECK(hipGetLastError());
    std::vector<hipEvent_t> starts(options.runs), ends(options.runs);
    for (long i = 0; i < options.runs; ++i) {
        CHECK(hipEventCreate(&starts[i]));
        CHECK(hipEventCreate(&ends[i]));
    }
    for (long i = 0; i < options.runs; ++i) {
        CHECK(hipEventRecord(starts[i], 0));
        launch();
        CHECK(hipEventRecord(ends[i], 0));
    }
    CHECK(hipDeviceSynchronize());
    std::vector<double> times(options.runs);
    for (long i = 0; i < options.runs; ++i) {
        float ms;
        CHECK(hipEventElapsedTime(&ms, starts[i], ends[i]));
        times[i] = 1e3 * ms;
    }
    const double first_us = times[0];
    double mean = 0;
    for (double time : times) mean += time / options.runs;
    std::sort(times.begin(), times.end());

    struct {
        float worst, unused;
        double squares;
    } errors = {0, 0, 0}, *on_device;
    CHECK(hipMalloc((void**)&on_device, sizeof errors));
    CHECK(hipMemcpy(on_device, &errors, sizeof errors, hipMemcpyHostToDevice));
    const long last = (turn - 1) % copies, rows = std::min(M, CHECKED_ROWS);
    compare<<<dim3((N + 255) / 256, rows), 256>>>(as[last], bs[last], c, &on_device->worst,
                                                  &on_device->squares, M / rows);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(&errors, on_device, sizeof errors, hipMemcpyDeviceToHost));
    // relative to the root mean square of C
    double error = errors.worst / std::sqrt(errors.squares / ((double)rows * N));
    if (!std::isfinite(error)) error = 1e30;  // JSON has no word for it

    std::printf("{\"kernel\": \"%s\", \"m\": %ld, \"n\": %ld, \"k\": %ld, \"device\": \"%s\", "
                "\"runs\": %ld, \"copies\": %ld, \"median_us\": %.3f, \"mean_us\": %.3f, "
                "\"min_us\": %.3f, \"max_us\": %.3f, \"first_us\": %.3f, \"tflops\": %.2f, "
                "\"max_error\": %.3g}\n",
                KERNEL_NAME, M, N, K, device.name, options.runs, copies, times[options.runs / 2], mean,
                times.front(), times.back(), first_us, 2.0 * M * N * K / times[options.runs / 2] / 1e6,
                error);
    return error <= MAX_ERROR ? 0 : 1;
}

}  // namespace host

int main(int count, char** words) { return host::run(count, words); }
