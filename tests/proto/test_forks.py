import pytest

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import fork_of_layer_type
from fcaffe.proto.forks import _ENUM_VALUES, _FIELDS, fork_of_field


@pytest.mark.parametrize(
    ("type", "fork"),
    [("PriorBox", "weiliu89/caffe"), ("TRT", "NVIDIA/caffe"), ("MKLBatchNorm", "intel/caffe"), ("Axpy", "SENet")],
)
def test_layer_types_of_forks(type, fork):
    assert fork in fork_of_layer_type(type)


def test_other_types_are_of_no_fork():
    assert fork_of_layer_type("Convolution") is None
    assert fork_of_layer_type("") is None


def test_a_field_may_have_several_forks():
    assert "NVIDIA/caffe" in fork_of_field("BatchNormParameter", "engine")
    assert "intel/caffe" in fork_of_field("BatchNormParameter", "engine")


def test_the_tables_have_nothing_that_caffe_has():
    for groups in _FIELDS.values():
        for message, fields in groups.items():
            assert not set(fields.split()) & set(getattr(pb, message).DESCRIPTOR.fields_by_name), message
    enums = {enum.name: enum for message in pb.DESCRIPTOR.message_types_by_name.values() for enum in message.enum_types}
    for groups in _ENUM_VALUES.values():
        for enum, values in groups.items():
            assert not set(values.split()) & set(enums[enum].values_by_name), enum
