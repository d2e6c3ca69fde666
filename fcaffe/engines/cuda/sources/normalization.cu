// Local response normalisation and batch normalisation of arrays that are `rows` of `channels` in memory.

// Blocks have blockDim.x threads side by side, each with N neighbouring channels of its own, and blockDim.y rows at a
// time; blockIdx.y counts the groups of channels, blockIdx.x the parts of `part` rows.
constexpr int NORMALIZATION_THREADS = 256;

struct Part {
    int channel;       // the first of the thread's N
    int64 first, end;  // the block's rows
    bool is_inside;    // whether there are such channels
};

template <int N>
__device__ __forceinline__ Part part_of_block(int64 rows, int channels, int64 part) {
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    const int64 first = blockIdx.x * part;
    return {channel, first, first + part < rows ? first + part : rows, channel < channels};
}

// How many rows of the part are the thread's. blockDim.y is a power of 2.
__device__ __forceinline__ int rows_of_thread(const Part& mine) {
    return (int)(mine.end - mine.first - threadIdx.y + blockDim.y - 1) >> (31 - __clz(blockDim.y));
}

// N values of each of COUNT rows, at steps of blockDim.y, all loaded at the same time.
template <typename T, int N, int COUNT>
struct Rows {
    Raw<T, N> raw[COUNT];

    __device__ __forceinline__ Rows(const T* x, int64 row, int channels) {
        const T* from = x + row * channels;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) raw[k].read(from + k * ((int64)blockDim.y * channels));
    }

    __device__ __forceinline__ void get(int k, float (&values)[N]) const { unpack(raw[k], values); }
};

template <int COUNT>
struct Count {
    static constexpr int value = COUNT;
};

// body(row, Count<n>) for all of the thread's rows, n of them at a time, in steps of blockDim.y from `row` on.
template <int AHEAD, typename Body>
__device__ __forceinline__ void for_rows(const Part& mine, Body body) {
    int64 row = mine.first + threadIdx.y;
    for (; row + (AHEAD - 1) * blockDim.y < mine.end; row += AHEAD * blockDim.y) body(row, Count<AHEAD>{});
    for (; row < mine.end; row += blockDim.y) body(row, Count<1>{});
}

// The same with the last rows first: those are what the L2 cache still has of a reading before.
template <int AHEAD, typename Body>
__device__ __forceinline__ void for_rows_backwards(const Part& mine, Body body) {
    const int64 first = mine.first + threadIdx.y;
    int left = rows_of_thread(mine);
    while (left % AHEAD != 0) body(first + --left * (int64)blockDim.y, Count<1>{});
    for (left -= AHEAD; left >= 0; left -= AHEAD) body(first + left * (int64)blockDim.y, Count<AHEAD>{});
}

// ---- local response normalisation ----

struct Powers {
    float power, next;  // scale to -beta, and to -beta - 1
};

__device__ __forceinline__ Powers powers_of(float scale, float beta) {
    if (beta == 0.75f) {
        const float root = rsqrtf(scale), inverse = root * root, power = inverse * rsqrtf(root);
        return {power, power * inverse};
    }
    const float power = powf(scale, -beta);
    return {power, power / scale};
}

// The thread's N values of a row and SIDE to each side; zeros beyond the row. SIDE is at most N.
template <int SIDE, int N, typename T>
__device__ __forceinline__ void load_with_sides(const T* row, int channel, int channels,
                                                float (&values)[N + 2 * SIDE]) {
    float left[SIDE] = {}, own[N], right[SIDE] = {};
    load<N>(row + channel, own);
    if (channel > 0) load<SIDE>(row + channel - SIDE, left);
    if (channel + N < channels) load<SIDE>(row + channel + N, right);
#pragma unroll
    for (int n = 0; n < SIDE; ++n) {
        values[n] = left[n];
        values[SIDE + N + n] = right[n];
    }
#pragma unroll
    for (int n = 0; n < N; ++n) values[SIDE + n] = own[n];
}

// k + share * the sum of squares of the 2 HALF + 1 values around `at`.
template <int HALF, int COUNT>
__device__ __forceinline__ float scale_of(const float (&values)[COUNT], int at, float share, float k) {
    float sum = values[at] * values[at];
#pragma unroll
    for (int d = 1; d <= HALF; ++d) {
        sum += values[at - d] * values[at - d];
        sum += values[at + d] * values[at + d];
    }
    return share * sum + k;
}

