// Channels side by side, and apart again: a whole of rows of channels, of which each part has some neighbours.

constexpr int MOST_PARTS = 8;

// In packs of N channels; SPLIT: from the whole to the parts, but not to null ones. A thread keeps to its channels: a
// block is blockDim.x packs wide and takes blockDim.y rows at a time; blockIdx.y says which channels.
template <typename T, int N, bool SPLIT>
__device__ __forceinline__ void move_channels(T* whole, int64 rows, int all, T* const (&parts)[MOST_PARTS],
                                              const int (&channels)[MOST_PARTS]) {
    constexpr int UNROLL = 4;
    const int channel = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (channel >= all) return;
    T* part = nullptr;
    int begin = 0, width = 0;
#pragma unroll
    for (int k = 0; k < MOST_PARTS; ++k) {
        part = parts[k];
        width = channels[k];
        if (channel < begin + width) break;
        begin += width;
    }
    if (SPLIT && !part) return;
    const int64 step = (int64)gridDim.x * blockDim.y;
    int64 row = (int64)blockIdx.x * blockDim.y + threadIdx.y;
    whole += row * all + channel;
    part += row * width + channel - begin;
    const int64 whole_step = step * all, part_step = step * width;
#pragma unroll 1
    for (; row < rows; row += UNROLL * step, whole += UNROLL * whole_step, part += UNROLL * part_step) {
        Raw<T, N> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (row + u * step < rows) raw[u].read(SPLIT ? whole + u * whole_step : part + u * part_step);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (row + u * step < rows) raw[u].write(SPLIT ? part + u * part_step : whole + u * whole_step);
    }
}

INSTANCES(concat_channels, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)
template <typename T, int N>
__global__ void __launch_bounds__(256)
    concat_channels(T* whole, int64 rows, int all, T* x0, int c0, T* x1, int c1, T* x2, int c2, T* x3, int c3, T* x4,
                    int c4, T* x5, int c5, T* x6, int c6, T* x7, int c7) {
    T* const parts[] = {x0, x1, x2, x3, x4, x5, x6, x7};
    const int channels[] = {c0, c1, c2, c3, c4, c5, c6, c7};
    move_channels<T, N, false>(whole, rows, all, parts, channels);
}

INSTANCES(split_channels, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)
template <typename T, int N>
__global__ void __launch_bounds__(256)
    split_channels(T* whole, int64 rows, int all, T* x0, int c0, T* x1, int c1, T* x2, int c2, T* x3, int c3, T* x4,
                   int c4, T* x5, int c5, T* x6, int c6, T* x7, int c7) {
    T* const parts[] = {x0, x1, x2, x3, x4, x5, x6, x7};
    const int channels[] = {c0, c1, c2, c3, c4, c5, c6, c7};
    move_channels<T, N, true>(whole, rows, all, parts, channels);
}
