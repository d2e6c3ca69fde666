"""Writes nets as ONNX files.

`graph.py` has the registry of functions that write the nodes of a layer type. The functions are in the other files, by
family. `refused.py` has the types that ONNX cannot express, with the reasons. A function gets a `Step`, which records
the fields that it reads of the layer's messages. A field that is left, and is not at its default, is an error.
"""