template <typename T>
__device__ __forceinline__ float scale_at(const T* row, int c, int channels, int half, float share, float k) {
    const float own = to_float(row[c]);
    float sum = own * own;
    for (int d = 1; d <= half; ++d) {
        const float left = c >= d ? to_float(row[c - d]) : 0.0f;
        const float right = c + d < channels ? to_float(row[c + d]) : 0.0f;
        sum += left * left;
        sum += right * right;
    }
    return share * sum + k;
}

// y = x * (k + share * sum of squares of 2 half + 1 channels)^-beta. HALF is `half`, or 0: any, with N = 1.
template <typename T, int N, int HALF>
__global__ void __launch_bounds__(NORMALIZATION_THREADS)
    lrn_forward(const T* __restrict__ x, T* __restrict__ y, int64 rows, int channels, int64 part, int half,
                float share, float beta, float k) {
    const Part mine = part_of_block<N>(rows, channels, part);
    if (!mine.is_inside) return;
    for (int64 row = mine.first + threadIdx.y; row < mine.end; row += blockDim.y) {
        float out[N];
        if constexpr (HALF > 0) {
            float values[N + 2 * HALF];
            load_with_sides<HALF, N>(x + row * channels, mine.channel, channels, values);
#pragma unroll
            for (int n = 0; n < N; ++n)
                out[n] = values[n + HALF] * powers_of(scale_of<HALF>(values, n + HALF, share, k), beta).power;
        } else {
            const T* values = x + row * channels;
            const float scale = scale_at(values, mine.channel, channels, half, share, k);
            out[0] = to_float(values[mine.channel]) * powers_of(scale, beta).power;
        }
        store<N>(y + row * channels + mine.channel, out);
    }
}
INSTANCES(lrn_forward, <float, 4, 2>, <half_t, 8, 2>, <bfloat_t, 8, 2>)
INSTANCES(lrn_forward, <float, 1, 0>, <half_t, 1, 0>, <bfloat_t, 1, 0>)

// dx = dy * scale^-beta - slope * x * the sum over 2 half + 1 channels of dy * y / scale; scale and y are made anew.
template <typename T, int N, int HALF>
__global__ void __launch_bounds__(NORMALIZATION_THREADS)
    lrn_backward(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ dx, int64 rows, int channels,
                 int64 part, int half, float share, float beta, float k, float slope) {
    const Part mine = part_of_block<N>(rows, channels, part);
    if (!mine.is_inside) return;
    for (int64 row = mine.first + threadIdx.y; row < mine.end; row += blockDim.y) {
        float out[N];
        if constexpr (HALF > 0) {
            float values[N + 4 * HALF], gradients[N + 2 * HALF], parts[N + 2 * HALF];
            load_with_sides<2 * HALF, N>(x + row * channels, mine.channel, channels, values);
            load_with_sides<HALF, N>(dy + row * channels, mine.channel, channels, gradients);
#pragma unroll
            for (int n = 0; n < N + 2 * HALF; ++n) {
                const Powers of = powers_of(scale_of<HALF>(values, n + HALF, share, k), beta);
                parts[n] = gradients[n] * values[n + HALF] * of.next;
                gradients[n] *= of.power;
                // Beyond the row there is no gradient; what a scale of 0 would make of that counts not.
                if (mine.channel + n < HALF || mine.channel + n >= channels + HALF) parts[n] = 0.0f;
            }
#pragma unroll
            for (int n = 0; n < N; ++n) {
                float sum = parts[n + HALF];
#pragma unroll
                for (int d = 1; d <= HALF; ++d) {
                    sum += parts[n + HALF - d];
                    sum += parts[n + HALF + d];
                }
                out[n] = gradients[n + HALF] - slope * values[n + 2 * HALF] * sum;
            }
        } else {
            const T *values = x + row * channels, *gradients = dy + row * channels;
            const int c = mine.channel;
            float sum = 0.0f, own = 0.0f;
            for (int d = 0; d <= 2 * half; ++d) {  // own channel, left, right, left ...
                const int at = d % 2 ? c - (d + 1) / 2 : c + d / 2;
                if (at < 0 || at >= channels) continue;
                const Powers of = powers_of(scale_at(values, at, channels, half, share, k), beta);
                const float gradient = to_float(gradients[at]);
                if (d == 0) own = gradient * of.power;
                sum += gradient * to_float(values[at]) * of.next;
            }
            out[0] = own - slope * to_float(values[c]) * sum;
        }
        store<N>(dx + row * channels + mine.channel, out);
    }
}
INSTANCES(lrn_backward, <float, 4, 2>, <half_t, 8, 2>, <bfloat_t, 8, 2>)
INSTANCES(lrn_backward, <float, 1, 0>, <half_t, 1, 0>, <bfloat_t, 1, 0>)

