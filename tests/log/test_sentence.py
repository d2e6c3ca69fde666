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
