"""Every layer type. Importing this package fills the registry of `fcaffe.net.layer`."""

from fcaffe.layers import (  # noqa: F401
    accuracy,
    activations,
    batch_norm,
    concat,
    convolution,
    data,
    dropout,
    dummy_data,
    eltwise,
    inner_product,
    input,
    loss,
    lrn,
    memory_data,
    pooling,
    reduction,
    reshape,
    scale,
    softmax,
    split,
)
