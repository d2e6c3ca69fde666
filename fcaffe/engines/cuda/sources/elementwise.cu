// What is done value by value, copies between layouts, and what goes by channel: biases and their gradients.
// All of it is bound by memory: 16-byte accesses where pointers allow, several of them in flight for each thread.

__device__ __forceinline__ float positive(float value) { return value < 0 ? 0.0f : value; }  // no number stays none

// y = operation(inputs) for arrays that lie alike in memory; y may be one of the inputs. If `twin` is not null it
// becomes what y does.
template <int INPUTS, typename X, typename Y, typename Operation>
__device__ __forceinline__ void map(const X* const (&inputs)[INPUTS], Y* y, int64 count, Operation operation,
                                    Y* twin = nullptr) {
    constexpr int N = PACK<X> < PACK<Y> ? PACK<X> : PACK<Y>;
    constexpr int UNROLL = INPUTS == 1 ? 4 : INPUTS < 4 ? 2 : 1;
    uint64 beside = ((uint64)y | (uint64)twin) % (N * sizeof(Y));
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) beside |= (uint64)inputs[k] % (N * sizeof(X));
    int64 packs = beside ? 0 : count / N, step = (int64)gridDim.x * blockDim.x;
    int64 thread = (int64)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (int64 first = thread; first < packs; first += UNROLL * step) {
        Raw<X, N> raw[UNROLL][INPUTS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int k = 0; k < INPUTS; ++k)
                if (first + u * step < packs) raw[u][k].read(inputs[k] + (first + u * step) * N);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * step >= packs) break;
            float packed[INPUTS][N], results[N];
#pragma unroll
            for (int k = 0; k < INPUTS; ++k) unpack(raw[u][k], packed[k]);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float values[INPUTS];
#pragma unroll
                for (int k = 0; k < INPUTS; ++k) values[k] = packed[k][i];
                results[i] = operation(values);
            }
            const Raw<Y, N> result = pack<Y>(results);
            result.write(y + (first + u * step) * N);
            if (twin) result.write(twin + (first + u * step) * N);
        }
    }
#pragma unroll 1
    for (int64 i = packs * N + thread; i < count; i += step) {
        float values[INPUTS];
#pragma unroll
        for (int k = 0; k < INPUTS; ++k) values[k] = to_float(inputs[k][i]);
        y[i] = from_float<Y>(operation(values));
        if (twin) twin[i] = y[i];
    }
}

INSTANCES(relu_forward, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) relu_forward(const T* x, T* y, float slope, int64 count) {
    const T* inputs[] = {x};
    // Adding 0 makes 0 of -0. With slope 0, -inf becomes NaN, as in Caffe.
    map(inputs, y, count, [=](const float (&at)[1]) { return at[0] < 0 ? slope * at[0] + 0.0f : at[0]; });
}

INSTANCES(relu_of_maxima, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) relu_of_maxima(T* y, int64 count) {
    const T* inputs[] = {y};
    // A window without a number has the maximum -FLT_MAX, which 16 bits hold as -infinity. It stays.
    map(inputs, y, count, [=](const float (&at)[1]) {
        return at[0] <= -3.4028234663852886e38f ? at[0] : positive(at[0]) + 0.0f;
    });
}

INSTANCES(relu_backward, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) relu_backward(const T* y, const T* dy, T* dx, float slope, int64 count) {
    const T* inputs[] = {y, dy};
    map(inputs, dx, count, [=](const float (&at)[2]) {
        return at[1] * (at[0] > 0 ? 1.0f : at[0] <= 0 ? slope : 0.0f);
    });
}

// Of the first COUNT arrays; the others are not looked at.
INSTANCES(weighted_sum, <FLOATS, 1>, <FLOATS, 2>, <FLOATS, 3>, <FLOATS, 4>)
INSTANCES(weighted_sum, <FLOATS, 5>, <FLOATS, 6>, <FLOATS, 7>, <FLOATS, 8>)
template <typename T, int COUNT>
__global__ void __launch_bounds__(256)
    weighted_sum(T* y, int64 count, const T* x0, float f0, const T* x1, float f1, const T* x2, float f2, const T* x3,
                 float f3, const T* x4, float f4, const T* x5, float f5, const T* x6, float f6, const T* x7, float f7) {
    const T* all[] = {x0, x1, x2, x3, x4, x5, x6, x7};
    float factors[] = {f0, f1, f2, f3, f4, f5, f6, f7};
    const T* inputs[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; ++k) inputs[k] = all[k];
    map(inputs, y, count, [&](const float (&at)[COUNT]) {
        float sum = factors[0] * at[0];
#pragma unroll
        for (int k = 1; k < COUNT; ++k) sum += factors[k] * at[k];
        return sum;
    });
}

INSTANCES(add_relu_backward, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) add_relu_backward(const T* y, const T* dy, T* da, T* db, int64 count) {
    const T* inputs[] = {y, dy};
    map(inputs, da, count, [](const float (&at)[2]) { return at[1] * (at[0] > 0 ? 1.0f : 0.0f); }, db);
}

