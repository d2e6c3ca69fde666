"""Log lines of Caffe's Python interface."""

from __future__ import annotations

from fcaffe.log.sentence import Sentence

of_script = Sentence("{message}", "_caffe.cpp:68")
timer_never_run = Sentence("Timer has never been run before reading time.", "benchmark.cpp:84", level="W")
# A script has called the older constructor of Net.
legacy_net = Sentence(
    "DEPRECATION WARNING - deprecated use of Python interface", "_caffe.cpp:139",
    'Use this instead (with the named "weights" parameter):', "_caffe.cpp:140",
    "Net('{network_file}', {phase:d}, weights='{weights}')", "_caffe.cpp:142",
    level="W",
)  # fmt: skip
