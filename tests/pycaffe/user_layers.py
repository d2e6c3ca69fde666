"""Python layers as people write them for Caffe, for the tests of `type: "Python"`."""

import caffe
import numpy as np


class EuclideanLoss(caffe.Layer):
    """The same as Caffe's own layer."""

    def setup(self, bottom, top):
        if len(bottom) != 2:
            raise Exception("Need two inputs to compute distance.")

    def reshape(self, bottom, top):
        if bottom[0].count != bottom[1].count:
            raise Exception("Inputs must have the same dimension.")
        self.diff = np.zeros_like(bottom[0].data, dtype=np.float32)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.diff[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = np.sum(self.diff**2) / max(bottom[0].num, 1) / 2.0

    def backward(self, top, propagate_down, bottom):
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = sign * top[0].diff * self.diff / bottom[i].num


class Times(caffe.Layer):
    """top = param_str * bottom, written through views of another shape; also in place."""

    def setup(self, bottom, top):
        self.factor = float(self.param_str)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        n = max(bottom[0].num, 1)
        top[0].data.reshape(n, -1)[:] = self.factor * bottom[0].data.reshape(n, -1)

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff.ravel()[:] = self.factor * top[0].diff.ravel()


class Shift(caffe.Layer):
    """top = bottom + parameter, one value per channel."""

    def setup(self, bottom, top):
        self.blobs.add_blob(1, bottom[0].channels)
        self.blobs[0].data[...] = 0.5

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        n, c = bottom[0].num, bottom[0].channels
        shift = self.blobs[0].data.reshape(1, c, 1)
        top[0].data.reshape(n, c, -1)[...] = bottom[0].data.reshape(n, c, -1) + shift

    def backward(self, top, propagate_down, bottom):
        n, c = bottom[0].num, bottom[0].channels
        self.blobs[0].diff[0] += top[0].diff.reshape(n, c, -1).sum(axis=(0, 2))
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff


class Phase(caffe.Layer):
    """A scalar top that holds the phase."""

    def reshape(self, bottom, top):
        top[0].reshape()

    def forward(self, bottom, top):
        top[0].data[()] = self.phase


class Broken(caffe.Layer):
    """Fails in the method that param_str names."""

    def setup(self, bottom, top):
        self.fail("setup")

    def reshape(self, bottom, top):
        self.fail("reshape")
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        self.fail("forward")

    def backward(self, top, propagate_down, bottom):
        self.fail("backward")

    def fail(self, method):
        if self.param_str == method:
            {}["no such key"]


class Forgetful(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(2)


class NoLayer:
    pass


class Counting(caffe.Layer):
    """top = bottom + the number of passes before this one, which goes into snapshots."""

    def setup(self, bottom, top):
        self.passes = 0

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data + self.passes
        self.passes += 1

    def snapshot_state(self):
        return {"passes": self.passes}

    def restore_state(self, state):
        self.passes = int(state["passes"])


class Reference(caffe.Layer):
    """top = param_str * the first bottom; it writes no gradient for the second one, whose shape it could look at."""

    def setup(self, bottom, top):
        self.factor = float(self.param_str)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = self.factor * top[0].diff