// ---- batch normalisation ----

// How many values there are, their mean and the sum of squares of their distances from it.
struct Moments {
    float count, mean, squares;
};

// Of both sets of values together (Chan, Golub and LeVeque).
__device__ __forceinline__ Moments merged(const Moments& a, const Moments& b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float share = b.count / count, distance = b.mean - a.mean;
    return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

// Mean and squares of the block's rows go to `partial` (parts, 2, channels). A thread sums distances from the first
// value that it meets, so that one reading of x gives variances with all digits, whatever the mean.
template <typename T, int N>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 4)
    batch_norm_moments(const T* __restrict__ x, float* __restrict__ partial, int64 rows, int channels, int64 part) {
    constexpr int AHEAD = 4;
    __shared__ float means[NORMALIZATION_THREADS * N], squares[NORMALIZATION_THREADS * N];
    __shared__ float counts[NORMALIZATION_THREADS];
    const Part mine = part_of_block<N>(rows, channels, part);
    float shift[N] = {}, sums[N] = {}, square_sums[N] = {};
    float count = 0.0f;
    if (mine.is_inside && mine.first + threadIdx.y < mine.end) {
        count = rows_of_thread(mine);
        const T* column = x + mine.channel;
        load<N>(column + (mine.first + threadIdx.y) * channels, shift);
        for_rows<AHEAD>(mine, [&](int64 row, auto ahead) {
            const Rows<T, N, ahead.value> values(column, row, channels);
#pragma unroll
            for (int k = 0; k < ahead.value; ++k) {
                float value[N];
                values.get(k, value);
#pragma unroll
                for (int n = 0; n < N; ++n) {
                    const float distance = value[n] - shift[n];
                    sums[n] += distance;
                    square_sums[n] += distance * distance;
                }
            }
        });
    }
    const int at = threadIdx.y * blockDim.x + threadIdx.x;
    const float divisor = fmaxf(count, 1.0f);
    counts[at] = count;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const float distance = sums[n] / divisor;
        means[n * NORMALIZATION_THREADS + at] = shift[n] + distance;
        squares[n * NORMALIZATION_THREADS + at] = fmaxf(square_sums[n] - distance * sums[n], 0.0f);
    }
    for (int step = blockDim.y / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.y >= step) continue;
        const int other = at + step * blockDim.x;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const int a = n * NORMALIZATION_THREADS + at, b = n * NORMALIZATION_THREADS + other;
            const Moments both = merged({counts[at], means[a], squares[a]}, {counts[other], means[b], squares[b]});
            means[a] = both.mean;
            squares[a] = both.squares;
        }
        counts[at] += counts[other];
    }
    if (threadIdx.y > 0 || !mine.is_inside) return;
    float mean[N], square[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        mean[n] = means[n * NORMALIZATION_THREADS + at];
        square[n] = squares[n * NORMALIZATION_THREADS + at];
    }
    float* to = partial + (int64)blockIdx.x * 2 * channels + mine.channel;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        to[n] = mean[n];
        to[channels + n] = square[n];
    }
}
INSTANCES(batch_norm_moments, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)

// Blocks of 32 x 32 threads, 32 channels and each 32nd part, for the two kernels that finish what blocks have begun.
constexpr int SLICES = 32;

