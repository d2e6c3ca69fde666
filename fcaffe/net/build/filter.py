"""Which layers of a prototxt are in the net: the include and exclude rules on phase, level and stages."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format

from fcaffe import log
from fcaffe.errors import NetError
from fcaffe.proto import caffe_pb2 as pb


def filter_net(param: Any, to_run: bool = True) -> Any:
    """A copy of the NetParameter with only those layers that its `state` admits.

    Raises NetError for rules that contradict each other and, with `to_run`, for bottoms that no remaining layer
    writes.
    """
    filtered = pb.NetParameter()
    filtered.CopyFrom(param)
    del filtered.layer[:]
    left_out = []
    for layer in param.layer:
        if layer.include and layer.exclude:
            raise NetError(f'layer "{layer.name}": give either include or exclude rules, not both')
        if layer.include:
            included = any(meets_rule(param.state, rule, layer.name) for rule in layer.include)
        else:
            included = not any(meets_rule(param.state, rule, layer.name) for rule in layer.exclude)
        if included:
            filtered.layer.add().CopyFrom(layer)
        else:
            left_out.append(layer)
    if to_run:
        _check_bottoms(filtered, left_out)
    return filtered


def _check_bottoms(param: Any, left_out: list[Any]) -> None:
    """Refuse a net with a bottom whose layers are all excluded by rules: often a stage is missing."""
    known: set[str] = set(param.input)
    for layer in param.layer:
        for index, blob in enumerate(layer.bottom):
            if blob in known:
                continue
            makers = [other for other in left_out if blob in other.top and blob not in other.bottom]
            if makers:
                stages = " and ".join(f'stage "{stage}"' for stage in param.state.stage if stage) or "no stage"
                raise NetError(
                    f"Unknown bottom blob '{blob}' (layer '{layer.name}', bottom index {index}): in phase "
                    f"{pb.Phase.Name(param.state.phase)} with {stages} this net is without "
                    + " and ".join(f"the layer '{maker.name}', {_rules(maker)}" for maker in makers)
                )
        known.update(layer.top)


def _rules(layer: Any) -> str:
    """A layer's include or exclude rules, as a prototxt has them."""
    word = "include" if layer.include else "exclude"
    rules = [text_format.MessageToString(rule, as_one_line=True) for rule in layer.include or layer.exclude]
    return " ".join(f"{word} {{ {rule} }}" for rule in rules)


def meets_rule(state: Any, rule: Any, layer: str) -> bool:
    """Whether a NetState fulfils all conditions of a NetStateRule; the first one that it fails is logged."""
    phase, level, stages = state.phase, state.level, state.stage
    has, low, high = rule.HasField, rule.min_level, rule.max_level
    checks = [
        (has("phase") and rule.phase != phase, f"phase ({phase}) differed from the phase ({rule.phase})", 296),
        (has("min_level") and level < low, f"level ({level}) is above the min_level ({low})", 306),
        (has("max_level") and level > high, f"level ({level}) is above the max_level ({high})", 316),
        *((stage not in stages, f"did not contain stage '{stage}'", 332) for stage in rule.stage),
        *((stage in stages, f"contained a not_stage '{stage}'", 347) for stage in rule.not_stage),
    ]
    for fails, what, line in checks:
        if fails:
            log.rule_differs(f"The NetState {what} specified by a rule in layer {layer}", line)
            return False
    return True
