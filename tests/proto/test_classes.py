"""The message classes beside another caffe_pb2, and under protobuf's other implementation."""

import copy
import os
import pickle
import subprocess
import sys

import pytest

from fcaffe.proto import caffe_pb2 as pb

# A script's own caffe_pb2: a caffe.proto with a NetParameter in protobuf's default pool.
OTHER = """
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
message = file.message_type.add(name="NetParameter")
message.field.add(name="other", number=1, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
other = descriptor_pool.Default().FindMessageTypeByName("caffe.NetParameter")
"""
OURS = """
from fcaffe.proto import caffe_pb2 as pb, parse_text
net = parse_text('layer { name: "a" pooling_param { pool: AVE } }', pb.NetParameter)
"""
CHECK = """
assert [field.name for field in other.fields] == ["other"]
assert pb.NetParameter.FromString(net.SerializeToString()).layer[0].pooling_param.pool == pb.PoolingParameter.AVE
"""


def run(code, **environment):
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | environment)


@pytest.mark.parametrize("code", [OTHER + OURS + CHECK, OURS + OTHER + CHECK], ids=["before", "after"])
def test_another_caffe_pb2_may_be_in_the_process(code):
    run(code)


def test_pure_python_protobuf_will_do():
    run(OURS + OTHER + CHECK, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")


def test_messages_can_be_copied_and_pickled():
    net = pb.NetParameter(name="n")
    assert copy.deepcopy(net) == pickle.loads(pickle.dumps(net)) == net
