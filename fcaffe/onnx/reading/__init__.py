"""Reads ONNX models as Caffe nets: a prototxt with the ONNX names, and a model with the weights.

1. `load.py` reads the file without trusting it: limits of size, external data inside the model's folder only, nodes in
   an order that has no cycle, attributes of known types. onnx converts operators before version 7.
2. `convert.py` takes the nodes that the outputs need, in order. onnx infers the types and shapes of a node's outputs,
   and computes them if they follow from constants and shapes (`inference.py`). Any other node becomes Caffe layers, by
   the function that `rules.py` names for its operator. These functions are in the other files, by family. An operator
   without one is read by the simpler operators of its definition in ONNX, if it has any.
3. A function gets a `Step` (`graph.py`), which records the attributes, inputs and outputs that it reads. An attribute
   that is left, and is not at the default of its version, is an error. So is a layer whose top, set up for shapes
   alone, has another shape than onnx infers.
4. A node that Caffe cannot express gives a refusal, an error that stands for its outputs. A later node may do without:
   the last Mul of a GELU finds the Erf behind it and replaces all of it. If an output of the model needs a refused
   value, the conversion fails with that error. It names the node, the reason, and what to change in the model.
5. Layers that no output needs are left out. Then layers and blobs get their names: a layer that of its node, a blob
   that of its ONNX value.

A node is merged with the layers that earlier nodes have become: a Bias behind an InnerProduct becomes its bias term, a
Reshape of a Reshape one Reshape. All layers are BVLC Caffe's unless the target takes others.

Conversions are exact. Layers that move values do so by weights of 0 and 1, or by Im2col (see `reorder.py`). GELU with
the error function is the one formula that Caffe's functions do not contain; it is computed to the precision of float32
(see `activations.py`).
"""
