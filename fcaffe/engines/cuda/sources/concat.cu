// Concatenates channels and splits them again: a whole of rows of channels, of which each part has some neighbours.

constexpr int MOST_PARTS = 8;

// In packs of N channels; SPLIT: from the whole to the parts, but not to null ones. A thread keeps to its channels: a
// block is blockDim.x packs wide and takes blockDim.y rows at a time; blockIdx.y says which channels.
INSTANCES(move_channels, <float, 4, false>, <float, 1, false>, <float, 4, true>, <float, 1, true>)
INSTANCES(move_channels, <half_t, 8, false>, <half_t, 1, false>, <half_t, 8, true>, <half_t, 1, true>)
INSTANCES(move_channels, <bfloat_t, 8, false>, <bfloat_t, 1, false>, <bfloat_t, 8, true>, <bfloat_t, 1, true>)
template <typename T, int N, bool SPLIT>
__global__ void __launch_bounds__(256)
    move_channels(T* whole, int64 rows, int all, T* x0, int c0, T* x1, int c1, T* x2, int c2, T* x3, int c3, T* x4,
                  int c4, T* x5, int c5, T* x6, int c6, T* x7, int c7) {
    T* const parts[] = {x0, x1, x2, x3, x4, x5, x6, x7};
    const int channels[] = {c0, c1, c2, c3, c4, c5, c6, c7};
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
