// Pooling of channels-last images: a thread works on N neighbouring channels of one place. Gradients are gathered: each
// element of dx adds up what the windows around it have for it, in a fixed order, that of the plain operators.

// x is (samples, height, width, channels), y (samples, rows, columns, channels); windows begin at -pad.
#define GEOMETRY                                                                                          \
    int channels, int height, int width, int rows, int columns, int kernel_h, int kernel_w, int stride_h, \
        int stride_w, int pad_h, int pad_w

constexpr float LOWEST = -3.4028234663852886e38f;
constexpr int POOLING_THREADS = 256;

// What max pooling remembers of a maximum, by its size in bytes: the place in the window (1 or 2 bytes, all ones if
// there is none), or as float the place in the plane (4 bytes, -1 if there is none).
template <int BYTES>
struct Code;
template <>
struct Code<1> {
    typedef unsigned char type;
    static constexpr int none = 0xff;
};
template <>
struct Code<2> {
    typedef unsigned short type;
    static constexpr int none = 0xffff;
};
template <>
struct Code<4> {
    typedef float type;
    static constexpr int none = -1;
};
template <>
struct Code<0> : Code<4> {};

template <typename C, int N>
struct alignas(N * sizeof(C) < 16 ? N * sizeof(C) : 16) Codes {
    C values[N];
};

struct Range {
    int first, end;
};

// The elements of a window that lie in the image.
__device__ __forceinline__ Range inside(int start, int kernel, int size) {
    return {max(start, 0), min(start + kernel, size)};
}

// The windows that an element lies in.
__device__ __forceinline__ Range around(int place, int kernel, int stride, int pad, int windows) {
    place += pad;
    return {place < kernel ? 0 : (place - kernel) / stride + 1, min(place / stride + 1, windows)};
}

// Elements of a window clipped to the padded image.
__device__ __forceinline__ int length(int start, int kernel, int size, int pad) {
    return min(start + kernel, size + pad) - start;
}

// Where item i of (samples, rows, columns, channels / N) is.
template <int N>
struct Place {
    int sample, row, column, channel;

    __device__ __forceinline__ Place(unsigned i, unsigned rows, unsigned columns, unsigned channels) {
        const unsigned packs = channels / N;
        channel = i % packs * N;
        i /= packs;
        column = i % columns;
        i /= columns;
        row = i % rows;
        sample = i / rows;
    }
};

// y = the first largest value of each window; CODE bytes a value go to `memory`, 0: none.
template <typename T, int N, int CODE>
__global__ void __launch_bounds__(POOLING_THREADS)
    max_pool_forward(const T* __restrict__ x, T* __restrict__ y, void* __restrict__ memory, int count, GEOMETRY) {
    constexpr int AHEAD = 3;  // loads at the same time; a part of three reads its last element again
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Place<N> at(i, rows, columns, channels);
        const int top = at.row * stride_h - pad_h, left = at.column * stride_w - pad_w;
        const Range down = inside(top, kernel_h, height), across = inside(left, kernel_w, width);
        const T* image = x + (int64)at.sample * height * width * channels + at.channel;
        float best[N];
        int where[N];
#pragma unroll
        for (int n = 0; n < N; ++n) {
            best[n] = LOWEST;
            where[n] = Code<CODE>::none;
        }
        for (int h = down.first; h < down.end; ++h) {
            for (int w = across.first; w < across.end; w += AHEAD) {
                float values[AHEAD][N];
#pragma unroll
                for (int k = 0; k < AHEAD; ++k)
                    load<N>(image + (h * width + min(w + k, across.end - 1)) * channels, values[k]);
                const int code = CODE == 4 ? h * width + w : (h - top) * kernel_w + w - left;
#pragma unroll
                for (int k = 0; k < AHEAD; ++k)
#pragma unroll
                    for (int n = 0; n < N; ++n)
                        if (values[k][n] > best[n]) {  // never so for a NaN, or for an element seen before
                            best[n] = values[k][n];
                            where[n] = code + k;
                        }
            }
        }
        store<N>(y + (int64)i * N, best);
        if constexpr (CODE > 0) {
            typedef typename Code<CODE>::type C;
            Codes<C, N> codes;
#pragma unroll
            for (int n = 0; n < N; ++n) codes.values[n] = C(where[n]);
            reinterpret_cast<Codes<C, N>*>(memory)[i] = codes;
        }
    }
}
INSTANCES(max_pool_forward, <float, 4, 0>, <float, 4, 1>, <float, 4, 2>, <float, 4, 4>)
INSTANCES(max_pool_forward, <float, 1, 0>, <float, 1, 1>, <float, 1, 2>, <float, 1, 4>)
INSTANCES(max_pool_forward, <half_t, 8, 0>, <half_t, 8, 1>, <half_t, 8, 2>, <half_t, 8, 4>)
INSTANCES(max_pool_forward, <half_t, 1, 0>, <half_t, 1, 1>, <half_t, 1, 2>, <half_t, 1, 4>)
INSTANCES(max_pool_forward, <bfloat_t, 8, 0>, <bfloat_t, 8, 1>, <bfloat_t, 8, 2>, <bfloat_t, 8, 4>)
INSTANCES(max_pool_forward, <bfloat_t, 1, 0>, <bfloat_t, 1, 1>, <bfloat_t, 1, 2>, <bfloat_t, 1, 4>)

