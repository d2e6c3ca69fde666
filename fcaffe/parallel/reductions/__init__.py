"""Ways to add up gradients over all ranks, by the names that `--reduce` takes. Importing this registers them."""

from fcaffe.parallel.reductions import auto, halving, hierarchical, ring, server, tree  # noqa: F401
from fcaffe.parallel.reductions.create import create_reduction  # which imports those for GPUs
from fcaffe.parallel.reductions.reduction import Reduction, reduction_names, register

__all__ = ["Reduction", "create_reduction", "reduction_names", "register"]
