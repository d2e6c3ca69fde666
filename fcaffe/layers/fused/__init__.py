"""Fused layers, the rules of `fcaffe.net.run.rewrite`. The rules run in the order of this file."""

from fcaffe.layers.fused.batch_norm_scale import BatchNormResidual, BatchNormScale
from fcaffe.layers.fused.folded_convolution import FoldedConvolution
from fcaffe.layers.fused.relu import ConvolutionReLU, with_signs
from fcaffe.layers.fused.subsampling import without_unread_positions
from fcaffe.net.run.rewrite import register_fusion, register_rule

register_fusion(FoldedConvolution)
register_fusion(BatchNormResidual)
register_fusion(BatchNormScale)
register_fusion(ConvolutionReLU)
register_rule(without_unread_positions)
register_rule(with_signs)
