"""The layer types and the modules that define them. A module is loaded when a net names one of its types.

Importing this package declares also the types of Caffe's forks."""

from fcaffe import plugins
from fcaffe.layers import fused  # noqa: F401 - the rules of rewriting
from fcaffe.net.registry import declare

declare(
    __name__,
    {
        "accuracy": "Accuracy",
        "activations": "ReLU Sigmoid TanH Power Softmax",
        "batch_norm": "BatchNorm",
        "concat": "Concat Slice Tile Crop",
        "convolution": "Convolution Deconvolution Im2col",
        "data": "Data ImageData WindowData",
        "dropout": "Dropout",
        "elementwise": "AbsVal Exp Log Clip Threshold ELU PReLU BNLL Swish",
        "eltwise": "Eltwise",
        "hdf5": "HDF5Data HDF5Output",
        "inner_product": "InnerProduct",
        "input": "Input DummyData Parameter",
        "logistic_loss": "MultinomialLogisticLoss InfogainLoss",
        "loss": "SoftmaxWithLoss SigmoidCrossEntropyLoss EuclideanLoss",
        "margin_loss": "HingeLoss ContrastiveLoss",
        "memory_data": "MemoryData",
        "normalization": "LRN MVN",
        "pooling": "Pooling",
        "recurrent": "RNN LSTM LSTMUnit",
        "reduction": "Reduction ArgMax",
        "reshape": "Flatten Reshape",
        "rows": "Embed Filter BatchReindex",
        "scale": "Bias Scale",
        "split": "Split Silence",
        "spp": "SPP",
    },
)
plugins.load_own()
