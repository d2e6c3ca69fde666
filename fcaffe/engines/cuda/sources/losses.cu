// SoftmaxWithLoss. A warp computes a position of the scores at a time. Blocks of 256 threads.

#define POSITIONS_OF_WARP(positions)                                                              \
    for (int64 position = ((int64)blockIdx.x * blockDim.x + threadIdx.x) / 32; position < (positions); \
         position += (int64)gridDim.x * blockDim.x / 32)

// Position p lies at (p / inner) * outer_stride + (p % inner) * inner_stride, its classes at steps of class_stride.
struct Positions {
    int64 inner, outer_stride, inner_stride, class_stride;

    __device__ __forceinline__ int64 at(int64 position) const {
        return position / inner * outer_stride + position % inner * inner_stride;
    }
};

// What a label says: a class, that its position does not count (IGNORED), or nothing that makes sense (WRONG).
constexpr int64 IGNORED = -1, WRONG = -2;
constexpr uint64 BEYOND = 1ull << 62;  // all positions
constexpr float SMALLEST = 1.1754943508222875e-38f;  // FLT_MIN: smaller probabilities count as this

__device__ __forceinline__ int64 read_label(float value, int64 classes, int ignores, int ignored) {
    const int64 label = (int64)value;
    if (ignores && label == ignored) return IGNORED;
    return value > -1.0f && value < (float)classes ? label : WRONG;
}

// probability = softmax of the scores; partials[block] = the sum of -log(probability of the label), and in the second
// half the number of positions that count. A wrong label makes the sum no number; of the first pass with one, wrong[0]
// becomes BEYOND - the first position with one, and softmax_loss_finish makes that the position + 1.
template <typename T>
__global__ void softmax_loss_forward(const T* scores, const float* labels, float* probability, float* partials,
                                     int64* wrong, int64 positions, int64 classes, int64 inner, int64 scores_outer,
                                     int64 scores_inner, int64 scores_class, int64 outer_stride, int64 inner_stride,
                                     int64 class_stride, int ignores, int ignored) {
    const Positions from{inner, scores_outer, scores_inner, scores_class};
    const Positions to{inner, outer_stride, inner_stride, class_stride};
    const int lane = threadIdx.x % 32;
    float losses = 0.0f, counted = 0.0f;
    POSITIONS_OF_WARP(positions) {
        const T* x = scores + from.at(position);
        float* y = probability + to.at(position);
        float top = to_float(x[0]), total = 0.0f;
        for (int64 k = lane; k < classes; k += 32) top = fmaxf(top, to_float(x[k * from.class_stride]));
        top = warp_max(top);
        for (int64 k = lane; k < classes; k += 32) {
            const float power = expf(to_float(x[k * from.class_stride]) - top);
            y[k * to.class_stride] = power;
            total += power;
        }
        total = warp_sum(total);
        for (int64 k = lane; k < classes; k += 32) y[k * to.class_stride] /= total;
        if (lane) continue;
        const int64 label = read_label(labels[position], classes, ignores, ignored);
        if (label == IGNORED) continue;
        counted += 1.0f;
        if (label == WRONG) {
            losses = sqrtf(-1.0f);
            if (wrong[1] == 0) atomicMax(reinterpret_cast<uint64*>(wrong), BEYOND - (uint64)position);
        } else {
            const float p = expf(to_float(x[label * from.class_stride]) - top) / total;
            losses -= logf(p < SMALLEST ? SMALLEST : p);
        }
    }
    losses = block_sum(losses);
    counted = block_sum(counted);
    if (threadIdx.x) return;
    partials[blockIdx.x] = losses;
    partials[gridDim.x + blockIdx.x] = counted;
}
INSTANCES(softmax_loss_forward, FLOATS)

__device__ __forceinline__ float divisor_of(float divisor, float valid) {
    return divisor > 0.0f ? divisor : fmaxf(valid, 1.0f);
}

// valid = the number of positions that count; loss = the sum of the partial ones over the divisor, or over `valid` if
// that is 0. wrong[1] = 2^32 + the bits of the label that wrong[0] tells of. One block.
__global__ void softmax_loss_finish(const float* partials, int blocks, float divisor, float* loss, float* valid,
                                    const float* labels, int64* wrong) {
    float losses = 0.0f, counted = 0.0f;
    for (int i = threadIdx.x; i < blocks; i += blockDim.x) {
        losses += partials[i];
        counted += partials[blocks + i];
    }
    losses = block_sum(losses);
    counted = block_sum(counted);
    if (threadIdx.x) return;
    *valid = counted;
    *loss = losses / divisor_of(divisor, counted);
    if (wrong[0] && !wrong[1]) {
        const int64 position = BEYOND - wrong[0];
        wrong[0] = position + 1;
        wrong[1] = (1ll << 32) + __float_as_uint(labels[position]);
    }
}
INSTANCES(softmax_loss_finish)

// dx = (probability - 1 at the label) * slope / divisor; 0 where the label is ignored or wrong.
template <typename T>
__global__ void softmax_loss_backward(const float* probability, const float* labels, T* dx, const float* slope,
                                      const float* valid, float divisor, int64 positions, int64 classes, int64 inner,
                                      int64 outer_stride, int64 inner_stride, int64 class_stride, int64 dx_outer,
                                      int64 dx_inner, int64 dx_class, int ignores, int ignored) {
    const Positions from{inner, outer_stride, inner_stride, class_stride}, to{inner, dx_outer, dx_inner, dx_class};
    const float scale = __fdiv_rn(*slope, divisor_of(divisor, *valid));
    POSITIONS_OF_WARP(positions) {
        const float* p = probability + from.at(position);
        T* d = dx + to.at(position);
        const int64 label = read_label(labels[position], classes, ignores, ignored);
        for (int64 k = threadIdx.x % 32; k < classes; k += 32) {
            const float distance = p[k * from.class_stride] - (k == label ? 1.0f : 0.0f);
            d[k * to.class_stride] = from_float<T>(label < 0 ? 0.0f : __fmul_rn(distance, scale));
        }
    }
}
INSTANCES(softmax_loss_backward, FLOATS)