INSTANCES(add_relu, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) add_relu(const T* a, const T* b, T* y, int64 count) {
    const T* inputs[] = {a, b};
    map(inputs, y, count, [](const float (&at)[2]) { return positive(at[0] + at[1]); });
}

INSTANCES(multiply, FLOATS)
template <typename T>
__global__ void __launch_bounds__(256) multiply(const T* a, const T* b, T* y, int64 count) {
    const T* inputs[] = {a, b};
    map(inputs, y, count, [](const float (&at)[2]) { return at[0] * at[1]; });
}

INSTANCES(copy, <FLOATS, FLOATS>)
template <typename X, typename Y>
__global__ void __launch_bounds__(256) copy(const X* x, Y* y, int64 count) {
    const X* inputs[] = {x};
    map(inputs, y, count, [](const float (&at)[1]) { return at[0]; });
}

// Rows of neighbouring values, at steps of `pitch` in memory.
template <int N, typename X, typename Y>
__device__ __forceinline__ void copy_rows_by(const X* x, Y* y, unsigned rows, unsigned columns, int64 x_pitch,
                                             int64 y_pitch) {
    constexpr int UNROLL = 4;
    unsigned packs = columns / N, count = rows * packs, step = gridDim.x * blockDim.x;
    for (unsigned first = blockIdx.x * blockDim.x + threadIdx.x; first < count; first += UNROLL * step) {
        Raw<X, N> raw[UNROLL];
        unsigned row[UNROLL], column[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            unsigned i = first + u * step;
            row[u] = i / packs;
            column[u] = (i - row[u] * packs) * N;
            if (i < count) raw[u].read(x + row[u] * x_pitch + column[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * step >= count) break;
            float values[N];
#pragma unroll
            for (int i = 0; i < N; ++i) values[i] = to_float(raw[u].values[i]);
            store(y + row[u] * y_pitch + column[u], values);
        }
    }
}

// There are fewer than 2^31 values.
INSTANCES(copy_rows, <FLOATS, FLOATS>)
template <typename X, typename Y>
__global__ void __launch_bounds__(256)
    copy_rows(const X* x, Y* y, int rows, int columns, int64 x_pitch, int64 y_pitch) {
    constexpr int N = PACK<X> < PACK<Y> ? PACK<X> : PACK<Y>;
    bool whole = columns % N == 0 && x_pitch % N == 0 && y_pitch % N == 0;
    if (whole && is_aligned(x, N * sizeof(X)) && is_aligned(y, N * sizeof(Y)))
        copy_rows_by<N>(x, y, rows, columns, x_pitch, y_pitch);
    else
        copy_rows_by<1>(x, y, rows, columns, x_pitch, y_pitch);
}

// y[batch][column][row] = x[batch][row][column]: the columns of x and the rows of y are neighbours in memory, everything
// else lies at steps of a pitch. A block moves a tile, so that both sides are read and written along memory.
INSTANCES(copy_transposed, <FLOATS, FLOATS>)
template <typename X, typename Y>
__global__ void __launch_bounds__(256)
    copy_transposed(const X* x, Y* y, int rows, int columns, int64 x_pitch, int64 y_pitch, int64 x_batch, int64 y_batch) {
    constexpr int TILE = 64, STEP = 256 / TILE;
    __shared__ float tile[TILE][TILE + 1];
    unsigned across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
    unsigned left = blockIdx.x % across * TILE, top = blockIdx.x / across % down * TILE;
    int64 batch = blockIdx.x / across / down;
    int lane = threadIdx.x % TILE, first = threadIdx.x / TILE;
    int height = left + lane < columns ? (int)(rows - top) - first : 0;  // of what there is for this thread to read
    int width = top + lane < rows ? (int)(columns - left) - first : 0;   // and to write
    x += batch * x_batch + (top + first) * x_pitch + left + lane;
    y += batch * y_batch + (left + first) * y_pitch + top + lane;
#pragma unroll
    for (int i = 0; i < TILE; i += STEP, x += STEP * x_pitch)
        if (i < height) tile[first + i][lane] = to_float(*x);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i += STEP, y += STEP * y_pitch)
        if (i < width) *y = from_float<Y>(tile[lane][first + i]);
}

// From three planes of an image to its pixels, N at a time.
template <int N, typename X, typename Y>
__device__ __forceinline__ void interleave(const X* x, Y* y, int pixels, int64 batches, int64 x_pitch, int64 x_batch,
                                           int64 y_batch) {
    unsigned packs = pixels / N;
    GRID_STRIDE(int64, i, batches * packs) {
        int64 batch = i / packs, pixel = (i - batch * packs) * N;
        float planes[3][N], all[3 * N];
#pragma unroll
        for (int c = 0; c < 3; ++c) load(x + batch * x_batch + c * x_pitch + pixel, planes[c]);
#pragma unroll
        for (int k = 0; k < 3 * N; ++k) all[k] = planes[k % 3][k / 3];
        Y* to = y + batch * y_batch + pixel * 3;
#pragma unroll
        for (int k = 0; k < 3 * N; k += N) {
            float part[N];
#pragma unroll
            for (int j = 0; j < N; ++j) part[j] = all[k + j];
            store(to + k, part);
        }
    }
}

