"""Writes nets as ONNX files, and reads weights from them.

`graph.py` has the registry of functions that write the nodes of a layer type. The functions are in the other files, by
family. `refused.py` has the types that ONNX cannot express, with the reasons.
"""
