// The solvers' rules in one pass over the flat parameters, and what --math fp16 needs: the look for gradients that are
// not finite, and the scale of the loss. Each operation is rounded to float32 by itself, in the order of the plain code,
// so that the weights are those of the CPU engines bit for bit.

enum Rule { SGD, NESTEROV, ADAGRAD, RMSPROP, ADADELTA, ADAM };

struct Constants {
    float rate, momentum, momentum2, delta, rms_decay;
};

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }  // in no fused multiply-add
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float minus(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float over(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }

__device__ __forceinline__ float average(float mean, float value, float keep) {
    return plus(times(mean, keep), times(minus(1.0f, keep), value));
}

// What w is to be lowered by; h and s are the histories.
template <int RULE>
__device__ __forceinline__ float step_of(float g, float& h, float& s, const Constants& c) {
    if constexpr (RULE == SGD) {
        h = plus(times(h, c.momentum), times(g, c.rate));
        return h;
    } else if constexpr (RULE == NESTEROV) {
        const float looked_back = times(c.momentum, h);
        h = plus(looked_back, times(g, c.rate));
        return minus(times(h, plus(1.0f, c.momentum)), looked_back);
    } else if constexpr (RULE == ADAGRAD) {
        h = plus(h, times(g, g));
        return times(over(g, plus(root(h), c.delta)), c.rate);
    } else if constexpr (RULE == RMSPROP) {
        h = average(h, times(g, g), c.rms_decay);
        return times(over(g, plus(root(h), c.delta)), c.rate);
    } else if constexpr (RULE == ADADELTA) {
        h = average(h, times(g, g), c.momentum);
        const float u = times(g, root(over(plus(s, c.delta), plus(h, c.delta))));
        s = average(s, times(u, u), c.momentum);
        return times(u, c.rate);
    } else {
        h = average(h, g, c.momentum);
        s = average(s, times(g, g), c.momentum2);
        return times(over(h, plus(root(s), c.delta)), c.rate);
    }
}

__device__ __forceinline__ float decayed(float g, float w, float decay, bool l1) {
    if (decay == 0.0f) return g;
    if (l1) w = w > 0.0f ? 1.0f : w < 0.0f ? -1.0f : w;  // no number stays no number
    return plus(g, times(decay, w));
}

template <typename T>
constexpr bool IS_FLOAT = false;
template <>
constexpr bool IS_FLOAT<float> = true;

// A block updates a chunk of one parameter: values starts[b] to starts[b] + lengths[b] of the flat buffers. `copy` gets
// the new weights in 16 bits; where T is float nothing is copied. Where *overflow is not 0 nothing changes at all.
template <int RULE, typename T>
__global__ void update(float* data, float* diff, float* first, float* second, T* copy, const int64* starts,
                       const int* lengths, const float* decays, const float* lr_mults, const float* step,
                       const float* inverse_scale, const int* overflow, int l1, float momentum, float momentum2,
                       float delta, float rms_decay) {
    constexpr bool TWO = RULE == ADADELTA || RULE == ADAM;
    if (*overflow) return;
    const float gain = times(step[1], *inverse_scale), decay = decays[blockIdx.x];
    const Constants c{times(step[0], lr_mults[blockIdx.x]), momentum, momentum2, delta, rms_decay};
    const int64 start = starts[blockIdx.x], stop = start + lengths[blockIdx.x];

    // The whole groups of four, which are aligned as the buffers are, and then what is left on either side.
    const int64 low = (start + 3) / 4, high = stop / 4;
    for (int64 i = low + threadIdx.x; i < high; i += blockDim.x) {
        float w[4], g[4], h[4], s[4];
        load(data + 4 * i, w);
        load(diff + 4 * i, g);
        load(first + 4 * i, h);
        if constexpr (TWO) load(second + 4 * i, s);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            g[k] = step_of<RULE>(decayed(times(g[k], gain), w[k], decay, l1), h[k], s[k], c);
            w[k] = minus(w[k], g[k]);
        }
        store(data + 4 * i, w);
        store(diff + 4 * i, g);
        store(first + 4 * i, h);
        if constexpr (TWO) store(second + 4 * i, s);
        if constexpr (!IS_FLOAT<T>) store(copy + 4 * i, w);
    }
    const int64 left = low < high ? 4 * low : stop, right = low < high ? 4 * high : stop;
    for (int64 i = start + threadIdx.x; i < stop; i += blockDim.x) {
        if (i >= left && i < right) continue;
        float w = data[i], h = first[i], s = TWO ? second[i] : 0.0f;
        const float u = step_of<RULE>(decayed(times(diff[i], gain), w, decay, l1), h, s, c);
        w = minus(w, u);
        data[i] = w;
        diff[i] = u;
        first[i] = h;
        if constexpr (TWO) second[i] = s;
        if constexpr (!IS_FLOAT<T>) copy[i] = from_float<T>(w);
    }
}
INSTANCES(update, <0, float>, <1, float>, <2, float>, <3, float>, <4, float>, <5, float>)
INSTANCES(update, <0, half_t>, <1, half_t>, <2, half_t>, <3, half_t>, <4, half_t>, <5, half_t>)
INSTANCES(update, <0, bfloat_t>, <1, bfloat_t>, <2, bfloat_t>, <3, bfloat_t>, <4, bfloat_t>, <5, bfloat_t>)

