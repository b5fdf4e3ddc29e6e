#include <cstdio>
#include <cuda_runtime.h>
// clocks of a warp's independent m16n8k16, with 1..4 warps on each of the SM's four partitions
__global__ void chain(float* out, long long* clocks, int n) {
    float c[16][4] = {};
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {4, threadIdx.x};
    __syncthreads();
    long long begin = clock64();
    for (int i = 0; i < n; ++i)
#pragma unroll
        for (int j = 0; j < 16; ++j)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    long long end = clock64();
    float s = 0;
    for (int j = 0; j < 16; ++j) for (int r = 0; r < 4; ++r) s += c[j][r];
    out[blockIdx.x * blockDim.x + threadIdx.x] = s;
    if (threadIdx.x % 32 == 0) clocks[threadIdx.x / 32] = end - begin;
}
__global__ void latency(float* out, long long* clocks, int n) {
    float c[4] = {};
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {4, threadIdx.x};
    long long begin = clock64();
    for (int i = 0; i < n; ++i)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    long long end = clock64();
    out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
    clocks[0] = end - begin;
}
__global__ void matrices(unsigned* out, long long* clocks, int n) {
    extern __shared__ __align__(1024) char shared[];
    unsigned base = (unsigned)__cvta_generic_to_shared(shared), lane = threadIdx.x % 32;
    unsigned address = base + ((lane % 16 * 128 + lane / 16 * 16) ^ (lane % 8 << 4)) + threadIdx.x / 32 * 2048;
    unsigned r[4][4], s = 0; address += out[0] & 0;
    __syncthreads();
    long long begin = clock64();
    for (int i = 0; i < n; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[j][0]), "=r"(r[j][1]), "=r"(r[j][2]), "=r"(r[j][3]) : "r"(address ^ (s & 0x400)));
            s ^= r[j][0] ^ r[j][1] ^ r[j][2] ^ r[j][3];
        }
    long long end = clock64();
    out[threadIdx.x] = s;
    if (lane == 0) clocks[threadIdx.x / 32] = end - begin;
}
__global__ void barriers(long long* clocks, int n) {
    __syncthreads();
    long long begin = clock64();
    for (int i = 0; i < n; ++i) asm volatile("bar.sync 0;" ::: "memory");
    long long end = clock64();
    if (threadIdx.x == 0) clocks[0] = end - begin;
}
int main() {
    float* out; long long* clocks; long long host[32];
    cudaMalloc(&out, 1 << 20); cudaMalloc(&clocks, 256);
    cudaFuncSetAttribute(matrices, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);
    for (int warps = 4; warps <= 16; warps *= 2) for (int turn = 0; turn < 2; ++turn) {
        chain<<<1, 32 * warps>>>(out, clocks, 1000);
        cudaMemcpy(host, clocks, 256, cudaMemcpyDeviceToHost);
        if (turn) printf("mma: %d warps: %.3f clk per m16n8k16 and partition\n", warps, host[0] / 16000.0 / (warps / 4));
        matrices<<<1, 32 * warps, 65536>>>((unsigned*)out, clocks, 1000);
        cudaMemcpy(host, clocks, 256, cudaMemcpyDeviceToHost);
        if (turn) printf("ldmatrix.x4: %d warps: %.3f clk each, of the SM\n", warps, host[0] / 4000.0 / warps);
        barriers<<<1, 32 * warps>>>(clocks, 1000);
        cudaMemcpy(host, clocks, 256, cudaMemcpyDeviceToHost);
        if (turn) printf("bar.sync: %d warps: %.3f clk\n", warps, host[0] / 1000.0);
    }
    latency<<<1, 32>>>(out, clocks, 1000);
    cudaMemcpy(host, clocks, 256, cudaMemcpyDeviceToHost);
    printf("mma latency: %.3f clk\n%s\n", host[0] / 1000.0, cudaGetErrorString(cudaGetLastError()));
}
