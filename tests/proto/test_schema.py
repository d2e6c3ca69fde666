"""The compiled schema against BVLC Caffe's, field by field, and against its source."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from fcaffe.proto import caffe_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/caffe"
OWN_MESSAGES = {
    *(
        "BlobBytes",
        "NetBytes",
        "LayerBytes",
        "V1LayerBytes",
        "V0LayerBytes",
        "StateBytes",
        "ReaderState",
        "Origin",
        "Generation",
        "ResumeState",
    ),
    *("ResumeState", "CarriedArray", "MadeWith", "MadeLayer"),
    # Those of SSD's files, which have its numbers.
    *("AnnotatedDatum", "Annotation", "AnnotationGroup", "LabelMap", "LabelMapItem", "NormalizedBBox"),
}
OWN_NUMBERS = 100000  # and those of forks

COMPILED = ROOT / "fcaffe/proto/caffe.desc"
FILE = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file[0]


def rows(name):
    with open(GOLDEN / name, newline="") as file:
        return list(csv.DictReader(file))


def default(kind, text):
    """A default as a value, since 0.0 and 0, or 1e-05 and 0.00001, are the same."""
    return float(text) if text and kind in ("float", "double") else text


def kind_name(field):
    return descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def test_every_field_is_caffes():
    ours = {
        (message.name, field.name): (
            field.number,
            descriptor_pb2.FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower(),
            kind_name(field),
            field.type_name.removeprefix(".caffe."),
            default(kind_name(field), field.default_value),
            field.options.packed,
            field.options.deprecated,
        )
        for message in FILE.message_type
        if message.name not in OWN_MESSAGES
        for field in message.field
        if field.number < OWN_NUMBERS
    }
    caffes = {
        (row["message"], row["field"]): (
            int(row["number"]),
            row["label"],
            row["type"],
            row["type_name"],
            default(row["type"], row["default"]),
            row["packed"] == "1",
            row["deprecated"] == "1",
        )
        for row in rows("schema.csv")
    }
    assert ours == caffes


def test_every_enum_value_is_caffes():
    enums = [(enum.name, enum) for enum in FILE.enum_type]
    enums += [(f"{message.name}.{enum.name}", enum) for message in FILE.message_type for enum in message.enum_type]
    of_caffes_fields = {
        field.type_name.removeprefix(".caffe.")
        for message in FILE.message_type
        if message.name not in OWN_MESSAGES
        for field in message.field
        if field.number < OWN_NUMBERS
    }
    ours = {
        (name, value.name, value.number)
        for name, enum in enums
        if name in of_caffes_fields
        for value in enum.value
        if value.number < OWN_NUMBERS
    }
    assert ours == {(row["enum"], row["name"], int(row["number"])) for row in rows("enums.csv")}


def test_the_descriptor_is_what_the_schema_compiles_to(tmp_path):
    pytest.importorskip("grpc_tools", reason="needs protoc, from grpcio-tools")
    fresh = tmp_path / "caffe.desc"
    subprocess.run([sys.executable, ROOT / "scripts/compile_proto", fresh], check=True)
    assert descriptor_pb2.FileDescriptorSet.FromString(fresh.read_bytes()).file[0] == FILE


def test_names_are_where_generated_code_has_them():
    assert (pb.TRAIN, pb.TEST, pb.Phase.Name(1)) == (0, 1, "TEST")
    assert pb.PoolingParameter.MAX == pb.PoolingParameter.PoolMethod.Value("MAX") == 0
    assert pb.DESCRIPTOR.package == "caffe"
    with pytest.raises(AttributeError, match="NoSuchParameter"):
        _ = pb.NoSuchParameter
