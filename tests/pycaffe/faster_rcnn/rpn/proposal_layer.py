"""Regions of interest from the scores and codes of anchors."""

import caffe
import numpy as np

from rpn.geometry import decoded, parameters, shifted_anchors, without_overlap

MOST = {"TRAIN": (60, 20), "TEST": (40, 10)}  # before and after suppression


class ProposalLayer(caffe.Layer):
    def setup(self, bottom, top):
        self.params = parameters(self.param_str)
        top[0].reshape(1, 5)
        if len(top) > 1:
            top[1].reshape(1, 1, 1, 1)

    def forward(self, bottom, top):
        assert bottom[0].data.shape[0] == 1, "one image a batch"
        before, after = MOST["TRAIN" if self.phase == caffe.TRAIN else "TEST"]
        anchors = len(self.params["sizes"])
        scores = bottom[0].data[0, anchors:].transpose(1, 2, 0).reshape(-1)
        height, width = bottom[1].data.shape[-2:]
        codes = bottom[1].data[0].reshape(anchors, 4, height, width).transpose(2, 3, 0, 1).reshape(-1, 4)
        boxes = shifted_anchors(height, width, self.params["feat_stride"], self.params["sizes"])
        boxes = decoded(boxes, codes, *bottom[2].data[0, :2])
        order = scores.argsort()[::-1][:before]
        kept = order[without_overlap(boxes[order], 0.7)[:after]]
        blob = np.hstack((np.zeros((len(kept), 1), np.float32), boxes[kept].astype(np.float32, copy=False)))
        top[0].reshape(*(blob.shape))
        top[0].data[...] = blob
        if len(top) > 1:
            top[1].reshape(*(scores[kept].shape))
            top[1].data[...] = scores[kept]

    def backward(self, top, propagate_down, bottom):
        pass

    def reshape(self, bottom, top):
        pass
