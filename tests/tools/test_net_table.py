"""The table of `fcaffe summarize`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from fcaffe.cli import main
from fcaffe.cli.summary import net_rows, table_lines
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from tests.conftest import GOLDEN

NET = """
layer { name: "in" type: "Input" top: "x" }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" param { name: "w" lr_mult: 2 } param { decay_mult: 0 }
  convolution_param { kernel_size: 5 stride: 2 pad: 1 num_output: 8 group: 2 } }
layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "mine" type: "Python" bottom: "p" bottom: "none" top: "l" loss_weight: 0.5
  python_param { module: "layers" layer: "Mine" } }
"""


def test_what_a_row_says() -> None:
    rows = net_rows(parse_text(NET, pb.NetParameter))
    assert [tuple(map(click.unstyle, row)) for row in rows] == [
        ("in", "Input", "", "", "->", "x", ""),
        ("c", "Convolution", "(w x2.0, Dx0.0)", "x", "->", "c", "5/2+1 8/2"),
        ("p", "Pooling", "", "c", "->", "p", "3/2"),
        ("mine", "layers.Mine", "", "p, none", "->", "0.5 * l", ""),
    ]


def test_a_terminal_has_colors_by_blob() -> None:
    rows = net_rows(parse_text(NET, pb.NetParameter))
    assert rows[1][3] == rows[0][5] == "\033[92mx\033[0m" and rows[1][5] == rows[2][3] != rows[0][5]
    assert rows[3][3] == "\033[94mp\033[0m, \033[41mnone\033[0m", "nobody makes it"
    assert rows[3][5] == "\033[95m0.5 * \033[1;4ml\033[0m", "nobody reads it"
    colored, plain = (table_lines(some, 30) for some in (rows, [[*map(click.unstyle, row)] for row in rows]))
    assert [click.unstyle(line) for line in colored] == plain != colored


def test_a_long_text_pushes_only_its_own_line() -> None:
    lines = table_lines([("a" * 9, "b", "c"), ("a", "b", "c")], 4)
    assert lines == ["aaaaaaaaa b c", "a   b c"]


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["summarize", str(GOLDEN / "interop" / "net.prototxt"), "-w", "12"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["conv", "Convolution", "(,", "x2.0", "Dx0.0)", "data", "->", "conv", "5/2", "4"]
    assert main(["summarize"]) == 1
    assert main(["summarize", str(tmp_path / "none")]) == 134