__device__ __forceinline__ bool is_finite(float value) { return fabsf(value) <= 3.4028234663852886e38f; }

// *overflow = 1 if any of the values is not finite; else it is left alone. The values are aligned to 16 bytes.
__global__ void find_overflow(const float* values, int64 count, int* overflow) {
    bool found = false;
    GRID_STRIDE(int64, i, count / 4) {
        float four[4];
        load(values + 4 * i, four);
#pragma unroll
        for (int k = 0; k < 4; ++k) found |= !is_finite(four[k]);
    }
    GRID_STRIDE(int64, i, count % 4) found |= !is_finite(values[count / 4 * 4 + i]);
    if (found) *overflow = 1;  // whoever writes writes the same
}
INSTANCES(find_overflow)

// After an update: scale[0], by which the loss is multiplied, is halved if there was an overflow, which is over then,
// and doubled after `patience` updates without (0: it stays as it is). scale[1] is its inverse. steps[0] counts the
// updates since the last overflow or change, steps[1] those that were skipped. One thread.
__global__ void adjust_scale(float* scale, int* steps, int* overflow, int patience, float smallest, float largest) {
    float now = scale[0];
    if (*overflow) {
        steps[0] = 0;
        ++steps[1];
        if (patience) now = fmaxf(now * 0.5f, smallest);
    } else if (++steps[0] == patience) {
        steps[0] = 0;
        now = fminf(now * 2.0f, largest);
    }
    *overflow = 0;
    scale[0] = now;
    scale[1] = over(1.0f, now);
}
INSTANCES(adjust_scale)

// Chunks of gradients of 16 bits into float32: a block each; all begin at multiples of 16 bytes.
INSTANCES(widen_gradients, half_t, bfloat_t)
template <typename T>
__global__ void __launch_bounds__(256)
    widen_gradients(const uint64* from, const uint64* to, const int* lengths) {
    constexpr int N = PACK<T>;
    const T* narrow = reinterpret_cast<const T*>(from[blockIdx.x]);
    float* wide = reinterpret_cast<float*>(to[blockIdx.x]);
    const int length = lengths[blockIdx.x];
    for (int i = threadIdx.x * N; i + N <= length; i += blockDim.x * N) {
        float values[N], half[N / 2];
        load(narrow + i, values);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
#pragma unroll
            for (int k = 0; k < N / 2; ++k) half[k] = values[side * N / 2 + k];
            store(wide + i + side * N / 2, half);
        }
    }
    for (int i = length / N * N + threadIdx.x; i < length; i += blockDim.x) wide[i] = to_float(narrow[i]);
}
