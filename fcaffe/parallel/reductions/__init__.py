"""Ways to add up gradients over all ranks, by the names that `--reduce` takes."""

from fcaffe.parallel.reductions.auto import Auto
from fcaffe.parallel.reductions.halving import Halving
from fcaffe.parallel.reductions.hierarchical import Hierarchical
from fcaffe.parallel.reductions.hosts import Hosts
from fcaffe.parallel.reductions.mpi import Mpi
from fcaffe.parallel.reductions.nccl import Nccl
from fcaffe.parallel.reductions.null import Null
from fcaffe.parallel.reductions.reduction import Reduction, create_reduction, reduction_names, register
from fcaffe.parallel.reductions.ring import Ring
from fcaffe.parallel.reductions.server import Server
from fcaffe.parallel.reductions.shared import Shared
from fcaffe.parallel.reductions.staged import Direct, Staged
from fcaffe.parallel.reductions.tree import Tree

__all__ = [
    "Auto",
    "Direct",
    "Halving",
    "Hierarchical",
    "Hosts",
    "Mpi",
    "Nccl",
    "Null",
    "Reduction",
    "Ring",
    "Server",
    "Shared",
    "Staged",
    "Tree",
    "create_reduction",
    "reduction_names",
    "register",
]
