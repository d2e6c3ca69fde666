// Softmax of arrays that are `rows` of `channels` in memory, along the channels. A warp computes a row at a time.

constexpr int SOFTMAX_THREADS = 256;

#define ROWS_OF_WARP(rows)                                                                         \
    for (int64 row = ((int64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < (rows);            \
         row += (int64)gridDim.x * blockDim.x / 32)

// y = exp(x - max) / sum. y may be x.
template <typename T>
__global__ void __launch_bounds__(SOFTMAX_THREADS) softmax_forward(const T* x, T* y, int64 rows, int channels) {
    const int lane = threadIdx.x % 32;
    ROWS_OF_WARP(rows) {
        const T* from = x + row * channels;
        float largest = -3.4028234663852886e38f, sum = 0.0f;
        for (int c = lane; c < channels; c += 32) largest = fmaxf(largest, to_float(from[c]));
        largest = warp_max(largest);
        for (int c = lane; c < channels; c += 32) sum += expf(to_float(from[c]) - largest);
        sum = warp_sum(sum);
        for (int c = lane; c < channels; c += 32)
            y[row * channels + c] = from_float<T>(expf(to_float(from[c]) - largest) / sum);
    }
}
INSTANCES(softmax_forward, FLOATS)

// dx = (dy - sum of dy * y) * y. dx may be dy.
template <typename T>
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_backward(const T* y, const T* dy, T* dx, int64 rows, int channels) {
    const int lane = threadIdx.x % 32;
    ROWS_OF_WARP(rows) {
        const int64 start = row * channels;
        float sum = 0.0f;
        for (int c = lane; c < channels; c += 32) sum += to_float(dy[start + c]) * to_float(y[start + c]);
        sum = warp_sum(sum);
        for (int c = lane; c < channels; c += 32)
            dx[start + c] = from_float<T>((to_float(dy[start + c]) - sum) * to_float(y[start + c]));
    }
}
INSTANCES(softmax_backward, FLOATS)
