"""Caffe's message classes and enums: `NetParameter`, `Datum`, `Phase`, `TRAIN`, ...

The classes are created from caffe.desc, the compiled proto/caffe.proto, in a private descriptor pool. So another
`caffe_pb2` can be imported in the same process: protobuf refuses two files that define one name in its default pool.
Any newer protobuf works, whereas generated code refuses runtimes older than itself.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from fcaffe.proto.wire import key, read_varint

_pool = descriptor_pool.DescriptorPool()


def _load() -> dict[str, Any]:
    """The messages, enums and enum values at the top level of caffe.proto, by name."""
    compiled = Path(__file__).with_name("caffe.desc").read_bytes()
    size, at = read_varint(compiled, 1)  # of the only file in the set, which is parsed by classes that load slowly
    assert compiled[:1] == key(1) and at + size == len(compiled)
    _pool.AddSerializedFile(compiled[at:])
    described = _pool.FindFileByName("caffe.proto")
    names: dict[str, Any] = {"DESCRIPTOR": described}
    for name, message in described.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
        names[name].__module__ = __name__  # messages can then be pickled
    for name, enum in described.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    return names


globals().update(_load())


def __getattr__(name: str) -> Any:  # tells type checkers that there are more names than they can see
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
