"""Caffe's sentences are read back by their own patterns."""

from __future__ import annotations

import pytest

from fcaffe import log

SENTENCES = {name: value for name, value in vars(log).items() if isinstance(value, log.Sentence)}


def test_numbers_and_names_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    log.learning_rate(70, 1e-05)
    log.sharing_parameters("a {b}", "c", 2)
    rate, sharing = (line.partition("] ") for line in capsys.readouterr().err.splitlines())
    assert rate[0].endswith(" sgd_solver.cpp:112") and rate[2] == "Iteration 70, lr = 1e-05"
    for sentence, line, values in (
        (log.learning_rate, rate, ("70", "1e-05")),
        (log.sharing_parameters, sharing, ("a {b}", "c", "2")),
    ):
        found = sentence.pattern.fullmatch(line[2])
        assert found is not None and found.groups() == values


@pytest.mark.parametrize("name", SENTENCES)
def test_each_is_matched_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = SENTENCES[name]
    sentence(*[7] * sentence.pattern.groups)
    found = sentence.pattern.fullmatch(capsys.readouterr().err.partition("] ")[2].removesuffix("\n"))
    assert found is not None and set(found.groups()) <= {"7"}


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
        (lambda: log.upgrading_v0("x"), "upgrade_proto.cpp:28"),
        (lambda: log.upgrading_v1("x"), "upgrade_proto.cpp:55"),
        (lambda: log.upgrading_batch_norm("x"), "upgrade_proto.cpp:79"),
        (lambda: log.upgraded_batch_norm(), "upgrade_proto.cpp:82"),
        (lambda: log.unknown_v0_parameter("pad", "data"), "upgrade_proto.cpp:283"),
        (lambda: log.upgrading_solver_type("x"), "upgrade_proto.cpp:1084"),
        (lambda: log.loading_mean("x"), "data_transformer.cpp:25"),
    ):
        write()
        assert tag_of(capsys) == tag
