"""The summary of a model file as JSON."""

from __future__ import annotations

import math
from typing import Any

from fcaffe.model_files import Model


def model_to_json(model: Model) -> dict[str, Any]:
    """Layers with their blobs, and totals. Shared blobs count once."""
    return {
        "name": model.param.name,
        "layers": [
            {
                "name": layer.name,
                "type": layer.param.type,
                "blobs": [list(blob.shape) for blob in layer.blobs],
                "dtypes": ["" if blob.data is None else str(blob.data.dtype) for blob in layer.blobs],
                "diffs": any(blob.diff is not None for blob in layer.blobs),
            }
            for layer in model.layers
        ],
        "params": {layer.name: [list(blob.shape) for blob in layer.blobs] for layer in model.layers if layer.blobs},
        "total_params": total_params(model),
        "bytes": sum(blob.nbytes for layer in model.layers for blob in layer.blobs),
    }


def total_params(model: Model) -> int:
    shared = {(id(layer), index) for layer, index, _, _ in model.shared()}
    return sum(
        math.prod(blob.shape)
        for layer in model.layers
        for index, blob in enumerate(layer.blobs)
        if blob.has_data and (id(layer), index) not in shared
    )
