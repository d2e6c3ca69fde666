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

// for row = the thread's rows.
#define ROWS_OF(mine) for (int64 row = mine.first + threadIdx.y; row < mine.end; row += blockDim.y)

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

// y = x * (k + share * sum of squares of 2 half + 1 channels)^-beta.
template <typename T>
__global__ void __launch_bounds__(NORMALIZATION_THREADS)
    lrn_forward(const T* __restrict__ x, T* __restrict__ y, int64 rows, int channels, int64 part, int half,
                float share, float beta, float k) {
    const Part mine = part_of_block<1>(rows, channels, part);
    if (!mine.is_inside) return;
    ROWS_OF(mine) {
        const T* values = x + row * channels;
        const float scale = scale_at(values, mine.channel, channels, half, share, k);
        y[row * channels + mine.channel] =
            from_float<T>(to_float(values[mine.channel]) * powers_of(scale, beta).power);
    }
}

// dx = dy * scale^-beta - slope * x * the sum over 2 half + 1 channels of dy * y / scale; scale and y are computed again.
template <typename T>
__global__ void __launch_bounds__(NORMALIZATION_THREADS)
    lrn_backward(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ dx, int64 rows, int channels,
                 int64 part, int half, float share, float beta, float k, float slope) {
    const Part mine = part_of_block<1>(rows, channels, part);
    if (!mine.is_inside) return;
    ROWS_OF(mine) {
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
        dx[row * channels + c] = from_float<T>(own - slope * to_float(values[c]) * sum);
    }
}

// ---- batch normalisation ----

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

constexpr int SAMPLES = 8;  // rows, spread over all of them, whose mean is the shift

// The block's sums of x - shift and of (x - shift)^2 to `partial` (parts, 2, channels), and each channel's shift. It is
// near the mean, so that one reading of x gives variances with all digits, whatever the mean.
template <typename T, int N>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 4)
    batch_norm_moments(const T* __restrict__ x, float* __restrict__ partial, float* __restrict__ shifts, int64 rows,
                       int channels, int64 part) {
    const Part mine = part_of_block<N>(rows, channels, part);
    float plain[N] = {}, squares[N] = {};
    if (mine.is_inside) {
        float value[N], shift[N] = {};
        for (int i = 0; i < SAMPLES; ++i) {
            load(x + rows * i / SAMPLES * channels + mine.channel, value);
#pragma unroll
            for (int n = 0; n < N; ++n) shift[n] += value[n] / SAMPLES;
        }
        ROWS_OF(mine) {
            load(x + row * channels + mine.channel, value);
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const float distance = value[n] - shift[n];
                plain[n] += distance;
                squares[n] += distance * distance;
            }
        }
        for (int n = 0; n < N && blockIdx.x == 0 && threadIdx.y == 0; ++n) shifts[mine.channel + n] = shift[n];
    }
    sum_of_block(plain, squares, mine, partial, channels);
}

// Of normalization.py's Normalizer.
#define NORMALIZER                                                                                              \
    const float *__restrict__ mean, const float *__restrict__ variance, const float *__restrict__ scale,        \
        const float *__restrict__ shift, float eps, int relu, int64 rows, int channels, int64 part

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

// y = the normalised x, plus `other` if it is given.
template <typename T, int N>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 4) batch_norm_apply(const T* x, const T* other, T* y, NORMALIZER) {
    const Part mine = part_of_block<N>(rows, channels, part);
    if (!mine.is_inside) return;
    const Coefficients<N> of(mean, variance, scale, shift, eps, mine.channel);
    ROWS_OF(mine) {
        const int64 at = row * channels + mine.channel;
        float value[N], added[N] = {}, out[N];
        load(x + at, value);
        if (other) load(other + at, added);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const float result = of.y(value[n], n) + added[n];
            out[n] = relu ? leaky(result, 0.0f) : result;
        }
        store(y + at, out);
    }
}

// The block's sums of dy, and of dy * (x - mean) / deviation, to `partial` (parts, 2, channels). With `relu`, dy counts
// where y > 0.
template <typename T, int N>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 3)
    batch_norm_gradient_sums(const T* __restrict__ x, const T* __restrict__ dy, float* __restrict__ partial,
                             NORMALIZER) {
    const Part mine = part_of_block<N>(rows, channels, part);
    float plain[N] = {}, weighted[N] = {};
    if (mine.is_inside) {
        const Coefficients<N> of(mean, variance, scale, shift, eps, mine.channel);
        ROWS_OF(mine) {
            float value[N], slope[N];
            load(x + row * channels + mine.channel, value);
            load(dy + row * channels + mine.channel, slope);
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const float gradient = !relu | (of.y(value[n], n) > 0.0f) ? slope[n] : 0.0f;
                plain[n] += gradient;
                weighted[n] += gradient * (value[n] - of.mean[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < N; ++n) weighted[n] *= of.inverse[n];
    }
    sum_of_block(plain, weighted, mine, partial, channels);
}

// dx = gain * (dy - mean of dshift - (x - mean) / deviation * mean of dscale); dx may be dy. `means` is (2, channels).
template <typename T, int N>
__global__ void __launch_bounds__(NORMALIZATION_THREADS, 3)
    batch_norm_gradient(const T* x, const T* dy, T* dx, const float* __restrict__ means, NORMALIZER) {
    const Part mine = part_of_block<N>(rows, channels, part);
    if (!mine.is_inside) return;
    const Coefficients<N> of(mean, variance, scale, shift, eps, mine.channel);
    float plain[N], weighted[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        plain[n] = means[mine.channel + n];
        weighted[n] = means[channels + mine.channel + n] * of.inverse[n];
    }
    ROWS_OF(mine) {
        const int64 at = row * channels + mine.channel;
        float value[N], slope[N], out[N];
        load(x + at, value);
        load(dy + at, slope);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const float gradient = !relu | (of.y(value[n], n) > 0.0f) ? slope[n] : 0.0f;
            out[n] = of.gain[n] * (gradient - plain[n] - (value[n] - of.mean[n]) * weighted[n]);
        }
        store(dx + at, out);
    }
}
