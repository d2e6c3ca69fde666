// CUDA's language on a CPU, for tests: blocks run one after the other; the threads of a block are coroutines, which
// take turns at barriers and warp operations. What would be undefined or an error on a GPU ends the launch with a message.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define FCAFFE_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __constant__ static
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint2 { unsigned x, y; } __align__(8);
struct uint3 { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; } __align__(16);
struct int2 { int x, y; } __align__(8);
struct int4 { int x, y, z, w; } __align__(16);
struct float2 { float x, y; } __align__(8);
struct float4 { float x, y, z, w; } __align__(16);
struct dim3 { unsigned x, y, z; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulated {

constexpr size_t STACK = 256 << 10, MOST_SHARED = 48 << 10;
alignas(128) unsigned char shared_memory[MOST_SHARED];

struct Worker {  // a stack on which threads run, each until it has to wait
    ucontext_t start;
    jmp_buf place;
    bool is_new = true;
};

enum State { READY, AT_BLOCK, AT_WARP, DONE };

struct Thread {
    State state;
    uint3 index;
    Worker* worker;
    const char* operation;
    unsigned mask;
    int source;
    uint64_t value, result;
};

std::vector<Thread> threads;
std::vector<Worker*> idle;
size_t started;
Thread* current;
Worker* running;
jmp_buf scheduler;
void (*body)(void*);
void* body_arguments;
std::string failure;

[[gnu::noinline]] inline void leave() {
    if (!_setjmp(running->place)) _longjmp(scheduler, 1);
}

inline void work() {
    for (;;) {
        while (started < threads.size()) {
            current = &threads[started++];
            threadIdx = current->index;
            body(body_arguments);
            current->state = DONE;
        }
        idle.push_back(running);
        leave();
    }
}

[[gnu::noinline]] inline void enter(Worker* worker) {
    running = worker;
    if (_setjmp(scheduler)) return;
    if (!worker->is_new) _longjmp(worker->place, 1);
    worker->is_new = false;
    setcontext(&worker->start);
}

inline Worker* idle_worker() {
    if (idle.empty()) {
        auto worker = new Worker;
        getcontext(&worker->start);
        void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        worker->start.uc_stack.ss_sp = stack;
        worker->start.uc_stack.ss_size = STACK;
        worker->start.uc_link = nullptr;
        makecontext(&worker->start, work, 0);
        return worker;
    }
    Worker* worker = idle.back();
    idle.pop_back();
    return worker;
}

inline void wait(State state) {
    Thread* thread = current;
    thread->state = state;
    thread->worker = running;
    leave();
    thread->state = READY;
}

inline void resume(Thread& thread) {
    current = &thread;
    threadIdx = thread.index;
    enter(thread.worker);
}

inline std::string where(const Thread& thread) {
    auto text = [](const uint3& at) {
        return std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z);
    };
    return "thread " + text(thread.index) + " of block " + text(blockIdx);
}

// One access of `bytes` bytes of memory, of which `address` is to be a multiple.
inline void move(void* to, const void* from, const void* address, size_t bytes) {
    if (uintptr_t(address) % bytes)
        failure = where(*current) + " accesses " + std::to_string(bytes) + " bytes at an address that is no multiple";
    memcpy(to, from, bytes);
}

// Give the lanes of the first complete group of a warp what they wait for; whether there was one.
inline bool exchange(size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
        Thread& leader = threads[i];
        if (leader.state != AT_WARP) continue;
        if (!(leader.mask >> (i - first) & 1)) failure = where(leader) + " is not in the mask of its " + leader.operation;
        bool complete = true;
        unsigned votes = 0;
        for (size_t j = first; j < end; ++j) {
            const Thread& lane = threads[j];
            if (!(leader.mask >> (j - first) & 1) || lane.state == DONE) continue;
            complete = complete && lane.state == AT_WARP && lane.mask == leader.mask;
            if (lane.state == AT_WARP && lane.operation != leader.operation)
                failure = where(lane) + " is at " + lane.operation + ", another of its warp at " + leader.operation;
            votes |= unsigned(lane.value != 0) << (j - first);
        }
        if (!complete || !failure.empty()) continue;
        for (size_t j = first; j < end; ++j) {
            Thread& lane = threads[j];
            if (!(leader.mask >> (j - first) & 1) || lane.state == DONE) continue;
            if (lane.source >= 0) {
                size_t source = first + lane.source;
                if (source >= end || threads[source].state == DONE || !(lane.mask >> lane.source & 1)) {
                    failure = where(lane) + " reads a lane that takes no part in " + lane.operation;
                    return false;
                }
                lane.result = threads[source].value;
            } else {
                lane.result = votes;
            }
        }
        for (size_t j = first; j < end; ++j)
            if ((leader.mask >> (j - first) & 1) && threads[j].state != DONE) threads[j].state = READY;
        for (size_t j = first; j < end; ++j)
            if ((leader.mask >> (j - first) & 1) && threads[j].state == READY) resume(threads[j]);
        return true;
    }
    return false;
}

inline void run_block() {
    started = 0;
    for (Thread& thread : threads) thread.state = READY;
    while (started < threads.size()) enter(idle_worker());
    for (;;) {
        bool moved = false;
        for (size_t first = 0; first < threads.size(); first += warpSize)
            while (exchange(first, std::min(first + warpSize, threads.size()))) moved = true;
        if (!failure.empty()) return;
        const Thread *waiting = nullptr, *other = nullptr;
        for (const Thread& thread : threads) {
            if (thread.state == AT_BLOCK) waiting = &thread;
            if (thread.state == AT_WARP) other = &thread;
        }
        if (!waiting && !other) return;
        if (other && !moved) {
            failure = where(*other) + " waits at " + other->operation + " for others that do not come there";
            return;
        }
        if (other) continue;
        for (Thread& thread : threads)
            if (thread.state == AT_BLOCK) thread.state = READY;
        for (Thread& thread : threads)
            if (thread.state == READY) resume(thread);
    }
}

