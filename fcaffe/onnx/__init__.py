"""Converts nets and weights between Caffe's files, ONNX files and state dicts of PyTorch.

`writing/` writes a net as an ONNX file, `reading/` reads an ONNX file as a net, and `weights.py` reads weights alone.
"""