// dx = the sum of dy over the windows whose maximum is here, by what max_pool_forward left in `memory`.
template <typename T, int N, int CODE>
__global__ void __launch_bounds__(POOLING_THREADS)
    max_pool_backward(const T* __restrict__ dy, const void* __restrict__ memory, T* __restrict__ dx, int count,
                      GEOMETRY) {
    typedef Codes<typename Code<CODE>::type, N> Group;
    constexpr int AHEAD = 2;
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Place<N> at(i, height, width, channels);
        const Range down = around(at.row, kernel_h, stride_h, pad_h, rows);
        const Range across = around(at.column, kernel_w, stride_w, pad_w, columns);
        const int64 plane = (int64)at.sample * rows * columns * channels + at.channel;
        float sums[N] = {};
        for (int h = down.end - 1; h >= down.first; --h) {
            for (int w = across.end - 1; w >= across.first; w -= AHEAD) {
                float values[AHEAD][N];
                Group codes[AHEAD];
#pragma unroll
                for (int k = 0; k < AHEAD; ++k) {
                    const int64 from = plane + (h * columns + max(w - k, across.first)) * channels;
                    load<N>(dy + from, values[k]);
                    codes[k] = reinterpret_cast<const Group*>(memory)[from / N];
                }
                const int place = (at.row + pad_h - h * stride_h) * kernel_w + at.column + pad_w - w * stride_w;
#pragma unroll
                for (int k = 0; k < AHEAD; ++k) {
                    const int code = CODE == 4 ? at.row * width + at.column : place + k * stride_w;
#pragma unroll
                    for (int n = 0; n < N; ++n)
                        if (w - k >= across.first && codes[k].values[n] == code) sums[n] += values[k][n];
                }
            }
        }
        store<N>(dx + (int64)i * N, sums);
    }
}
INSTANCES(max_pool_backward, <float, 4, 1>, <float, 4, 2>, <float, 4, 4>)
INSTANCES(max_pool_backward, <float, 1, 1>, <float, 1, 2>, <float, 1, 4>)
INSTANCES(max_pool_backward, <half_t, 8, 1>, <half_t, 8, 2>, <half_t, 8, 4>)
INSTANCES(max_pool_backward, <half_t, 1, 1>, <half_t, 1, 2>, <half_t, 1, 4>)
INSTANCES(max_pool_backward, <bfloat_t, 8, 1>, <bfloat_t, 8, 2>, <bfloat_t, 8, 4>)
INSTANCES(max_pool_backward, <bfloat_t, 1, 1>, <bfloat_t, 1, 2>, <bfloat_t, 1, 4>)