// mean, variance (biased) of all rows from the moments of `parts` parts of `part` rows.
__global__ void __launch_bounds__(32 * SLICES)
    batch_norm_finish_moments(const float* __restrict__ partial, float* __restrict__ mean, float* __restrict__ variance,
                              int64 rows, int channels, int64 part, int parts) {
    __shared__ Moments slices[SLICES][32];
    const int channel = blockIdx.x * 32 + threadIdx.x;
    Moments mine = {0.0f, 0.0f, 0.0f};
    if (channel < channels) {
#pragma unroll 4
        for (int i = threadIdx.y; i < parts; i += SLICES) {
            const float* from = partial + (int64)i * 2 * channels + channel;
            const int64 left = rows - i * part;
            mine = merged(mine, {(float)(left < part ? left : part), from[0], from[channels]});
        }
    }
    slices[threadIdx.y][threadIdx.x] = mine;
    for (int step = SLICES / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.y < step)
            slices[threadIdx.y][threadIdx.x] =
                merged(slices[threadIdx.y][threadIdx.x], slices[threadIdx.y + step][threadIdx.x]);
    }
    if (threadIdx.y > 0 || channel >= channels) return;
    mean[channel] = slices[0][threadIdx.x].mean;
    variance[channel] = slices[0][threadIdx.x].squares / rows;
}
INSTANCES(batch_norm_finish_moments)

// Each sum times `fraction`, plus what is new: the mean, the variance times `unbiased`, and 1 in `weight` (1,). All
// steps are rounded by themselves, as in plain code.
__global__ void __launch_bounds__(NORMALIZATION_THREADS)
    add_to_statistics(float* mean_sums, float* variance_sums, float* weight, const float* mean, const float* variance,
                      float unbiased, float fraction, int channels) {
    GRID_STRIDE(int, c, channels) {
        mean_sums[c] = __fadd_rn(__fmul_rn(mean_sums[c], fraction), mean[c]);
        variance_sums[c] = __fadd_rn(__fmul_rn(variance_sums[c], fraction), __fmul_rn(unbiased, variance[c]));
        if (c == 0) *weight = __fadd_rn(__fmul_rn(*weight, fraction), 1.0f);
    }
}
INSTANCES(add_to_statistics)

// What a channel's values are worked on with: y = fma(x - mean, gain, shift).
template <int N>
struct Coefficients {
    float mean[N], inverse[N], gain[N], shift[N];  // inverse: 1 / deviation; gain: times scale

    __device__ __forceinline__ Coefficients(const float* means, const float* variances, const float* scales,
                                            const float* shifts, float eps, int channel) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            mean[n] = means[channel + n];
            inverse[n] = 1.0f / sqrtf(variances[channel + n] + eps);
            gain[n] = scales ? inverse[n] * scales[channel + n] : inverse[n];
            shift[n] = shifts ? shifts[channel + n] : 0.0f;
        }
    }

    __device__ __forceinline__ float y(float x, int n) const { return fmaf(x - mean[n], gain[n], shift[n]); }
};

// With ADDS the other array is added before the ReLU.
template <typename T, int N, bool ADDS>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 4)
    batch_norm_apply(const T* x, const T* other, T* y, const float* __restrict__ mean,
                     const float* __restrict__ variance, const float* __restrict__ scale,
                     const float* __restrict__ shift, float eps, int relu, int64 rows, int channels, int64 part) {
    constexpr int AHEAD = ADDS ? 2 : 4;
    const Part mine = part_of_block<N>(rows, channels, part);
    if (!mine.is_inside) return;
    const Coefficients<N> of(mean, variance, scale, shift, eps, mine.channel);
    for_rows_backwards<AHEAD>(mine, [&](int64 row, auto ahead) {
        const Rows<T, N, ahead.value> values(x + mine.channel, row, channels);
        const Rows<T, N, ahead.value> others((ADDS ? other : x) + mine.channel, row, channels);
#pragma unroll
        for (int k = 0; k < ahead.value; ++k) {
            float value[N], addend[N] = {}, out[N];
            values.get(k, value);
            if (ADDS) others.get(k, addend);
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const float sum = ADDS ? of.y(value[n], n) + addend[n] : of.y(value[n], n);
                out[n] = (relu != 0) & (sum <= 0.0f) ? 0.0f : sum;  // a NaN stays one
            }
            store<N>(y + (row + k * blockDim.y) * channels + mine.channel, out);
        }
    });
}
INSTANCES(batch_norm_apply, <float, 4, false>, <float, 4, true>, <float, 1, false>, <float, 1, true>)
INSTANCES(batch_norm_apply, <half_t, 8, false>, <half_t, 8, true>, <half_t, 1, false>, <half_t, 1, true>)
INSTANCES(batch_norm_apply, <bfloat_t, 8, false>, <bfloat_t, 8, true>, <bfloat_t, 1, false>, <bfloat_t, 1, true>)

