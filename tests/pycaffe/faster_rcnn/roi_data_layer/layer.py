"""Images of different sizes, one in each batch, with bright rectangles as objects: class 1 wide, class 2 tall."""

import caffe
import numpy as np
from rpn.geometry import parameters


class RoIDataLayer(caffe.Layer):
    def setup(self, bottom, top):
        self.params = parameters(self.param_str)
        self.random = np.random.RandomState(self.params.get("seed", 1))
        self.served = []
        top[0].reshape(1, 3, 64, 64)
        top[1].reshape(1, 3)
        top[2].reshape(1, 5)

    def forward(self, bottom, top):
        height, width = self.random.randint(6, 11, 2) * 8
        image = self.random.normal(0, 0.1, (1, 3, height, width))
        objects = []
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.randint(1, 3)
            w, h = ((28, 16), (16, 28))[kind - 1]
            x, y = self.random.randint(0, width - w), self.random.randint(0, height - h)
            image[0, :, y : y + h, x : x + w] = [[[1]], [[kind - 1.5]], [[1.5 - kind]]]
            objects.append((x, y, x + w - 1, y + h - 1, kind))
        self.served.append((height, width, len(objects)))
        for blob, values in zip(top, (image, np.array([[height, width, 1.0]]), np.array(objects, float)), strict=True):
            blob.reshape(*values.shape)
            blob.data[...] = values.astype(np.float32, copy=False)

    def backward(self, top, propagate_down, bottom):
        pass

    def reshape(self, bottom, top):
        pass
