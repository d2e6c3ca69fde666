"""The data layer of a Faster R-CNN."""
