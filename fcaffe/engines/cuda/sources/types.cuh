// What stands in front of every source: number types, 16-byte accesses, reductions. It includes nothing, so that NVRTC
// needs no header files. FCAFFE_EMULATED: compiled for the CPU, by the tests' emulator.

typedef long long int64;
typedef unsigned long long uint64;

struct half_t {
    unsigned short bits;
};

struct bfloat_t {
    unsigned short bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }

__device__ __forceinline__ float to_float(half_t value) {
#ifdef FCAFFE_EMULATED
    return emulated::from_half(value.bits);
#else
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#endif
}

__device__ __forceinline__ float to_float(bfloat_t value) { return __uint_as_float((unsigned)value.bits << 16); }

// from_float<T>(value): rounded to the nearest, ties to even; too large is infinite; no number stays no number.
template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <>
__device__ __forceinline__ half_t from_float<half_t>(float value) {
    half_t result;
#ifdef FCAFFE_EMULATED
    result.bits = emulated::to_half(value);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#endif
    return result;
}

template <>
__device__ __forceinline__ bfloat_t from_float<bfloat_t>(float value) {
    bfloat_t result;
#if !defined(FCAFFE_EMULATED) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
#else
    unsigned bits = __float_as_uint(value);
    bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
    result.bits = (unsigned short)((is_number ? bits + 0x7fffu + (bits >> 16 & 1u) : bits | 0x400000u) >> 16);
#endif
    return result;
}

// ReLU. Adding 0 makes 0 of -0. With slope 0, -inf becomes NaN, as in Caffe.
__device__ __forceinline__ float leaky(float value, float slope) { return value < 0 ? slope * value + 0.0f : value; }

// Packs: N neighbours that are read or written at once, in registers as floats. PACK<T> of them fill 16 bytes.
template <typename T>
constexpr int PACK = 16 / sizeof(T);

template <int BYTES>
struct Word;
template <>
struct Word<16> {
    typedef uint4 type;
};
template <>
struct Word<8> {
    typedef uint2 type;
};
template <>
struct Word<4> {
    typedef unsigned type;
};
template <>
struct Word<2> {
    typedef unsigned short type;
};

// A pack as it is in memory. Addresses are multiples of N * sizeof(T).
template <typename T, int N>
union Raw {
    typename Word<N * sizeof(T)>::type word;
    T values[N];

#ifdef FCAFFE_EMULATED
    void read(const T* from) { emulated::move(&word, from, from, sizeof(word)); }
    void write(T* to) const { emulated::move(to, &word, to, sizeof(word)); }
#else
    __device__ __forceinline__ void read(const T* from) { word = *reinterpret_cast<const decltype(word)*>(from); }
    __device__ __forceinline__ void write(T* to) const { *reinterpret_cast<decltype(word)*>(to) = word; }
#endif
};

template <int N, typename T>
__device__ __forceinline__ void load(const T* from, float (&values)[N]) {
    Raw<T, N> raw;
    raw.read(from);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = to_float(raw.values[i]);
}

template <int N, typename T>
__device__ __forceinline__ void store(T* to, const float (&values)[N]) {
    Raw<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; ++i) raw.values[i] = from_float<T>(values[i]);
    raw.write(to);
}

__device__ __forceinline__ bool is_aligned(const void* pointer, unsigned bytes = 16) {
    return ((uint64)pointer & (bytes - 1)) == 0;
}

// for i = this thread's share of 0 .. count - 1, whatever the number of blocks (one-dimensional ones).
#define GRID_STRIDE(type, i, count)                                       \
    for (type i = (type)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += (type)gridDim.x * blockDim.x)

// Reductions, always in the same order. Blocks are made of whole warps, and all their threads take part; all threads
// get the result.
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

__device__ __forceinline__ int thread_in_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
