// Rows added to those rows of a matrix that indices name, in a fixed order: the block of the first row with an index adds
// up all that have it.

__global__ void add_rows(const float* rows, const int64* indices, float* target, int64 count, int64 width) {
    __shared__ int is_later;
    for (int64 row = blockIdx.x; row < count; row += gridDim.x) {
        const int64 index = indices[row];
        if (threadIdx.x == 0) is_later = 0;
        __syncthreads();
        for (int64 other = threadIdx.x; other < row; other += blockDim.x)
            if (indices[other] == index) is_later = 1;
        __syncthreads();
        if (!is_later)
            for (int64 column = threadIdx.x; column < width; column += blockDim.x) {
                float sum = target[index * width + column];
                for (int64 other = row; other < count; ++other)
                    if (indices[other] == index) sum += rows[other * width + column];
                target[index * width + column] = sum;
            }
        __syncthreads();
    }
}
INSTANCES(add_rows)
