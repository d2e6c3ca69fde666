"""Whatever is wrong with a prototxt, the error is one line that says where."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, read_solver

TOKENS = ["layer", "name", "pooling_param", "pool", "include", "shape", "dim", "MAX", "TRAIN", "{", "}", "<", ">", ":"]
TOKENS += ["[", "]", ",", ";", '"a"', "'b", '"\\xff"', "1", "-1", ".5", "1e9", "99999999999", "true", "#", "\n", "$"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=30))
def test_any_tokens_parse_or_give_one_line(tokens):
    text = " ".join(tokens)
    try:
        parse_text(text, pb.NetParameter, "x")
    except ProtoError as error:
        assert re.fullmatch(r"x:\d+:\d+: [^\n]+", str(error))


@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_parses_or_gives_one_line(text):
    try:
        parse_text(text, pb.NetParameter, "x")
    except ProtoError as error:
        assert re.fullmatch(r"x:\d+:\d+: .+", str(error))


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n"])
def test_an_empty_net_or_solver_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.prototxt"
    file.write_text(text)
    for read, noun in ((read_net, "net"), (read_solver, "solver")):
        with pytest.raises(ProtoError, match=rf"^{file} .*: name the prototxt of a {noun}$"):
            read(file)
