"""Which layers of a prototxt are in the net: the include and exclude rules on phase, level and stages."""

from __future__ import annotations

from typing import Any

from fcaffe import log
from fcaffe.errors import NetError
from fcaffe.proto import caffe_pb2 as pb


def filter_net(param: Any) -> Any:
    """A copy of the NetParameter with only those layers that its `state` admits."""
    filtered = pb.NetParameter()
    filtered.CopyFrom(param)
    del filtered.layer[:]
    for layer in param.layer:
        if layer.include and layer.exclude:
            raise NetError(f'layer "{layer.name}": give either include or exclude rules, not both')
        if layer.include:
            included = any(meets_rule(param.state, rule, layer.name) for rule in layer.include)
        else:
            included = not any(meets_rule(param.state, rule, layer.name) for rule in layer.exclude)
        if included:
            filtered.layer.add().CopyFrom(layer)
    return filtered


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
