"""Labels and box targets of the anchors of an image."""

import caffe
import numpy as np

from rpn.geometry import encoded, overlaps, parameters, shifted_anchors


class AnchorTargetLayer(caffe.Layer):
    def setup(self, bottom, top):
        self.params = parameters(self.param_str)
        height, width = bottom[0].data.shape[-2:]
        self.anchors = len(self.params["sizes"])
        top[0].reshape(1, 1, self.anchors * height, width)
        for blob in top[1:4]:
            blob.reshape(1, 4 * self.anchors, height, width)

    def forward(self, bottom, top):
        height, width = bottom[0].data.shape[-2:]
        gt, info = bottom[1].data, bottom[2].data[0]
        anchors = shifted_anchors(height, width, self.params["feat_stride"], self.params["sizes"])
        inside = (anchors[:, :2] >= -4).all(axis=1) & (anchors[:, 2:] < info[1::-1] + 4).all(axis=1)
        overlap = overlaps(anchors, gt[:, :4])
        best = overlap.max(axis=1)
        labels = np.where(best < 0.3, 0.0, -1.0)
        labels[overlap.argmax(axis=0)] = 1
        labels[best >= 0.5] = 1
        labels[~inside] = -1
        targets = encoded(anchors, gt[overlap.argmax(axis=1), :4])
        positive = (labels == 1)[:, None] * np.ones(4)
        count = max((labels >= 0).sum(), 1)

        def as_map(values):
            return values.reshape(height, width, -1).transpose(2, 0, 1)[None]

        found = [labels.reshape(height, width, -1).transpose(2, 0, 1).reshape(1, 1, -1, width)]
        found += [as_map(targets), as_map(positive), as_map(positive / count)]
        for blob, values in zip(top, found, strict=True):
            blob.reshape(*values.shape)
            blob.data[...] = values

    def backward(self, top, propagate_down, bottom):
        pass

    def reshape(self, bottom, top):
        pass