inline uint64_t at_warp(const char* operation, unsigned mask, uint64_t value, int source) {
    Thread* thread = current;
    thread->operation = operation;
    thread->mask = mask;
    thread->value = value;
    thread->source = source;
    wait(AT_WARP);
    return thread->result;
}

inline int lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize; }

template <typename T>
T shuffle(const char* operation, unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = at_warp(operation, mask, bits, source);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

inline float from_half(unsigned short bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float value = exponent == 0 ? ldexpf(mantissa, -24) : ldexpf(1024 + mantissa, exponent - 25);
    if (exponent == 31) value = mantissa ? NAN : INFINITY;
    return bits >> 15 ? -value : value;
}

inline unsigned short to_half(float value) {
    float size = fabsf(value);
    unsigned bits, sign = signbit(value) ? 0x8000 : 0;
    memcpy(&bits, &size, 4);
    if (size != size) return sign | 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | (unsigned short)nearbyintf(size * 0x1p24f);  // a multiple of the smallest
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (bits - (112u << 23)) >> 13;
}

}  // namespace emulated

inline void __syncthreads() {
    emulated::current->operation = "__syncthreads";
    emulated::wait(emulated::AT_BLOCK);
}
inline void __syncwarp(unsigned mask = ~0u) { emulated::at_warp("__syncwarp", mask, 0, -1); }
inline void __threadfence() {}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulated::at_warp("__ballot_sync", mask, predicate != 0, -1);
}
inline int __any_sync(unsigned mask, int predicate) {
    return emulated::at_warp("__any_sync", mask, predicate != 0, -1) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return emulated::at_warp("__all_sync", mask, predicate == 0, -1) == 0;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    int first = emulated::lane() / width * width;
    return emulated::shuffle("__shfl_sync", mask, value, first + (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int step, int width = 32) {
    int lane = emulated::lane(), source = lane ^ step;
    return emulated::shuffle("__shfl_xor_sync", mask, value, source / width > lane / width ? lane : source);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned step, int width = 32) {
    int lane = emulated::lane(), source = lane + int(step);
    return emulated::shuffle("__shfl_down_sync", mask, value, source / width > lane / width ? lane : source);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned step, int width = 32) {
    int lane = emulated::lane(), source = lane - int(step);
    return emulated::shuffle("__shfl_up_sync", mask, value, source < lane / width * width ? lane : source);
}

inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
inline float __int_as_float(int bits) { return __uint_as_float(unsigned(bits)); }
inline int __float_as_int(float value) { return int(__float_as_uint(value)); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
template <typename T>
T __ldg(const T* from) { return *from; }
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
    if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) return fmin(a, b);
    else { std::common_type_t<A, B> x = a, y = b; return y < x ? y : x; }
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
    if constexpr (std::is_floating_point_v<std::common_type_t<A, B>>) return fmax(a, b);
    else { std::common_type_t<A, B> x = a, y = b; return x < y ? y : x; }
}
template <typename T, typename V>
T atomicAdd(T* to, V value) {
    static_assert(std::is_integral_v<T>, "sums of floats by atomics are not the same twice");
    T old = *to;
    *to = T(old + value);
    return old;
}
template <typename T>
T atomicMax(T* to, T value) {
    T old = *to;
    *to = max(old, value);
    return old;
}

struct half_t;
struct bfloat_t;

namespace emulated {

// A parameter's type as text: f4, h2 (half), b2 (bfloat), i4 (any integer of 4 bytes), *f4 (pointer to float), *? (to void).
template <typename T>
std::string code() {
    using Plain = std::remove_cv_t<T>;
    if constexpr (std::is_pointer_v<Plain>) return "*" + code<std::remove_pointer_t<Plain>>();
    else if constexpr (std::is_void_v<Plain>) return "?";
    else if constexpr (std::is_same_v<Plain, half_t>) return "h2";
    else if constexpr (std::is_same_v<Plain, bfloat_t>) return "b2";
    else if constexpr (std::is_floating_point_v<Plain>) return "f" + std::to_string(sizeof(T));
    else if constexpr (std::is_integral_v<Plain>) return "i" + std::to_string(sizeof(T));
    else return "v" + std::to_string(sizeof(T));
}

template <typename... P>
std::string signature(void (*)(P...)) {
    std::string text;
    ((text += code<P>() + " "), ...);
    return text;
}

template <typename... P>
struct Call {
    void (*kernel)(P...);
    void** arguments;
    static void make(void* call) { static_cast<Call*>(call)->make(std::index_sequence_for<P...>()); }
    template <size_t... I>
    void make(std::index_sequence<I...>) {
        kernel(*reinterpret_cast<std::remove_cv_t<P>*>(arguments[I])...);
    }
};

template <typename... P>
void run(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments) {
    Call<P...> call{kernel, arguments};
    body = Call<P...>::make;
    body_arguments = &call;
    gridDim = grid;
    blockDim = block;
    threads.assign(size_t(block.x) * block.y * block.z, Thread());
    for (size_t i = 0; i < threads.size(); ++i)
        threads[i].index = {unsigned(i % block.x), unsigned(i / block.x % block.y), unsigned(i / block.x / block.y)};
    failure.clear();
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x && failure.empty(); ++x) {
                blockIdx = {x, y, z};
                memset(shared_memory, 0xff, MOST_SHARED);  // no numbers: whoever reads before writing sees them
                run_block();
            }
}

}  // namespace emulated
