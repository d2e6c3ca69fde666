// Pooling of channels-last images: a thread works on N neighbouring channels of one position. Gradients are gathered: each
// element of dx adds up what the windows around it have for it, in a fixed order, that of the plain operators.

// x is (samples, height, width, channels), y (samples, rows, columns, channels); windows begin at -pad.
#define GEOMETRY                                                                                          \
    int channels, int height, int width, int rows, int columns, int kernel_h, int kernel_w, int stride_h, \
        int stride_w, int pad_h, int pad_w

constexpr float LOWEST = -3.4028234663852886e38f;
constexpr int POOLING_THREADS = 256;

struct Range {
    int first, end;
};

// The elements of a window that lie in the image.
__device__ __forceinline__ Range inside(int start, int kernel, int size) {
    return {max(start, 0), min(start + kernel, size)};
}

// The windows that an element lies in.
__device__ __forceinline__ Range around(int position, int kernel, int stride, int pad, int windows) {
    position += pad;
    return {position < kernel ? 0 : (position - kernel) / stride + 1, min(position / stride + 1, windows)};
}

// Elements of a window clipped to the padded image.
__device__ __forceinline__ int length(int start, int kernel, int size, int pad) {
    return min(start + kernel, size + pad) - start;
}

// Where item i of (samples, rows, columns, channels / N) is.
template <int N>
struct Position {
    int sample, row, column, channel;

    __device__ __forceinline__ Position(unsigned i, unsigned rows, unsigned columns, unsigned channels) {
        const unsigned packs = channels / N;
        channel = i % packs * N;
        i /= packs;
        column = i % columns;
        i /= columns;
        row = i % rows;
        sample = i / rows;
    }
};

// y = the first largest value of each window; `indices`, unless null, gets its index in the plane, -1 if there is none.
template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    max_pool_forward(const T* __restrict__ x, T* __restrict__ y, int* __restrict__ indices, int count, GEOMETRY) {
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<N> at(i, rows, columns, channels);
        const Range down = inside(at.row * stride_h - pad_h, kernel_h, height);
        const Range across = inside(at.column * stride_w - pad_w, kernel_w, width);
        const T* image = x + (int64)at.sample * height * width * channels + at.channel;
        float best[N];
        int where[N];
#pragma unroll
        for (int n = 0; n < N; ++n) {
            best[n] = LOWEST;
            where[n] = -1;
        }
        for (int h = down.first; h < down.end; ++h) {
            for (int w = across.first; w < across.end; ++w) {
                float values[N];
                load<N>(image + (h * width + w) * channels, values);
#pragma unroll
                for (int n = 0; n < N; ++n)
                    if (values[n] > best[n]) {  // never so for a NaN
                        best[n] = values[n];
                        where[n] = h * width + w;
                    }
            }
        }
        store<N>(y + (int64)i * N, best);
        if (!indices) continue;
#pragma unroll
        for (int n = 0; n < N; ++n) indices[(int64)i * N + n] = where[n];
    }
}

// dx = the sum of dy over the windows whose maximum is here, by the indices of max_pool_forward.
template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    max_pool_backward(const T* __restrict__ dy, const int* __restrict__ indices, T* __restrict__ dx, int count,
                      GEOMETRY) {
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<N> at(i, height, width, channels);
        const Range down = around(at.row, kernel_h, stride_h, pad_h, rows);
        const Range across = around(at.column, kernel_w, stride_w, pad_w, columns);
        const int64 plane = (int64)at.sample * rows * columns * channels + at.channel;
        float sums[N] = {};
        for (int h = down.end - 1; h >= down.first; --h) {
            for (int w = across.end - 1; w >= across.first; --w) {
                const int64 from = plane + (h * columns + w) * channels;
                float values[N];
                load<N>(dy + from, values);
#pragma unroll
                for (int n = 0; n < N; ++n)
                    if (indices[from + n] == at.row * width + at.column) sums[n] += values[n];
            }
        }
        store<N>(dx + (int64)i * N, sums);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    average_pool_forward(const T* __restrict__ x, T* __restrict__ y, int count, GEOMETRY) {
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<N> at(i, rows, columns, channels);
        const int top = at.row * stride_h - pad_h, left = at.column * stride_w - pad_w;
        const Range down = inside(top, kernel_h, height), across = inside(left, kernel_w, width);
        const T* image = x + (int64)at.sample * height * width * channels + at.channel;
        float sums[N] = {};
        for (int h = down.first; h < down.end; ++h) {
            for (int w = across.first; w < across.end; ++w) {
                float values[N];
                load<N>(image + (h * width + w) * channels, values);
#pragma unroll
                for (int n = 0; n < N; ++n) sums[n] += values[n];
            }
        }
        const float area = length(top, kernel_h, height, pad_h) * length(left, kernel_w, width, pad_w);
#pragma unroll
        for (int n = 0; n < N; ++n) sums[n] /= area;  // 0 / 0 where the window lies outside, as in Caffe
        store<N>(y + (int64)i * N, sums);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    average_pool_backward(const T* __restrict__ dy, T* __restrict__ dx, int count, GEOMETRY) {
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<N> at(i, height, width, channels);
        const Range down = around(at.row, kernel_h, stride_h, pad_h, rows);
        const Range across = around(at.column, kernel_w, stride_w, pad_w, columns);
        const T* plane = dy + (int64)at.sample * rows * columns * channels + at.channel;
        float sums[N] = {};
        for (int h = down.end - 1; h >= down.first; --h) {
            const int rows_inside = length(h * stride_h - pad_h, kernel_h, height, pad_h);
            for (int w = across.end - 1; w >= across.first; --w) {
                float values[N];
                load<N>(plane + (h * columns + w) * channels, values);
                const float share = 1.0f / (rows_inside * length(w * stride_w - pad_w, kernel_w, width, pad_w));
#pragma unroll
                for (int n = 0; n < N; ++n) sums[n] += values[n] * share;
            }
        }
        store<N>(dx + (int64)i * N, sums);
    }
}

// dx = dy added up at the positions in the plane that `mask` names, all in C order; others are ignored. A thread adds up a
// plane in the order of its values.
template <typename T>
__global__ void __launch_bounds__(POOLING_THREADS)
    scatter_to_plane(const T* __restrict__ dy, const float* __restrict__ mask, float* __restrict__ dx, int planes,
                     int positions, int area) {
    GRID_STRIDE(int64, i, planes) {
        float* to = dx + i * area;
        for (int target = 0; target < area; ++target) to[target] = 0.0f;
        for (int64 from = i * positions; from < (i + 1) * positions; ++from) {
            const int target = (int)mask[from];
            if (target >= 0 && target < area) to[target] += to_float(dy[from]);
        }
    }
}