// The block's sums over its rows, from those of its threads, to `partial` (parts, 2, channels).
template <int N>
__device__ __forceinline__ void sum_of_block(const float (&plain)[N], const float (&weighted)[N], const Part& mine,
                                             float* __restrict__ partial, int channels) {
    __shared__ float sums[2][NORMALIZATION_THREADS * N];
    const int at = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        sums[0][n * NORMALIZATION_THREADS + at] = plain[n];
        sums[1][n * NORMALIZATION_THREADS + at] = weighted[n];
    }
    for (int step = blockDim.y / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.y >= step) continue;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const int slot = n * NORMALIZATION_THREADS + at;
            sums[0][slot] += sums[0][slot + step * blockDim.x];
            sums[1][slot] += sums[1][slot + step * blockDim.x];
        }
    }
    if (threadIdx.y > 0 || !mine.is_inside) return;
    float* to = partial + (int64)blockIdx.x * 2 * channels + mine.channel;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        to[n] = sums[0][n * NORMALIZATION_THREADS + at];
        to[channels + n] = sums[1][n * NORMALIZATION_THREADS + at];
    }
}

// The block's sums of dy, and of dy * (x - mean) / deviation, to `partial` (parts, 2, channels). With `relu`, dy counts
// where y > 0.
template <typename T, int N>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 3)
    batch_norm_gradient_sums(const T* __restrict__ x, const T* __restrict__ dy, float* __restrict__ partial,
                             const float* __restrict__ mean, const float* __restrict__ variance,
                             const float* __restrict__ scale, const float* __restrict__ shift, float eps, int relu,
                             int64 rows, int channels, int64 part) {
    constexpr int AHEAD = 2;
    const Part mine = part_of_block<N>(rows, channels, part);
    float plain[N] = {}, weighted[N] = {};
    if (mine.is_inside) {
        const Coefficients<N> of(mean, variance, scale, shift, eps, mine.channel);
        for_rows<AHEAD>(mine, [&](int64 row, auto ahead) {
            const Rows<T, N, ahead.value> values(x + mine.channel, row, channels);
            const Rows<T, N, ahead.value> gradients(dy + mine.channel, row, channels);
#pragma unroll
            for (int k = 0; k < ahead.value; ++k) {
                float value[N], slope[N];
                values.get(k, value);
                gradients.get(k, slope);
#pragma unroll
                for (int n = 0; n < N; ++n) {
                    const float gradient = !relu | (of.y(value[n], n) > 0.0f) ? slope[n] : 0.0f;
                    plain[n] += gradient;
                    weighted[n] += gradient * (value[n] - of.mean[n]);
                }
            }
        });
#pragma unroll
        for (int n = 0; n < N; ++n) weighted[n] *= of.inverse[n];
    }
    sum_of_block(plain, weighted, mine, partial, channels);
}
INSTANCES(batch_norm_gradient_sums, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)

// The same sums of what it writes to `total`: dy, or with BOTH dy + dy2, where y > 0.
template <typename T, int N, bool BOTH>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 3)
    batch_norm_total_sums(const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy,
                          const T* __restrict__ dy2, T* __restrict__ total, float* __restrict__ partial,
                          const float* __restrict__ mean, const float* __restrict__ variance, float eps, int64 rows,
                          int channels, int64 part) {
    constexpr int AHEAD = 2;
    const Part mine = part_of_block<N>(rows, channels, part);
    float plain[N] = {}, weighted[N] = {};
    if (mine.is_inside) {
        const Coefficients<N> of(mean, variance, nullptr, nullptr, eps, mine.channel);
        for_rows<AHEAD>(mine, [&](int64 row, auto ahead) {
            const Rows<T, N, ahead.value> values(x + mine.channel, row, channels);
            const Rows<T, N, ahead.value> results(y + mine.channel, row, channels);
            const Rows<T, N, ahead.value> first(dy + mine.channel, row, channels);
            const Rows<T, N, ahead.value> second((BOTH ? dy2 : dy) + mine.channel, row, channels);
#pragma unroll
            for (int k = 0; k < ahead.value; ++k) {
                float value[N], result[N], sums[N], addend[N] = {};
                values.get(k, value);
                results.get(k, result);
                first.get(k, sums);
                if (BOTH) second.get(k, addend);
#pragma unroll
                for (int n = 0; n < N; ++n) sums[n] = result[n] > 0.0f ? (BOTH ? sums[n] + addend[n] : sums[n]) : 0.0f;
                const Raw<T, N> rounded = pack<T>(sums);
                rounded.write(total + (row + k * blockDim.y) * channels + mine.channel);
                unpack(rounded, sums);
#pragma unroll
                for (int n = 0; n < N; ++n) {
                    plain[n] += sums[n];
                    weighted[n] += sums[n] * (value[n] - of.mean[n]);
                }
            }
        });
#pragma unroll
        for (int n = 0; n < N; ++n) weighted[n] *= of.inverse[n];
    }
    sum_of_block(plain, weighted, mine, partial, channels);
}
INSTANCES(batch_norm_total_sums, <float, 4, false>, <float, 4, true>, <float, 1, false>, <float, 1, true>)
INSTANCES(batch_norm_total_sums, <half_t, 8, false>, <half_t, 8, true>, <half_t, 1, false>, <half_t, 1, true>)
INSTANCES(batch_norm_total_sums, <bfloat_t, 8, false>, <bfloat_t, 8, true>, <bfloat_t, 1, false>, <bfloat_t, 1, true>)