template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    average_pool_forward(const T* __restrict__ x, T* __restrict__ y, int count, GEOMETRY) {
    constexpr int AHEAD = 3;
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Place<N> at(i, rows, columns, channels);
        const int top = at.row * stride_h - pad_h, left = at.column * stride_w - pad_w;
        const Range down = inside(top, kernel_h, height), across = inside(left, kernel_w, width);
        const T* image = x + (int64)at.sample * height * width * channels + at.channel;
        float sums[N] = {};
        for (int h = down.first; h < down.end; ++h) {
            for (int w = across.first; w < across.end; w += AHEAD) {
                float values[AHEAD][N];
#pragma unroll
                for (int k = 0; k < AHEAD; ++k)
                    load<N>(image + (h * width + min(w + k, across.end - 1)) * channels, values[k]);
#pragma unroll
                for (int k = 0; k < AHEAD; ++k)
#pragma unroll
                    for (int n = 0; n < N; ++n)
                        if (w + k < across.end) sums[n] += values[k][n];
            }
        }
        const float area = length(top, kernel_h, height, pad_h) * length(left, kernel_w, width, pad_w);
#pragma unroll
        for (int n = 0; n < N; ++n) sums[n] /= area;  // 0 / 0 where the window lies outside, as in Caffe
        store<N>(y + (int64)i * N, sums);
    }
}
INSTANCES(average_pool_forward, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)

template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    average_pool_backward(const T* __restrict__ dy, T* __restrict__ dx, int count, GEOMETRY) {
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Place<N> at(i, height, width, channels);
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
INSTANCES(average_pool_backward, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)

// One window, the whole image of `area` places: blocks of 32 x 8 threads, 32 packs of channels and each 8th place.
// There are samples * `groups` blocks, groups = the number of 32 packs in the channels, rounded up.
template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    average_pool_whole(const T* __restrict__ x, T* __restrict__ y, int area, int channels, int groups) {
    constexpr int PACKS = 32, SLICES = 8, AHEAD = 4;
    __shared__ float slices[SLICES][PACKS][N];
    const int64 sample = blockIdx.x / groups;
    const int channel = (blockIdx.x % groups * PACKS + threadIdx.x) * N;
    const T* image = x + sample * area * channels + channel;
    float sums[N] = {};
    if (channel < channels) {
        for (int place = threadIdx.y; place < area; place += AHEAD * SLICES) {
            float values[AHEAD][N] = {};
#pragma unroll
            for (int k = 0; k < AHEAD; ++k)
                if (place + k * SLICES < area) load<N>(image + (int64)(place + k * SLICES) * channels, values[k]);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k)
#pragma unroll
                for (int n = 0; n < N; ++n) sums[n] += values[k][n];
        }
    }
#pragma unroll
    for (int n = 0; n < N; ++n) slices[threadIdx.y][threadIdx.x][n] = sums[n];
    __syncthreads();
    if (threadIdx.y > 0 || channel >= channels) return;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        for (int slice = 1; slice < SLICES; ++slice) sums[n] += slices[slice][threadIdx.x][n];
        sums[n] /= area;
    }
    store<N>(y + sample * channels + channel, sums);
}
INSTANCES(average_pool_whole, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)

// dx = dy added up at the places that `mask` names, wherever in the plane they are; places beyond it are left out. A
// thread does one plane after the other, place by place, so that sums have an order. Steps are between the values of
// neighbouring channels and places: 1 and channels, or the number of places and 1.
template <typename T>
__global__ void __launch_bounds__(POOLING_THREADS)
    scatter_to_plane(const T* __restrict__ dy, const float* __restrict__ mask, float* __restrict__ dx, int planes,
                     int channels, int places, int area, int dy_channel, int dy_place, int mask_channel,
                     int mask_place, int dx_channel, int dx_place) {
    GRID_STRIDE(unsigned, i, (unsigned)planes) {
        const int64 sample = i / channels;
        const int channel = i % channels;
        const T* from = dy + sample * channels * places + (int64)channel * dy_channel;
        const float* where = mask + sample * channels * places + (int64)channel * mask_channel;
        float* to = dx + sample * channels * area + (int64)channel * dx_channel;
        for (int place = 0; place < area; ++place) to[(int64)place * dx_place] = 0.0f;
#pragma unroll 4
        for (int place = 0; place < places; ++place) {
            const int target = (int)where[(int64)place * mask_place];
            const float value = to_float(from[(int64)place * dy_place]);
            if (target >= 0 && target < area) to[(int64)target * dx_place] += value;
        }
    }
}
INSTANCES(scatter_to_plane, FLOATS)
