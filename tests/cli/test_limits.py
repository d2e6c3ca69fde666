"""Nets and files of absurd sizes: one line that names the thing, soon, from every command."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fcaffe.engines import memory
from fcaffe.solvers import memory_need
from tests.cli.conftest import Run
from tests.soon import soon

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("folder")]

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }\n'
LOSS = 'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }\n'
HUGE = 2**62
INFINITE = 'type: "uniform" max: inf'


def layer(kind: str, fields: str, bottom: str = "x") -> str:
    bottom = f'bottom: "{bottom}"' if bottom else ""
    return f'layer {{ name: "it" type: "{kind}" {bottom} top: "y" {fields} }}\n'


def convolution(fields: str) -> str:
    return layer("Convolution", f"convolution_param {{ num_output: 2 {fields} }}")


NETS = {
    "inner product": (
        INPUT + layer("InnerProduct", "inner_product_param { num_output: 4294967295 }"),
        "no memory for a blob of shape .4294967295, 192.",
    ),
    "no output": (INPUT + layer("InnerProduct", "inner_product_param { num_output: 0 }"), "must be positive"),
    "input": (layer("Input", f"input_param {{ shape {{ dim: {HUGE} }} }}", ""), str(HUGE)),
    "dummy": (layer("DummyData", f"dummy_data_param {{ shape {{ dim: 2 dim: {HUGE} }} }}", ""), str(HUGE)),
    "reshape": (INPUT + layer("Reshape", f"reshape_param {{ shape {{ dim: {HUGE} }} }}"), str(HUGE)),
    "kernel": (INPUT + convolution("kernel_size: 2000000000"), "2000000000"),
    "pad": (INPUT + convolution("kernel_size: 3 pad: 4294967295"), "at most"),
    "stride": (INPUT + layer("Pooling", "pooling_param { kernel_size: 3 stride: 4294967295 }"), "at most"),
    "no stride": (INPUT + layer("Pooling", "pooling_param { kernel_size: 3 stride: 0 }"), "must be positive"),
    "no dilation": (INPUT + convolution("kernel_size: 3 dilation: 0"), "dilation must be positive"),
    "no group": (INPUT + convolution("kernel_size: 3 group: 0"), "group 0"),
    "tiles": (INPUT + layer("Tile", "tile_param { axis: 0 tiles: 2147483647 }"), "4294967294, 3, 8, 8|out of memory"),
    "levels": (INPUT + layer("SPP", "spp_param { pyramid_height: 4294967295 }"), "pyramid_height"),
    "filler": (
        INPUT + layer("InnerProduct", f"inner_product_param {{ num_output: 2 weight_filler {{ {INFINITE} }} }}"),
        "differ by more than float32 holds",
    ),
    "bottoms": (INPUT + 'layer { name: "it" type: "Eltwise" top: "y" ' + 'bottom: "z" ' * 20000 + "}", "blob 'z'"),
    "a file without a net": ("# nothing\n", "net.prototxt has no layers"),
    "an empty file": ("", "net.prototxt has no layers"),
}
FITS_ON_PAPER = {"inner product", "filler", "tiles"}  # which summary shows, since it needs no memory for values


@pytest.mark.parametrize("what", NETS)
def test_every_command_tells(what: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text, message = NETS[what]
    Path("net.prototxt").write_text(text + (LOSS if 'top: "y"' in text else ""))
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 30)  # as on a small machine
    for words in ("train -solver solver.prototxt", "time -model net.prototxt -iterations 1", "summary net.prototxt"):
        with soon():
            result = run(words)
        if words.startswith("summary") and what in FITS_ON_PAPER:
            assert result.code == 0, result.err
            continue
        assert result.code == 134, words
        last = result.err.splitlines()[-1]
        assert last.startswith("F") and len(last) < 500, last
        assert "fault in fcaffe" not in last
        assert re.search(message, last), last


def test_a_net_that_does_not_fit_is_refused_before_it_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, advice in (
        (1900, "set batch_size to 2 or less, with iter_size to make up for it or use --recompute"),
        (1000, "use --recompute"),
        (300, "a larger device or a smaller net is needed"),
    ):
        monkeypatch.setattr(memory_need, "obtainable_bytes", lambda xp, free=free: free)
        fatal = run("train -solver solver.prototxt -engine numpy").fatal
        assert fatal.startswith("out of memory: training this net takes 0.00")
        assert fatal.endswith(f"can have; {advice}")
    assert "out of memory: training this net takes" in run("time -model net.prototxt").fatal
    Path("x.caffemodel").write_bytes(b"")
    assert "out of memory: running this net takes" in run("test -model net.prototxt -weights x.caffemodel").fatal


def test_ulimit(tmp_path: Path) -> None:
    """With too little address space for an array it says which layer's, and how much there is."""
    Path("net.prototxt").write_text(INPUT + layer("InnerProduct", "inner_product_param { num_output: 50000000 }"))
    words = [sys.executable, "-m", "fcaffe", "time", "--model", "net.prototxt"]
    limit = 8 << 30
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 134
    assert 'layer "it" (InnerProduct): there is no memory for a blob of shape (50000000, 192)' in last
    assert "an array of 38,400,000,000 bytes does not fit: this process can have" in last


# --- whose code runs --------------------------------------------------------------------------------------------------

PYTHON = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "mine" type: "Python" bottom: "x" top: "y" python_param { module: "loud_%s" layer: "Loud" } }
layer { name: "ip" type: "InnerProduct" bottom: "y" top: "z" inner_product_param { num_output: 1 } }
layer { name: "loss" type: "Reduction" bottom: "z" top: "loss" loss_weight: 1 }
"""
LOUD = """
import sys
import fcaffe as caffe
sys.stderr.write("imported\\n")
class Loud(caffe.Layer):
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top): top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom): pass
"""


@pytest.mark.parametrize("command", ["summary", "summary --json", "time -model", "train -solver", "test -model"])
def test_whose_code_runs_is_said_before_it_runs(command: str, run: Run) -> None:
    name = command.replace(" ", "_").replace("-", "_")
    Path(f"loud_{name}.py").write_text(LOUD)
    Path("net.prototxt").write_text(PYTHON % name)
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    more = " -weights net.prototxt" if command.startswith("test") else ""
    result = run(f"{command} {'solver' if 'solver' in command else 'net'}.prototxt{more}")
    before, _, _ = result.err.partition("imported\n")
    assert f'layer "mine": the code of the class Loud of the Python module loud_{name} runs from here on' in before
    assert "imported" not in result.out
    assert result.err != before, "it does run"
