"""The registry of layer types: a module is loaded when a net names one of its types, and not before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fcaffe import pycaffe  # noqa: F401 - declares all types
from fcaffe.net import Layer, layer_types, register, registry
from fcaffe.net.registry import _modules, registered

ROOT = Path(__file__).parents[2]


def test_each_type_is_registered_by_the_module_that_is_declared_for_it() -> None:
    """Each in a process of its own would take minutes; that its own module does it is seen from where its class is."""
    own = [name for name in layer_types() if name in _modules]
    assert len(own) > 90
    for layer_type in own:
        assert registered(layer_type).__module__ == _modules[layer_type][0], layer_type


def test_all_modules_of_layers_are_declared() -> None:
    folders = ROOT / "fcaffe" / "layers", ROOT / "fcaffe" / "forks"
    registering = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for folder in folders
        for file in folder.glob("*.py")
        if "\n@register(" in file.read_text()
    }
    assert registering == {modules[0] for modules in _modules.values()} - {"fcaffe.pycaffe.python"}


def test_a_net_loads_the_modules_of_its_types_only() -> None:
    code = (
        "import json, sys; from fcaffe import layers; from fcaffe.net.registry import registered\n"
        "before = set(sys.modules); registered('LSTM'); print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = [name for name in json.loads(done.stdout) if name.startswith("fcaffe.layers.")]
    assert loaded == ["fcaffe.layers.recurrent"]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_second_class_for_a_type_is_refused_whether_or_not_the_first_is_loaded(loaded: bool) -> None:
    code = (
        "from fcaffe import layers; from fcaffe.net import Layer, register\n"
        f"if {loaded}: from fcaffe.layers import concat\n"
        "try: register('Tile')(type('Mine', (Layer,), {}))\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.startswith("layer type Tile is registered twice: ") and "fcaffe.layers.concat" in done.stdout


def test_forks_are_known_without_pycaffe() -> None:
    code = (
        "from fcaffe.proto import caffe_pb2 as pb, upgrade_net\n"
        "net = pb.NetParameter(layer=[pb.LayerParameter(name='p', type='Pooling3D')]); upgrade_net(net, 'x')\n"
        "from fcaffe import layers; from fcaffe.net.registry import registered\n"
        "print(net.layer[0].type, registered('Permute').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "Pooling Permute\n"


def test_a_plugin_registers_a_type_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    @register("OfThisTest")
    class OfThisTest(Layer):
        pass

    assert registered("OfThisTest") is OfThisTest and "OfThisTest" in layer_types()
    assert registered("Nothing") is None
