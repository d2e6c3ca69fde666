// The solvers' rules in one pass over the flat parameters, and the check of --math fp16 for gradients that are not finite.
// Each operation is rounded to float32 by itself, in the order of the plain code, so that the weights are those of the
// CPU engines bit for bit.

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

// A block updates a chunk of one parameter: values starts[b] to starts[b] + lengths[b] of the flat buffers. Where *overflow
// is not 0 nothing changes at all.
template <int RULE>
__global__ void update(float* data, float* diff, float* first, float* second, const int64* starts, const int* lengths,
                       const float* decays, const float* lr_mults, const float* step, const float* inverse_scale,
                       const int* overflow, int l1, float momentum, float momentum2, float delta, float rms_decay) {
    constexpr bool TWO = RULE == ADADELTA || RULE == ADAM;
    if (*overflow) return;
    const float gain = inverse_scale ? times(step[1], *inverse_scale) : step[1], decay = decays[blockIdx.x];
    const Constants c{times(step[0], lr_mults[blockIdx.x]), momentum, momentum2, delta, rms_decay};
    const int64 start = starts[blockIdx.x], stop = start + lengths[blockIdx.x];
    for (int64 i = start + threadIdx.x; i < stop; i += blockDim.x) {
        float w = data[i], h = first[i], s = TWO ? second[i] : 0.0f;
        const float u = step_of<RULE>(decayed(times(diff[i], gain), w, decay, l1), h, s, c);
        data[i] = minus(w, u);
        diff[i] = u;
        first[i] = h;
        if constexpr (TWO) second[i] = s;
    }
}

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
    if (found) *overflow = 1;  // all threads write the same value
}