INSTANCES(copy_interleaved, <float, FLOATS>)
template <typename X, typename Y>
__global__ void __launch_bounds__(256)
    copy_interleaved(const X* x, Y* y, int pixels, int64 batches, int64 x_pitch, int64 x_batch, int64 y_batch) {
    constexpr int N = 4;
    bool whole = pixels % N == 0 && x_pitch % N == 0 && x_batch % N == 0 && y_batch % N == 0;
    if (whole && is_aligned(x, N * sizeof(X)) && is_aligned(y, N * sizeof(Y)))
        interleave<N>(x, y, pixels, batches, x_pitch, x_batch, y_batch);
    else
        interleave<1>(x, y, pixels, batches, x_pitch, x_batch, y_batch);
}

// By channel: arrays are rows of channels. A block is blockDim.x packs of N channels wide and takes blockDim.y rows at a
// time; blockIdx.y says which channels. A thread keeps to its channels.

INSTANCES(add_bias, <float, 1>, <float, 4>, <half_t, 1>, <half_t, 8>, <bfloat_t, 1>, <bfloat_t, 8>)
template <typename T, int N>
__global__ void __launch_bounds__(256) add_bias(T* y, const float* bias, int64 rows, int columns, int relu) {
    constexpr int UNROLL = 4;
    int column = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (column >= columns) return;
    float biases[N];
#pragma unroll
    for (int i = 0; i < N; ++i) biases[i] = bias[column + i];
    int64 step = (int64)gridDim.x * blockDim.y, first = (int64)blockIdx.x * blockDim.y + threadIdx.y;
    int64 stride = step * columns;
    y += first * columns + column;
#pragma unroll 1
    for (; first < rows; first += UNROLL * step, y += UNROLL * stride) {
        Raw<T, N> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * step < rows) raw[u].read(y + u * stride);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * step >= rows) break;
            float values[N];
            unpack(raw[u], values);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                values[i] += biases[i];
                if (relu) values[i] = positive(values[i]);
            }
            pack<T>(values).write(y + u * stride);
        }
    }
}

// partials (gridDim.x, columns): sums over rows of dy, or, with RELU, of dx, which becomes dy where y > 0 and else 0.
// Blocks have 256 threads, and a width that divides 32.
INSTANCES(bias_partials, <float, 1, false>, <float, 4, false>, <half_t, 1, false>, <half_t, 8, false>)
INSTANCES(bias_partials, <bfloat_t, 1, false>, <bfloat_t, 8, false>, <float, 1, true>, <float, 4, true>)
INSTANCES(bias_partials, <half_t, 1, true>, <half_t, 8, true>, <bfloat_t, 1, true>, <bfloat_t, 8, true>)
template <typename T, int N, bool RELU>
__global__ void __launch_bounds__(256)
    bias_partials(const T* y, const T* dy, T* dx, float* partials, int64 rows, int columns) {
    constexpr int UNROLL = RELU ? 2 : 4, WARPS = 8;
    __shared__ float shared[N][WARPS][32];
    int column = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    float sums[N] = {};
    int64 step = (int64)gridDim.x * blockDim.y, first = (int64)blockIdx.x * blockDim.y + threadIdx.y;
    int64 stride = step * columns, at = first * columns + column;
    int64 end = column < columns ? rows : 0;
#pragma unroll 1
    for (; first < end; first += UNROLL * step, at += UNROLL * stride) {
        Raw<T, N> gradients[UNROLL], outputs[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * step >= end) break;
            gradients[u].read(dy + at + u * stride);
            if (RELU) outputs[u].read(y + at + u * stride);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (first + u * step >= end) break;
            float values[N];
            unpack(gradients[u], values);
            if (RELU) {
                float activations[N];
                unpack(outputs[u], activations);
#pragma unroll
                for (int i = 0; i < N; ++i) values[i] *= activations[i] > 0 ? 1.0f : 0.0f;
                pack<T>(values).write(dx + at + u * stride);
            }
#pragma unroll
            for (int i = 0; i < N; ++i) sums[i] += values[i];
        }
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

// dbias (+)= the sum of `count` rows of partials. Blocks of 32 x 32 threads.
INSTANCES(bias_sums)
__global__ void __launch_bounds__(1024) bias_sums(const float* partials, float* dbias, int count, int columns, int add) {
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
    if (threadIdx.x == 0 && column < columns) dbias[column] = add ? dbias[column] + sum : sum;
}
