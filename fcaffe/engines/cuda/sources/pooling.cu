// Pooling of channels-last images: a thread works on N neighbouring channels of one position. Gradients are gathered: each
// element of dx adds up what the windows around it have for it, in a fixed order, that of the plain operators.

// x is (samples, height, width, channels), y (samples, rows, columns, channels); windows begin at -pad.
#define GEOMETRY                                                                                          \
    int channels, int height, int width, int rows, int columns, int kernel_h, int kernel_w, int stride_h, \
        int stride_w, int pad_h, int pad_w

constexpr float LOWEST = -3.4028234663852886e38f;
constexpr int POOLING_THREADS = 256;

// What max pooling remembers of a maximum, by its size in bytes: the position in the window (1 or 2 bytes, all ones if
// there is none), or as float the position in the plane (4 bytes, -1 if there is none).
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

// y = the first largest value of each window; CODE bytes a value go to `memory`, 0: none.
template <typename T, int N, int CODE>
__global__ void __launch_bounds__(POOLING_THREADS)
    max_pool_forward(const T* __restrict__ x, T* __restrict__ y, void* __restrict__ memory, int count, GEOMETRY) {
    constexpr int AHEAD = 3;  // loads at the same time; a part of three reads its last element again
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<N> at(i, rows, columns, channels);
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
        const Position<N> at(i, height, width, channels);
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
                const int position = (at.row + pad_h - h * stride_h) * kernel_w + at.column + pad_w - w * stride_w;
#pragma unroll
                for (int k = 0; k < AHEAD; ++k) {
                    const int code = CODE == 4 ? at.row * width + at.column : position + k * stride_w;
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

// Max pooling of the usual windows, KERNEL x KERNEL at STRIDE, by whole packs: unrolled, and a pack's codes, of a byte
// each, are found, kept and compared by fours in a register. `packs` is channels / N. Each window has at least an
// element of the image.
#define SQUARE_GEOMETRY int packs, int height, int width, int rows, int columns, int pad_h, int pad_w

constexpr int SIDE = 2;  // as in pooling.py
constexpr unsigned EACH_BYTE = 0x01010101u;

// A pack's codes.
template <int N>
union Bytes {
    typename Word<N>::type word;
    unsigned words[N / 4];

    __device__ __forceinline__ void read(const void* memory, unsigned pack) {
        word = reinterpret_cast<const decltype(word)*>(memory)[pack];
    }
    __device__ __forceinline__ void write(void* memory, unsigned pack) const {
        reinterpret_cast<decltype(word)*>(memory)[pack] = word;
    }
};

// Bits of a where those of mask are set, of b elsewhere.
__device__ __forceinline__ unsigned choose(unsigned mask, unsigned a, unsigned b) {
#ifdef FCAFFE_EMULATED
    return (a & mask) | (b & ~mask);
#else
    unsigned result;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(result) : "r"(mask), "r"(a), "r"(b));
    return result;
#endif
}

// Every other byte of a, then of b.
__device__ __forceinline__ unsigned even_bytes(unsigned a, unsigned b) {
#ifdef FCAFFE_EMULATED
    return (a & 0xff) | (a >> 8 & 0xff00) | (b & 0xff) << 16 | (b & 0xff0000) << 8;
#else
    unsigned result;
    asm("prmt.b32 %0, %1, %2, 0x6420;" : "=r"(result) : "r"(a), "r"(b));
    return result;
#endif
}

// For two values a register: all bits of those of a that are larger than those of b; no number is not.
template <typename T>
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
    T low_a, low_b, high_a, high_b;
    low_a.bits = (unsigned short)a, high_a.bits = (unsigned short)(a >> 16);
    low_b.bits = (unsigned short)b, high_b.bits = (unsigned short)(b >> 16);
    return (to_float(low_a) > to_float(low_b) ? 0xffffu : 0) | (to_float(high_a) > to_float(high_b) ? 0xffff0000u : 0);
}

