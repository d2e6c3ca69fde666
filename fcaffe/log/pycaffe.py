"""Log lines of Caffe's Python interface."""

from __future__ import annotations

from fcaffe.log.lines import warning
from fcaffe.log.sentence import Sentence

of_script = Sentence("{message}", "_caffe.cpp:68")
timer_never_run = Sentence("Timer has never been run before reading time.", "benchmark.cpp:84", "W")


def legacy_net(network_file: str, weights: str, phase: int) -> None:
    """A script has called the older constructor of Net."""
    warning("DEPRECATION WARNING - deprecated use of Python interface", "_caffe.cpp:139")
    warning('Use this instead (with the named "weights" parameter):', "_caffe.cpp:140")
    warning(f"Net('{network_file}', {phase}, weights='{weights}')", "_caffe.cpp:142")
