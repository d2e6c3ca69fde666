"""Layers of a region proposal network, in the style of scripts for Faster R-CNN."""
