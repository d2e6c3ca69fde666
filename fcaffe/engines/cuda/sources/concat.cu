// Channels side by side, and apart again: a whole of rows of channels, of which each part has some neighbours.

constexpr int MOST_PARTS = 8;

// Goes through the whole in packs of N channels; SPLIT: from the whole to the parts, but not to null ones.
template <typename T, int N, bool SPLIT>
__device__ __forceinline__ void move_channels(T* whole, int64 rows, T* const (&parts)[MOST_PARTS],
                                              const int (&channels)[MOST_PARTS]) {
    constexpr int UNROLL = 2;
    int all = 0;
#pragma unroll
    for (int k = 0; k < MOST_PARTS; ++k) all += channels[k];
    const unsigned packs = all / N;
    const int64 count = rows * packs, step = (int64)gridDim.x * blockDim.x;
    for (int64 first = (int64)blockIdx.x * blockDim.x + threadIdx.x; first < count; first += UNROLL * step) {
        T* from[UNROLL];
        T* to[UNROLL];
        Raw<T, N> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int64 i = first + u * step, row = i / packs;
            int channel = (int)(i - row * packs) * N;
            T* part = nullptr;
            bool found = i >= count;
#pragma unroll
            for (int k = 0; k < MOST_PARTS; ++k) {
                if (!found && channel < channels[k]) {
                    found = true;
                    part = parts[k] ? parts[k] + row * channels[k] + channel : nullptr;
                }
                channel -= found ? 0 : channels[k];
            }
            from[u] = part ? (SPLIT ? whole + i * N : part) : nullptr;
            to[u] = SPLIT ? part : whole + i * N;
            if (from[u]) raw[u].read(from[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (from[u]) raw[u].write(to[u]);
    }
}

INSTANCES(concat_channels, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)
template <typename T, int N>
__global__ void __launch_bounds__(256)
    concat_channels(T* whole, int64 rows, T* x0, int c0, T* x1, int c1, T* x2, int c2, T* x3, int c3, T* x4, int c4,
                    T* x5, int c5, T* x6, int c6, T* x7, int c7) {
    T* const parts[] = {x0, x1, x2, x3, x4, x5, x6, x7};
    const int channels[] = {c0, c1, c2, c3, c4, c5, c6, c7};
    move_channels<T, N, false>(whole, rows, parts, channels);
}

INSTANCES(split_channels, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)
template <typename T, int N>
__global__ void __launch_bounds__(256)
    split_channels(T* whole, int64 rows, T* x0, int c0, T* x1, int c1, T* x2, int c2, T* x3, int c3, T* x4, int c4,
                   T* x5, int c5, T* x6, int c6, T* x7, int c7) {
    T* const parts[] = {x0, x1, x2, x3, x4, x5, x6, x7};
    const int channels[] = {c0, c1, c2, c3, c4, c5, c6, c7};
    move_channels<T, N, true>(whole, rows, parts, channels);
}