#ifndef FCAFFE_EMULATED
template <>
__device__ __forceinline__ unsigned larger<half_t>(unsigned a, unsigned b) {
    unsigned result;
    asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

#if __CUDA_ARCH__ >= 900
template <>
__device__ __forceinline__ unsigned larger<bfloat_t>(unsigned a, unsigned b) {
    unsigned result;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}
#endif
#endif

// The largest values met by a pack, and their codes: those of WORDS registers, where a code comes as four equal bytes.
template <typename T, int N>
struct Maxima {  // of 16 bits, by twos
    static constexpr int WORDS = N / 4;
    Raw<unsigned, N / 2> best;
    unsigned where[WORDS];

    __device__ __forceinline__ Maxima() {
#pragma unroll
        for (int n = 0; n < N / 2; ++n) best.values[n] = from_float<T>(LOWEST).bits * 0x10001u;  // that is -infinity
#pragma unroll
        for (int n = 0; n < WORDS; ++n) where[n] = Code<1>::none * EACH_BYTE;
    }

    __device__ __forceinline__ void meet(const Raw<T, N>& pack, const unsigned (&codes)[WORDS]) {
        Raw<unsigned, N / 2> pairs;
        pairs.word = pack.word;
#pragma unroll
        for (int n = 0; n < N / 2; n += 2) {
            const unsigned first = larger<T>(pairs.values[n], best.values[n]);
            const unsigned second = larger<T>(pairs.values[n + 1], best.values[n + 1]);
            best.values[n] = choose(first, pairs.values[n], best.values[n]);
            best.values[n + 1] = choose(second, pairs.values[n + 1], best.values[n + 1]);
            where[n / 2] = choose(even_bytes(first, second), codes[n / 2], where[n / 2]);
        }
    }

    __device__ __forceinline__ Raw<T, N> values() const {
        Raw<T, N> pack;
        pack.word = best.word;
        return pack;
    }

    __device__ __forceinline__ Bytes<N> codes() const {
        Bytes<N> codes;
#pragma unroll
        for (int n = 0; n < WORDS; ++n) codes.words[n] = where[n];
        return codes;
    }
};

template <>
struct Maxima<float, 4> {
    static constexpr int WORDS = 4;
    Raw<float, 4> best;
    unsigned where[WORDS];

    __device__ __forceinline__ Maxima() {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            best.values[n] = LOWEST;
            where[n] = Code<1>::none * EACH_BYTE;
        }
    }

    __device__ __forceinline__ void meet(const Raw<float, 4>& pack, const unsigned (&codes)[WORDS]) {
#pragma unroll
        for (int n = 0; n < 4; ++n)
            if (pack.values[n] > best.values[n]) {
                best.values[n] = pack.values[n];
                where[n] = codes[n];
            }
    }

    __device__ __forceinline__ Raw<float, 4> values() const { return best; }

    __device__ __forceinline__ Bytes<4> codes() const {
        Bytes<4> codes;
        codes.word = choose(0xffff, choose(0xff, where[0], where[1]), choose(0xff0000, where[2], where[3]));
        return codes;
    }
};

// As max_pool_forward, of `count` items: DOWN windows below each other, which share the maxima of rows. What a window
// has outside the image is taken to be the nearest element inside, which it has too: that never wins over itself.
template <typename T, int N, int CODE, int KERNEL, int STRIDE, int DOWN>
__global__ void __launch_bounds__(POOLING_THREADS)
    max_pool_square_forward(const T* __restrict__ x, T* __restrict__ y, void* __restrict__ memory, int count,
                            SQUARE_GEOMETRY) {
    typedef Maxima<T, N> Pack;
    constexpr int HEIGHT = (DOWN - 1) * STRIDE + KERNEL;
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<1> at(i, (rows + DOWN - 1) / DOWN, columns, packs);
        const int top = at.row * DOWN * STRIDE - pad_h, left = at.column * STRIDE - pad_w;
        unsigned across[KERNEL], codes[KERNEL];
#pragma unroll
        for (int w = 0; w < KERNEL; ++w) {
            const int column = min(max(left + w, 0), width - 1);
            across[w] = column * packs;
            codes[w] = (column - left) * EACH_BYTE;
        }
        Pack maxima[DOWN];
#pragma unroll
        for (int h = 0; h < HEIGHT; ++h) {
            const int row = min(max(top + h, 0), height - 1);
            const unsigned from = ((unsigned)at.sample * height + row) * width * packs + at.channel;
            const unsigned code = (row - top) * KERNEL * EACH_BYTE;  // in the first window
            Pack of_row;
#pragma unroll
            for (int w = 0; w < KERNEL; ++w) {
                Raw<T, N> pack;
                pack.read(x + (uint64)(from + across[w]) * N);
                unsigned here[Pack::WORDS];
#pragma unroll
                for (int n = 0; n < Pack::WORDS; ++n) here[n] = code + codes[w];
                of_row.meet(pack, here);
            }
#pragma unroll
            for (int k = 0; k < DOWN; ++k) {
                if (h == k * STRIDE)
                    maxima[k] = of_row;
                else if (h > k * STRIDE && h < k * STRIDE + KERNEL)
                    maxima[k].meet(of_row.values(), of_row.where);
            }
        }
#pragma unroll
        for (int k = 0; k < DOWN; ++k) {
            const int row = at.row * DOWN + k;
            if (row >= rows) break;
            const unsigned to = (((unsigned)at.sample * rows + row) * columns + at.column) * packs + at.channel;
            maxima[k].values().write(y + (uint64)to * N);
            if constexpr (CODE > 0) {
                Bytes<N> kept = maxima[k].codes();
#pragma unroll
                for (int n = 0; n < N / 4; ++n) {
                    const unsigned none = (kept.words[n] >> 7 & EACH_BYTE) * 0xff;
                    kept.words[n] -= k * STRIDE * KERNEL * EACH_BYTE & ~none;  // now in its own window
                }
                kept.write(memory, to);
            }
        }
    }
}
INSTANCES(max_pool_square_forward, <float, 4, 0, 3, 2, 2>, <float, 4, 0, 3, 1, 4>, <float, 4, 0, 2, 2, 2>)
INSTANCES(max_pool_square_forward, <float, 4, 1, 3, 2, 2>, <float, 4, 1, 3, 1, 4>, <float, 4, 1, 2, 2, 2>)
INSTANCES(max_pool_square_forward, <half_t, 8, 0, 3, 2, 2>, <half_t, 8, 0, 3, 1, 4>, <half_t, 8, 0, 2, 2, 2>)
INSTANCES(max_pool_square_forward, <half_t, 8, 1, 3, 2, 2>, <half_t, 8, 1, 3, 1, 4>, <half_t, 8, 1, 2, 2, 2>)
INSTANCES(max_pool_square_forward, <bfloat_t, 8, 0, 3, 2, 2>, <bfloat_t, 8, 0, 3, 1, 4>, <bfloat_t, 8, 0, 2, 2, 2>)
INSTANCES(max_pool_square_forward, <bfloat_t, 8, 1, 3, 2, 2>, <bfloat_t, 8, 1, 3, 1, 4>, <bfloat_t, 8, 1, 2, 2, 2>)

