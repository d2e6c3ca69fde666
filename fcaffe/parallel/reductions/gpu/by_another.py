"""ByAnother: base of reductions of GPU buffers that delegate the sums to another reduction."""

from __future__ import annotations

from fcaffe.parallel.reductions.gpu.reduction import DeviceReduction
from fcaffe.parallel.reductions.reduction import Reduction


class ByAnother(DeviceReduction):
    """Delegates to `another`, which the constructor of a subclass creates."""

    another: Reduction

    @property
    def messages(self) -> int:
        return self.another.messages

    @property
    def bytes_sent(self) -> int:
        return self.another.bytes_sent

    def keep_to_tree(self) -> None:
        self.another.keep_to_tree()

    def close(self) -> None:
        self.ends_on.synchronize()
        self.another.close()
        super().close()
