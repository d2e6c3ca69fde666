// target[indices] += rows, for matrices with `width` columns. Each thread adds, in their order, the values of one column
// in the rows whose index leaves its remainder of a division by `remainders`, so no two threads write the same value.
__global__ void add_rows(const float* rows, const int64* indices, float* target, int64 count, int64 width,
                         int64 remainders) {
    GRID_STRIDE(int64, i, width * remainders) {
        const int64 column = i % width, remainder = i / width;
        for (int64 row = 0; row < count; ++row) {
            const int64 index = indices[row];
            if (index % remainders == remainder) target[index * width + column] += rows[row * width + column];
        }
    }
}