// dshift, dscale = the two sums over all parts.
__global__ void __launch_bounds__(32 * SLICES)
    batch_norm_finish_sums(const float* __restrict__ partial, float* __restrict__ dshift, float* __restrict__ dscale,
                           int channels, int parts) {
    __shared__ float slices[2][SLICES][32];
    const int channel = blockIdx.x * 32 + threadIdx.x;
    float plain = 0.0f, weighted = 0.0f;
    if (channel < channels) {
#pragma unroll 4
        for (int i = threadIdx.y; i < parts; i += SLICES) {
            plain += partial[(int64)i * 2 * channels + channel];
            weighted += partial[((int64)i * 2 + 1) * channels + channel];
        }
    }
    slices[0][threadIdx.y][threadIdx.x] = plain;
    slices[1][threadIdx.y][threadIdx.x] = weighted;
    for (int step = SLICES / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.y >= step) continue;
        slices[0][threadIdx.y][threadIdx.x] += slices[0][threadIdx.y + step][threadIdx.x];
        slices[1][threadIdx.y][threadIdx.x] += slices[1][threadIdx.y + step][threadIdx.x];
    }
    if (threadIdx.y > 0 || channel >= channels) return;
    dshift[channel] = slices[0][0][threadIdx.x];
    dscale[channel] = slices[1][0][threadIdx.x];
}
INSTANCES(batch_norm_finish_sums)

// dx = gain * (dy - dshift / count - (x - mean) / deviation * dscale / count); dx may be dy.
template <typename T, int N>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 3)
    batch_norm_gradient(const T* x, const T* dy, T* dx, const float* __restrict__ mean,
                        const float* __restrict__ variance, const float* __restrict__ scale,
                        const float* __restrict__ shift, const float* __restrict__ dshift,
                        const float* __restrict__ dscale, float eps, int relu, float inverse_count, int64 rows,
                        int channels, int64 part) {
    constexpr int AHEAD = 2;
    const Part mine = part_of_block<N>(rows, channels, part);
    if (!mine.is_inside) return;
    const Coefficients<N> of(mean, variance, scale, shift, eps, mine.channel);
    float plain[N], weighted[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        plain[n] = dshift[mine.channel + n] * inverse_count;
        weighted[n] = dscale[mine.channel + n] * inverse_count * of.inverse[n];
    }
    for_rows_backwards<AHEAD>(mine, [&](int64 row, auto ahead) {
        const Rows<T, N, ahead.value> values(x + mine.channel, row, channels);
        const Rows<T, N, ahead.value> gradients(dy + mine.channel, row, channels);
#pragma unroll
        for (int k = 0; k < ahead.value; ++k) {
            float value[N], slope[N], out[N];
            values.get(k, value);
            gradients.get(k, slope);
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const float gradient = !relu | (of.y(value[n], n) > 0.0f) ? slope[n] : 0.0f;
                out[n] = of.gain[n] * (gradient - plain[n] - (value[n] - of.mean[n]) * weighted[n]);
            }
            store<N>(dx + (row + k * blockDim.y) * channels + mine.channel, out);
        }
    });
}
INSTANCES(batch_norm_gradient, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)
