"""Converts nets and weights between Caffe's files, ONNX files.

`writing/` writes a net as an ONNX file, `reading/` reads an ONNX file as a net, and `weights.py` reads weights alone.
"""
