// Softmax of arrays that are `rows` of `channels` in memory, along the channels.

constexpr int SOFTMAX_THREADS = 256;

template <int LANES>
__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

template <int LANES>
__device__ __forceinline__ float lanes_max(float value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

constexpr float NO_VALUE = -3.4028234663852886e38f;

// y = exp(x - max) / sum, a row by LANES threads with VALUES values each. y may be x.
template <typename T, int LANES, int VALUES>
__global__ void __launch_bounds__(SOFTMAX_THREADS) softmax_forward(const T* x, T* y, int64 rows, int channels) {
    const int lane = threadIdx.x % LANES, rows_at_once = SOFTMAX_THREADS / LANES;
    for (int64 first = blockIdx.x * (int64)rows_at_once; first < rows; first += gridDim.x * (int64)rows_at_once) {
        const int64 row = first + threadIdx.x / LANES;
        const int mine = row < rows ? channels : 0;
        const T* from = x + row * channels;
        float values[VALUES], largest = NO_VALUE, sum = 0.0f;
#pragma unroll
        for (int k = 0; k < VALUES; ++k)
            values[k] = lane + k * LANES < mine ? to_float(from[lane + k * LANES]) : NO_VALUE;
#pragma unroll
        for (int k = 0; k < VALUES; ++k) largest = fmaxf(largest, values[k]);
        largest = lanes_max<LANES>(largest);
#pragma unroll
        for (int k = 0; k < VALUES; ++k) {
            if (lane + k * LANES >= mine) continue;
            values[k] = expf(values[k] - largest);
            sum += values[k];
        }
        const float inverse = 1.0f / lanes_sum<LANES>(sum);
#pragma unroll
        for (int k = 0; k < VALUES; ++k)
            if (lane + k * LANES < mine) y[row * channels + lane + k * LANES] = from_float<T>(values[k] * inverse);
    }
}
INSTANCES(softmax_forward, <float, 4, 8>, <half_t, 4, 8>, <bfloat_t, 4, 8>)
INSTANCES(softmax_forward, <float, 32, 32>, <half_t, 32, 32>, <bfloat_t, 32, 32>)

// dx = (dy - sum of dy * y) * y. dx may be dy.
template <typename T, int LANES, int VALUES>
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_backward(const T* y, const T* dy, T* dx, int64 rows, int channels) {
    const int lane = threadIdx.x % LANES, rows_at_once = SOFTMAX_THREADS / LANES;
    for (int64 first = blockIdx.x * (int64)rows_at_once; first < rows; first += gridDim.x * (int64)rows_at_once) {
        const int64 row = first + threadIdx.x / LANES;
        const int mine = row < rows ? channels : 0;
        const int64 start = row * channels + lane;
        float values[VALUES], gradients[VALUES], sum = 0.0f;
#pragma unroll
        for (int k = 0; k < VALUES; ++k) {
            const bool is_there = lane + k * LANES < mine;
            values[k] = is_there ? to_float(y[start + k * LANES]) : 0.0f;
            gradients[k] = is_there ? to_float(dy[start + k * LANES]) : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < VALUES; ++k) sum += values[k] * gradients[k];
        sum = lanes_sum<LANES>(sum);
#pragma unroll
        for (int k = 0; k < VALUES; ++k)
            if (lane + k * LANES < mine) dx[start + k * LANES] = from_float<T>((gradients[k] - sum) * values[k]);
    }
}
INSTANCES(softmax_backward, <float, 4, 8>, <half_t, 4, 8>, <bfloat_t, 4, 8>)
INSTANCES(softmax_backward, <float, 32, 32>, <half_t, 32, 32>, <bfloat_t, 32, 32>)

// The same for rows of any length, by a block each.
template <typename T>
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_wide_forward(const T* x, T* y, int64 rows, int channels) {
    for (int64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + row * channels;
        float largest = NO_VALUE, sum = 0.0f;
#pragma unroll 4
        for (int c = threadIdx.x; c < channels; c += blockDim.x) largest = fmaxf(largest, to_float(from[c]));
        largest = block_max(largest);
#pragma unroll 4
        for (int c = threadIdx.x; c < channels; c += blockDim.x) sum += expf(to_float(from[c]) - largest);
        sum = block_sum(sum);
        for (int c = threadIdx.x; c < channels; c += blockDim.x)
            y[row * channels + c] = from_float<T>(expf(to_float(from[c]) - largest) / sum);
    }
}
INSTANCES(softmax_wide_forward, FLOATS)

template <typename T>
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_wide_backward(const T* y, const T* dy, T* dx, int64 rows, int channels) {
    for (int64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64 start = row * channels;
        float sum = 0.0f;
#pragma unroll 4
        for (int c = threadIdx.x; c < channels; c += blockDim.x)
            sum += to_float(dy[start + c]) * to_float(y[start + c]);
        sum = block_sum(sum);
        for (int c = threadIdx.x; c < channels; c += blockDim.x)
            dx[start + c] = from_float<T>((to_float(dy[start + c]) - sum) * to_float(y[start + c]));
    }
}
INSTANCES(softmax_wide_backward, FLOATS)
