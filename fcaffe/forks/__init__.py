"""Layers of Caffe's forks, one file a family."""

from fcaffe.net.registry import declare

declare(
    __name__,
    {
        "axpy": "Axpy",
        "ctc": "CTCLoss CtcLoss WarpCTCLoss CTCGreedyDecoder",
        "data": "AnnotatedData DenseImageData",
        "detections": "DetectionOutput DetectionEvaluate",
        "face": "CenterLoss MarginInnerProduct TripletLoss"
        " LabelSpecificAdd LabelSpecificMargin CosinAddm CombinedMargin",
        "losses": "SmoothL1Loss L1Loss FocalLoss SoftmaxFocalLoss SigmoidFocalLoss DiceCoefLoss",
        "lstm": "Lstm",
        "matmul": "MatMul",
        "mobile": "ConvolutionDepthwise DepthwiseConvolution ReLU6",
        "multibox_loss": "MultiBoxLoss",
        "normalization": "BN Normalize",
        "ohem": "BoxAnnotatorOHEM SmoothL1LossOHEM SoftmaxWithLossOHEM",
        "permute": "Permute Transpose Reverse Flip ShuffleChannel Reorg",
        "proposals": "PriorBox Proposal",
        "region_loss": "RegionLoss",
        "resize": "Interp DeephiResize Upsample",
        "roi_pooling": "ROIPooling PSROIPooling ROIAlign",
        "yolo_v1": "DetectionLoss EvalDetection",
        "yolov3": "Yolov3 Yolov3DetectionOutput",
    },
)
