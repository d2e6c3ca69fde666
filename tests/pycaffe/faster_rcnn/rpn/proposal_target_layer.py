"""Classes and box targets of proposals."""

import caffe
import numpy as np

from rpn.geometry import encoded, overlaps, parameters


class ProposalTargetLayer(caffe.Layer):
    def setup(self, bottom, top):
        self.classes = parameters(self.param_str)["num_classes"]
        top[0].reshape(1, 5)
        top[1].reshape(1, 1)
        for blob in top[2:]:
            blob.reshape(1, 4 * self.classes)

    def forward(self, bottom, top):
        gt = bottom[1].data
        rois = np.vstack([bottom[0].data, np.hstack([np.zeros((len(gt), 1)), gt[:, :4]])])
        overlap = overlaps(rois[:, 1:], gt[:, :4])
        match, best = overlap.argmax(axis=1), overlap.max(axis=1)
        labels = np.where(best >= 0.5, gt[match, 4], 0).astype(int)
        codes = encoded(rois[:, 1:], gt[match, :4]) / [0.1, 0.1, 0.2, 0.2]
        targets, weights = np.zeros((2, len(rois), self.classes, 4))
        foreground = np.flatnonzero(labels)
        targets[foreground, labels[foreground]] = codes[foreground]
        weights[foreground, labels[foreground]] = 1
        found = [rois, labels[:, None], *(values.reshape(len(rois), -1) for values in (targets, weights, weights))]
        for blob, values in zip(top, found, strict=True):
            blob.reshape(*values.shape)
            blob.data[...] = values

    def backward(self, top, propagate_down, bottom):
        pass

    def reshape(self, bottom, top):
        pass
