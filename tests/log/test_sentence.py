"""Caffe's sentences and their source tags."""

from __future__ import annotations

import pytest

from fcaffe import log


def tag_of(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.partition("] ")[0].split()[-1]


@pytest.mark.parametrize(
    ("field", "path", "tag", "said"),
    [
        ("train_net_param", "", "solver.cpp:88", "specified in train_net_param."),
        ("train_net", "a.prototxt", "solver.cpp:92", "from train_net file: a.prototxt"),
        ("net_param", "", "solver.cpp:97", "specified in net_param."),
        ("net", "a.prototxt", "solver.cpp:102", "from net file: a.prototxt"),
    ],
)
def test_the_field_that_a_training_net_comes_from(
    field: str, path: str, tag: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log.creating_train_net(field, path)
    line = capsys.readouterr().err.rstrip("\n")
    assert line.endswith(f" {tag}] Creating training net {said}")


def test_the_tags_of_upgrades_and_means(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines in the sources of the Caffe that made the golden logs."""
    for write, tag in (
        (lambda: log.upgrading("V0", "x"), "upgrade_proto.cpp:28"),
        (lambda: log.upgrading("V1", "x"), "upgrade_proto.cpp:55"),
        (lambda: log.upgrading("batch norm", "x"), "upgrade_proto.cpp:79"),
        (lambda: log.upgraded("batch norm"), "upgrade_proto.cpp:82"),
        (lambda: log.unknown_v0_parameter("pad", "data"), "upgrade_proto.cpp:283"),
        (lambda: log.upgrading("solver type", "x"), "upgrade_proto.cpp:1084"),
        (lambda: log.loading_mean("x"), "data_transformer.cpp:25"),
    ):
        write()
        assert tag_of(capsys) == tag


@pytest.mark.parametrize("lines", [10, 400])
def test_a_long_log_ends_with_its_warnings(lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    log.begin_command()
    for number in range(lines):
        log.warning(f"odd {number % 2}") if number < 4 else log.info("a line")
    log.end_command()
    told = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()][lines:]
    assert told == (["2 warnings of this log:", "odd 0", "odd 1"] if lines > 300 else [])
