"""Nets as ONNX files, and weights out of them.

`graph.py` has the registry: a function for each layer type writes the nodes that do its work. They stand by family in
the other files; `refused.py` has the types for which ONNX has nothing, with the reasons.
"""
