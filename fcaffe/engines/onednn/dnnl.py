"""The names and numbers of oneDNN 3's `dnnl.h` and `dnnl_types.h` that are used here."""

VERSION = 3
MAX_AXES = 12  # DNNL_MAX_NDIMS

F32, BF16, U8 = 3, 2, 6  # dnnl_data_type_t
AVX, AVX2, AVX512_CORE, AVX512_BF16 = 0x3, 0x7, 0x27, 0xE7  # dnnl_cpu_isa_t

FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD = 64, 96, 128  # dnnl_prop_kind_t

SRC, SRC_1, DST, WEIGHTS, BIAS = 1, 2, 17, 33, 41  # DNNL_ARG_...: which argument of a primitive
WORKSPACE, SCRATCHPAD = 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 129, 145, 161
POST_OPERATION = 32768
ADD, MULTIPLY, MAX, MIN, DIVIDE, SUBTRACT = range(0x1FFF0, 0x1FFF6)  # dnnl_binary_...
GREATER, LESS = 0x1FFF7, 0x1FFF9  # which give 1 or 0; NaN is greater, and not less
RELU, TANH, ABS, SQRT, LINEAR = 0x20, 0x21, 0x24, 0x25, 0x26  # dnnl_eltwise_...
LOGISTIC, EXP, SWISH, CLIP, ROUND, HARD_SWISH = 0x29, 0x2A, 0x2C, 0x2E, 0x32, 0x34
ELU, TANH_BY_DST, ELU_BY_DST, LOGISTIC_BY_DST = 0x22, 0x101, 0x102, 0x104  # gradients in terms of the result
