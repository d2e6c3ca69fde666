"""Compares the run that wrote a state with the run that resumes from it."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from fcaffe import log
from fcaffe.errors import OtherRunError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.run import Run

# Types of solvers whose histories have the same meaning.
ALIKE = frozenset({"SGD", "Nesterov"})

_NAMES = {
    "solver_type": "type",
    "batch_size": "batch size",
    "random_seed": "random_seed",
    "iter_size": "iter_size",
    "workers": "workers",
    "engine": "engine",
    "compression": "--compress",
    "shards": "--reproducible",
    "grown_batch": "--grow-batch",
}


def made_with(run: Run) -> Any:
    """The MadeWith message of a run, without the checksum of the weights."""
    param = run.param
    made = pb.MadeWith(
        solver_type=param.type,
        batch_size=run.share.total,
        iter_size=param.iter_size,
        random_seed=param.random_seed,
        workers=run.workers.size,
        engine=run.engine.name,
        compression=run.exchange.compression,
        shards=run.shards.size if run.shards else 0,
    )
    for node in run.net.nodes:
        if node.layer.type != "Split":  # inserted by the net
            layer = made.layer.add(name=node.name, type=node.layer.type)
            for blob in node.layer.blobs:
                layer.shape.add(dim=run.context.whole_shape(blob))
    return made


def refuse_other(made: Any, now: Any, path: str) -> None:
    """Raise OtherRunError if the run `now` cannot resume from the state that the run `made` wrote to `path`."""
    if made.solver_type != now.solver_type and not ALIKE.issuperset({made.solver_type, now.solver_type}):
        raise OtherRunError(
            f"{path} is the state of a solver of type {made.solver_type}, and this one is of type {now.solver_type}, "
            "whose history means something else: set the type back, or give the model as --weights"
        )
    theirs, ours = (
        [(layer.name, [tuple(shape.dim) for shape in layer.shape]) for layer in run.layer if layer.shape]
        for run in (made, now)
    )
    for (their_name, their_shapes), (name, shapes) in zip_longest(theirs, ours, fillvalue=("", [])):
        if (their_name, their_shapes) != (name, shapes):
            none = "no further layer with parameters"
            then = f'the layer "{their_name}" with parameters of the shapes {their_shapes}' if their_name else none
            here = f'"{name}" with {shapes}' if name else none
            raise OtherRunError(
                f"{path} is the state of another net: it has {then} where this net has {here}; give the net that it "
                "was made with, or the model as --weights"
            )


def tell_differences(made: Any, now: Any, path: str) -> None:
    """Log the differences between this run and the run that wrote the state at `path`."""
    fields = [field for field in _NAMES if getattr(made, field) != getattr(now, field)]
    if made.shards and made.shards == now.shards:  # the result does not depend on the number of workers
        fields = [field for field in fields if field != "workers"]
    then, here = ([f"{_NAMES[field]} {_said(run, field)}" for field in fields] for run in (made, now))
    theirs, ours = ({(layer.name, layer.type) for layer in run.layer} for run in (made, now))
    for side, layers in ((then, theirs - ours), (here, ours - theirs)):
        side += [f'layer "{name}" of type {kind}' for name, kind in sorted(layers)]
    if then or here:
        log.warning(
            f"{path} was made with {', '.join(then) or 'less'}; this run has {', '.join(here) or 'none of it'}. It "
            "goes on, but not as that one would have"
        )
    if made.random_seed != now.random_seed:
        log.warning("The random streams go on from the state; the other random_seed has no effect")


def _said(run: Any, field: str) -> str:
    value = getattr(run, field)
    return str(value) if value or field == "random_seed" else "none"