// The top bits of those of four codes that are this one; they, and none, differ in other bits.
__device__ __forceinline__ unsigned equal_bytes(unsigned codes, unsigned code) {
    unsigned result;
#ifdef FCAFFE_EMULATED
    result = 0x80808080u - ((codes ^ code * EACH_BYTE) & 0x7f7f7f7fu);
#else  // so that the compiler does not split it into bytes
    asm("lop3.b32 %0, %1, %2, 0x7f7f7f7f, 0x28;\n\tsub.u32 %0, 0x80808080, %0;"
        : "=&r"(result)
        : "r"(codes), "r"(code * EACH_BYTE));
#endif
    return result;
}

// sum += value if the bit is set.
template <unsigned BIT>
__device__ __forceinline__ void add_if(unsigned bits, float value, float& sum) {
#ifdef FCAFFE_EMULATED
    if (bits & BIT) sum += value;
#else  // without a selection after the sum
    asm("{\n\t"
        ".reg .pred is_set;\n\t"
        ".reg .b32 bit;\n\t"
        "and.b32 bit, %2, %3;\n\t"
        "setp.ne.u32 is_set, bit, 0;\n\t"
        "@is_set add.f32 %0, %0, %1;\n\t"
        "}"
        : "+f"(sum)
        : "f"(value), "r"(bits), "n"(BIT));
#endif
}

