// Dropout, with the mask of fcaffe/rng/counter.py made on the spot: Philox4x64-10 (Salmon, Moraes, Dror and Shaw, 2011).

// Whose numbers they are: the key of (seed, layer), the pass, and how many blocks of eight words a row has.
struct Stream {
    uint64 key0, key1, number, iteration, net, blocks;

    // Bit i says whether word i of a block of a row (its number in the batch of all workers) is at most `limit`.
    __device__ __forceinline__ unsigned kept(uint64 row, uint64 block, unsigned limit) const {
        uint64 a = 1 + row * blocks + block, b = number, c = iteration, d = net, k0 = key0, k1 = key1;
#pragma unroll
        for (int round = 0; round < 10; ++round) {
            const uint64 high_a = __umul64hi(0xD2E7470EE14C6C93ull, a), low_a = 0xD2E7470EE14C6C93ull * a;
            const uint64 high_c = __umul64hi(0xCA5A826395121157ull, c), low_c = 0xCA5A826395121157ull * c;
            a = high_c ^ b ^ k0;
            b = low_c;
            c = high_a ^ d ^ k1;
            d = low_a;
            k0 += 0x9E3779B97F4A7C15ull;
            k1 += 0xBB67AE8584CAA73Bull;
        }
        return two_kept(a, limit) | two_kept(b, limit) << 2 | two_kept(c, limit) << 4 | two_kept(d, limit) << 6;
    }

    __device__ static __forceinline__ unsigned two_kept(uint64 words, unsigned limit) {
        return unsigned((unsigned)words <= limit) | unsigned((unsigned)(words >> 32) <= limit) << 1;
    }
};

// mask has `rows` rows of `size` values in C order, so that eight neighbours take their words from one block: 1 where
// kept, else 0. counters = (first sample, number, iteration, net); `each` is the number of rows of a sample.
__global__ void draw_mask(unsigned char* mask, const uint64* counters, uint64 key0, uint64 key1, unsigned limit,
                          uint64 first, uint64 each, int64 rows, int64 size) {
    const int64 blocks = (size + 7) / 8;
    const Stream stream{key0, key1, counters[1], counters[2], counters[3], (uint64)blocks};
    first += each * counters[0];
    GRID_STRIDE(int64, i, rows * blocks) {
        const int64 row = i / blocks, block = i % blocks;
        const unsigned kept = stream.kept(first + row, block, limit);
        for (int k = 0; k < 8 && block * 8 + k < size; ++k) mask[row * size + block * 8 + k] = kept >> k & 1;
    }
}
