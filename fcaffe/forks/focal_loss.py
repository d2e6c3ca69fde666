"""Focal losses (Lin et al., 2017): cross entropy in which well classified values count less."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.loss import LossLayer, SigmoidCrossEntropyLoss, SoftmaxWithLoss
from fcaffe.net import Array, Blob, Half, register
from fcaffe.proto import forks


def modulated(layer: LossLayer, losses: Array, alpha: Array | float) -> tuple[Array, Array]:
    """The `factors` of losses -log(p): alpha (1 - p)^gamma, or alpha (1 + p)^gamma for `type: ONEADDP`."""
    xp, p = layer.xp, layer.param.focal_loss_param
    if p.type == p.LINEAR or p.gamma < 0:
        raise layer.error("focal_loss_param needs type ORIGIN or ONEADDP, and gamma of at least 0")
    sign, gamma, truth = -1 if p.type == p.ONEADDP else 1, xp.float32(p.gamma), xp.exp(-losses)
    base = 1 - sign * truth
    power = alpha * base**gamma
    return power, power + sign * gamma * power / xp.maximum(base, xp.float32(1e-10)) * truth * losses


@register("FocalLoss")
@register("SoftmaxFocalLoss")
class SoftmaxFocalLoss(SoftmaxWithLoss):
    """SoftmaxWithLoss with focal factors. With a target for each score it becomes a SigmoidFocalLoss."""

    fork: str | None = forks.FOCAL
    traits = replace(SoftmaxWithLoss.traits, bottoms=2, labels=(1,), half=Half.NONE)
    takes_targets = False

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[1].count == bottom[0].count:
            self.__class__ = SigmoidFocalLoss  # type: ignore[assignment]
            self.setup(bottom, top)
        else:
            super().setup(bottom, top)

    def factors(self, bottom: list[Blob], shape: tuple[int, ...]) -> tuple[Array, Array]:
        return modulated(self, self.losses(self.classes(bottom).values), self.param.focal_loss_param.alpha)


@register("SigmoidFocalLoss")
class SigmoidFocalLoss(SigmoidCrossEntropyLoss):
    """SigmoidCrossEntropyLoss, of targets 0 and 1, with focal factors; targets 0 have 1 - alpha for alpha."""

    fork = forks.FOCAL
    traits = replace(SigmoidCrossEntropyLoss.traits, bottoms=2, labels=(1,))

    def factors(self, bottom: list[Blob], shape: tuple[int, ...]) -> tuple[Array, Array]:
        alpha = self.xp.float32(self.param.focal_loss_param.alpha)
        return modulated(self, self.losses(bottom), self.xp.where(bottom[1].data.reshape(shape) == 1, alpha, 1 - alpha))