// As max_pool_backward, of `count` items: SIDE x SIDE elements of the padded image, which lie in the same windows or
// neighbouring ones. The items begin at element first_h, first_w of the padded image: multiples of STRIDE that leave
// out no element of the image. There are down * across of them an image.
template <typename T, int N, int KERNEL, int STRIDE>
__global__ void __launch_bounds__(POOLING_THREADS)
    max_pool_square_backward(const T* __restrict__ dy, const void* __restrict__ memory, T* __restrict__ dx, int count,
                             int down, int across, int first_h, int first_w, SQUARE_GEOMETRY) {
    constexpr int BEFORE = (KERNEL - 1) / STRIDE, WINDOWS = BEFORE + (SIDE - 1) / STRIDE + 1;
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<1> at(i, down, across, packs);
        const int top = first_h + at.row * SIDE, left = first_w + at.column * SIDE;
        float sums[SIDE][SIDE][N] = {};
#pragma unroll
        for (int h = WINDOWS - 1; h >= 0; --h) {
            const int row = top / STRIDE - BEFORE + h, from_row = min(max(row, 0), rows - 1);
            const unsigned from = ((unsigned)at.sample * rows + from_row) * columns * packs + at.channel;
#pragma unroll
            for (int w = WINDOWS - 1; w >= 0; --w) {
                const int column = left / STRIDE - BEFORE + w, from_column = min(max(column, 0), columns - 1);
                const unsigned position = from + from_column * packs;
                float values[N];
                Bytes<N> codes;
                load<N>(dy + (uint64)position * N, values);
                codes.read(memory, position);
                const bool is_there = row == from_row && column == from_column;
#pragma unroll
                for (int n = 0; n < N / 4; ++n) codes.words[n] = is_there ? codes.words[n] : Code<1>::none * EACH_BYTE;
#pragma unroll
                for (int y = 0; y < SIDE; ++y)
#pragma unroll
                    for (int x = 0; x < SIDE; ++x) {
                        const int inside_h = y + (BEFORE - h) * STRIDE, inside_w = x + (BEFORE - w) * STRIDE;
                        if (inside_h < 0 || inside_h >= KERNEL || inside_w < 0 || inside_w >= KERNEL) continue;
#pragma unroll
                        for (int n = 0; n < N; n += 4) {
                            const unsigned equal = equal_bytes(codes.words[n / 4], inside_h * KERNEL + inside_w);
                            add_if<0x80u>(equal, values[n], sums[y][x][n]);
                            add_if<0x8000u>(equal, values[n + 1], sums[y][x][n + 1]);
                            add_if<0x800000u>(equal, values[n + 2], sums[y][x][n + 2]);
                            add_if<0x80000000u>(equal, values[n + 3], sums[y][x][n + 3]);
                        }
                    }
            }
        }
#pragma unroll
        for (int y = 0; y < SIDE; ++y)
#pragma unroll
            for (int x = 0; x < SIDE; ++x) {
                const int row = top + y - pad_h, column = left + x - pad_w;
                if (row < 0 || row >= height || column < 0 || column >= width) continue;
                const unsigned to = (((unsigned)at.sample * height + row) * width + column) * packs + at.channel;
                store<N>(dx + (uint64)to * N, sums[y][x]);
            }
    }
}
INSTANCES(max_pool_square_backward, <float, 4, 3, 2>, <float, 4, 3, 1>, <float, 4, 2, 2>)
INSTANCES(max_pool_square_backward, <half_t, 8, 3, 2>, <half_t, 8, 3, 1>, <half_t, 8, 2, 2>)
INSTANCES(max_pool_square_backward, <bfloat_t, 8, 3, 2>, <bfloat_t, 8, 3, 1>, <bfloat_t, 8, 2, 2>)

template <typename T, int N>
__global__ void __launch_bounds__(POOLING_THREADS)
    average_pool_forward(const T* __restrict__ x, T* __restrict__ y, int count, GEOMETRY) {
    constexpr int AHEAD = 3;
    GRID_STRIDE(unsigned, i, (unsigned)count) {
        const Position<N> at(i, rows, columns, channels);
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
INSTANCES(average_pool_backward, <float, 4>, <float, 1>, <half_t, 8>, <half_t, 1>, <bfloat_t, 8>, <bfloat_t, 1>)

// One window, the whole image of `area` positions: blocks of 32 x 8 threads, 32 packs of channels and each 8th position.
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
        for (int position = threadIdx.y; position < area; position += AHEAD * SLICES) {
            float values[AHEAD][N] = {};
#pragma unroll
            for (int k = 0; k < AHEAD; ++k)
                if (position + k * SLICES < area) load<N>(image + (int64)(position + k * SLICES) * channels, values[k]);
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

// dx = dy added up at the positions that `mask` names, wherever in the plane they are; positions beyond it are left out. A
// thread does one plane after the other, position by position, so that sums have an order. Steps are between the values of
// neighbouring channels and positions: 1 and channels, or the number of positions and 1.
template <typename T>
__global__ void __launch_bounds__(POOLING_THREADS)
    scatter_to_plane(const T* __restrict__ dy, const float* __restrict__ mask, float* __restrict__ dx, int planes,
                     int channels, int positions, int area, int dy_channel, int dy_position, int mask_channel,
                     int mask_position, int dx_channel, int dx_position) {
    GRID_STRIDE(unsigned, i, (unsigned)planes) {
        const int64 sample = i / channels;
        const int channel = i % channels;
        const T* from = dy + sample * channels * positions + (int64)channel * dy_channel;
        const float* where = mask + sample * channels * positions + (int64)channel * mask_channel;
        float* to = dx + sample * channels * area + (int64)channel * dx_channel;
        for (int position = 0; position < area; ++position) to[(int64)position * dx_position] = 0.0f;
#pragma unroll 4
        for (int position = 0; position < positions; ++position) {
            const int target = (int)where[(int64)position * mask_position];
            const float value = to_float(from[(int64)position * dy_position]);
            if (target >= 0 && target < area) to[(int64)target * dx_position] += value;
        }
    }
}
INSTANCES(scatter_to_plane, FLOATS)
