"""Layers of Caffe's forks, one file a family."""

from fcaffe.net.registry import declare

declare(
    __name__,
    {
        "annotated_data": "AnnotatedData",
        "axpy": "Axpy",
        "batch_norm": "BN",
        "ctc": "CTCLoss CtcLoss WarpCTCLoss CTCGreedyDecoder",
        "dense_image_data": "DenseImageData",
        "detections": "DetectionOutput DetectionEvaluate",
        "dice_loss": "DiceCoefLoss",
        "face": "CenterLoss MarginInnerProduct TripletLoss",
        "focal_loss": "FocalLoss SoftmaxFocalLoss SigmoidFocalLoss",
        "lstm": "Lstm",
        "margins": "LabelSpecificAdd LabelSpecificMargin CosinAddm CombinedMargin",
        "matmul": "MatMul",
        "mobile": "ConvolutionDepthwise DepthwiseConvolution ReLU6",
        "multibox_loss": "MultiBoxLoss",
        "normalize": "Normalize",
        "ohem": "BoxAnnotatorOHEM SmoothL1LossOHEM SoftmaxWithLossOHEM",
        "permute": "Permute Transpose Reverse Flip ShuffleChannel Reorg",
        "prior_box": "PriorBox",
        "proposal": "Proposal",
        "region_loss": "RegionLoss",
        "resize": "Interp DeephiResize Upsample",
        "roi_pooling": "ROIPooling PSROIPooling ROIAlign",
        "smooth_l1": "SmoothL1Loss L1Loss",
        "yolo_v1": "DetectionLoss EvalDetection",
        "yolov3": "Yolov3 Yolov3DetectionOutput",
    },
)
