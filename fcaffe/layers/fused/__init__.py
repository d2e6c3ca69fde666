"""Layers that do the work of several in whole passes; the rules of `fcaffe.net.rewrite`, in the order of trial."""

from fcaffe.layers.fused.batch_norm_residual import BatchNormResidual
from fcaffe.layers.fused.batch_norm_scale import BatchNormScale
from fcaffe.layers.fused.concat_convolution import ConcatConvolution
from fcaffe.layers.fused.convolution_relu import ConvolutionReLU
from fcaffe.layers.fused.folded_convolution import FoldedConvolution
from fcaffe.layers.fused.in_pieces import in_exact_pieces as batch_in_exact_pieces
from fcaffe.layers.fused.in_pieces import in_pieces as batch_in_pieces
from fcaffe.layers.fused.inner_product_relu import InnerProductReLU
from fcaffe.layers.fused.pooled_concat import pooled_before_concat
from fcaffe.layers.fused.pooling_relu import PoolingReLU
from fcaffe.layers.fused.scale_relu import ScaleReLU
from fcaffe.layers.fused.sparse_places import without_unread_places
from fcaffe.layers.fused.stepwise_convolution import StepwiseConvolution
from fcaffe.layers.fused.sum_relu import SumReLU
from fcaffe.net.rewrite import register_change, register_fusion, register_training_change

for rule in (
    FoldedConvolution,
    StepwiseConvolution,
    PoolingReLU,
    BatchNormResidual,
    BatchNormScale,
    ScaleReLU,
    SumReLU,
    ConcatConvolution,
    ConvolutionReLU,
    InnerProductReLU,
):
    register_fusion(rule)

register_change(without_unread_places, without_unread_places)
register_change(batch_in_pieces, batch_in_exact_pieces)
register_training_change(pooled_before_concat)
