// What is done value by value, and what goes by channel: biases and their gradients.
// All of it is bound by memory: 16-byte accesses where pointers allow, several of them in flight for each thread.

// y = operation(inputs) for arrays that lie alike in memory; y may be one of the inputs.
template <int INPUTS, typename X, typename Y, typename Operation>
__device__ __forceinline__ void map(const X* const (&inputs)[INPUTS], Y* y, int64 count, Operation operation) {
    constexpr int N = PACK<X> < PACK<Y> ? PACK<X> : PACK<Y>;
    bool aligned = is_aligned(y, N * sizeof(Y));
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) aligned &= is_aligned(inputs[k], N * sizeof(X));
    const int64 packs = aligned ? count / N : 0;
    GRID_STRIDE(int64, i, packs) {
        float packed[INPUTS][N], results[N];
#pragma unroll
        for (int k = 0; k < INPUTS; ++k) load(inputs[k] + i * N, packed[k]);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            float values[INPUTS];
#pragma unroll
            for (int k = 0; k < INPUTS; ++k) values[k] = packed[k][n];
            results[n] = operation(values);
        }
        store(y + i * N, results);
    }
    GRID_STRIDE(int64, i, count - packs * N) {
        float values[INPUTS];
#pragma unroll
        for (int k = 0; k < INPUTS; ++k) values[k] = to_float(inputs[k][packs * N + i]);
        y[packs * N + i] = from_float<Y>(operation(values));
    }
}

INSTANCES(relu_forward, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) relu_forward(const T* x, T* y, float slope, int64 count) {
    const T* inputs[] = {x};
    map(inputs, y, count, [=](const float (&at)[1]) { return leaky(at[0], slope); });
}

INSTANCES(relu_backward, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) relu_backward(const T* y, const T* dy, T* dx, float slope, int64 count) {
    const T* inputs[] = {y, dy};
    map(inputs, dx, count, [=](const float (&at)[2]) {
        return at[1] * (at[0] > 0 ? 1.0f : at[0] <= 0 ? slope : 0.0f);
    });
}

// With TWO also the second array, which is not read otherwise.
INSTANCES(weighted_sum, <FLOATS, false>, <FLOATS, true>)
template <typename T, bool TWO>
__global__ void __launch_bounds__(256) weighted_sum(const T* a, float p, const T* b, float q, T* y, int64 count) {
    if constexpr (TWO) {
        const T* inputs[] = {a, b};
        map(inputs, y, count, [=](const float (&at)[2]) { return p * at[0] + q * at[1]; });
    } else {
        const T* inputs[] = {a};
        map(inputs, y, count, [=](const float (&at)[1]) { return p * at[0]; });
    }
}

INSTANCES(copy, <FLOATS, FLOATS>)
template <typename X, typename Y>
__global__ void __launch_bounds__(256) copy(const X* x, Y* y, int64 count) {
    const X* inputs[] = {x};
    map(inputs, y, count, [](const float (&at)[1]) { return at[0]; });
}

// By channel: arrays are rows of channels. A block is blockDim.x packs of N channels wide and takes blockDim.y rows at a
// time; blockIdx.y says which channels. A thread keeps to its channels.

INSTANCES(add_bias, <float, 1>, <float, 4>, <half_t, 1>, <half_t, 8>, <bfloat_t, 1>, <bfloat_t, 8>)
template <typename T, int N>
__global__ void __launch_bounds__(256) add_bias(T* y, const float* bias, int64 rows, int columns, int relu) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (column >= columns) return;
    for (int64 row = (int64)blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += (int64)gridDim.x * blockDim.y) {
        float values[N];
        load(y + row * columns + column, values);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            values[i] += bias[column + i];
            if (relu) values[i] = leaky(values[i], 0.0f);
        }
        store(y + row * columns + column, values);
    }
}

// partials (gridDim.x, columns): sums over rows of dy. Blocks have 256 threads, and a width that divides 32.
INSTANCES(bias_partials, <float, 1>, <float, 4>, <half_t, 1>, <half_t, 8>, <bfloat_t, 1>, <bfloat_t, 8>)
template <typename T, int N>
__global__ void __launch_bounds__(256) bias_partials(const T* dy, float* partials, int64 rows, int columns) {
    constexpr int WARPS = 8;
    __shared__ float shared[N][WARPS][32];
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    float sums[N] = {};
    const int64 end = column < columns ? rows : 0;
    for (int64 row = (int64)blockIdx.x * blockDim.y + threadIdx.y; row < end; row += (int64)gridDim.x * blockDim.y) {
        float values[N];
        load(dy + row * columns + column, values);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += values[i];
    }
    const unsigned thread = thread_in_block(), lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int i = 0; i < N; ++i) shared[i][warp][lane] = sums[i];
    __syncthreads();
    if (warp >= N) return;
    // Each warp adds up one of the packs' N values: of halves of the warps, then of halves of the lanes.
    float halves[WARPS];
#pragma unroll
    for (int k = 0; k < WARPS; ++k) halves[k] = shared[warp][k][lane];
#pragma unroll
    for (int half = WARPS / 2; half > 0; half /= 2)
#pragma unroll
        for (int k = 0; k < half; ++k) halves[k] += halves[k + half];
    float sum = halves[0];
    for (unsigned half = 16; half >= blockDim.x; half /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, half);
    if (lane < blockDim.x && column < columns) partials[(int64)blockIdx.x * columns + column + warp] = sum;
}

// first, second (+)= the sum of `count` rows of partials, cut at column `split`. Blocks of 32 x 32 threads.
INSTANCES(finish_sums)
__global__ void __launch_bounds__(1024)
    finish_sums(const float* partials, float* first, float* second, int split, int count, int columns, int add) {
    __shared__ float shared[32][33];
    int column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (column < columns) {
        partials += (int64)threadIdx.y * columns + column;
#pragma unroll 4
        for (int row = threadIdx.y; row < count; row += 32, partials += (int64)32 * columns) sum += *partials;
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = warp_sum(shared[threadIdx.x][threadIdx.y]);  // each warp a column
    column = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x > 0 || column >= columns) return;
    float& total = column < split ? first[column] : second[column - split];
    total = add ? total + sum : sum;
}
