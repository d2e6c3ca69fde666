"""Whatever is wrong with a prototxt, the error is one line that says where."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text

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
