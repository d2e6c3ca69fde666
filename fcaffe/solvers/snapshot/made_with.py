"""What a state was made with, against the run that goes on from it: refused if it cannot, told if it merely differs."""

from __future__ import annotations

from typing import Any

from fcaffe import log
from fcaffe.errors import OtherRunError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.run import Run

# Types of solvers whose histories mean the same, so that one can go on from another's.
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
    """The MadeWith of a run, without the weights' checksum."""
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
        grown_batch=run.schedule.most_passes * run.share.total,
    )
    for node in run.net.nodes:
        if node.layer.type != "Split":  # which the net puts in by itself
            layer = made.layer.add(name=node.name, type=node.layer.type)
            for blob in node.layer.blobs:
                layer.shape.add(dim=blob.shape)
    return made


def refuse_other(made: Any, now: Any, path: str) -> None:
    """Raise OtherRunError if a run, `now`, cannot go on from a state that another, `made`, has written to `path`."""
    if made.solver_type != now.solver_type and not ALIKE.issuperset({made.solver_type, now.solver_type}):
        raise OtherRunError(
            f"{path} is the state of a solver of type {made.solver_type}, and this one is of type {now.solver_type}, "
            "whose history means something else: set the type back, or give the model as --weights"
        )
    theirs, ours = (
        [(layer.name, [tuple(shape.dim) for shape in layer.shape]) for layer in run.layer if layer.shape]
        for run in (made, now)
    )
    for (their_name, their_shapes), (name, shapes) in zip(theirs, ours, strict=False):
        if (their_name, their_shapes) != (name, shapes):
            raise OtherRunError(
                f'{path} is the state of another net: it has the layer "{their_name}" with parameters of the shapes '
                f'{their_shapes} where this net has "{name}" with {shapes}; give the net that it was made with, or '
                "the model as --weights"
            )
    if len(theirs) != len(ours):
        names = ", ".join(name for name, _ in (theirs[len(ours) :] or ours[len(theirs) :]))
        raise OtherRunError(
            f"{path} is the state of another net: of it and this one only one has the layers {names}; give the net "
            "that it was made with, or the model as --weights"
        )


def tell_differences(made: Any, now: Any, path: str) -> None:
    """Say in one line of the log how this run differs from the one that has written the state at `path`."""
    fields = [field for field in _NAMES if getattr(made, field) != getattr(now, field)]
    if made.shards and made.shards == now.shards:  # the bits are those of any number of workers
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
