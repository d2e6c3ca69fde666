"""The commands there are, none of which is loaded before it is named."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command before it is loaded: the module that has a click command of its name, and what usage says of it."""

    module: str
    short_help: str


CAFFE_COMMANDS = {
    "train": Entry(
        "fcaffe.cli.train", "train or finetune a net: --solver FILE [--snapshot FILE|auto | --weights FILE,...]"
    ),
    "test": Entry("fcaffe.cli.test", "score a model: --model FILE --weights FILE [--iterations N]"),
    "time": Entry("fcaffe.cli.time", "time the layers of a net: --model FILE [--iterations N] [--phase TRAIN|TEST]"),
    "device_query": Entry("fcaffe.cli.device_query", "show what is known of GPUs: --gpu ID,...|all"),
}
TOOLS = {  # programs of their own in Caffe
    "convert_imageset": Entry(
        "fcaffe.cli.convert_imageset",
        "make a database from pictures: ROOTFOLDER/ LISTFILE DB_NAME [--shuffle]",
    ),
    "compute_image_mean": Entry(
        "fcaffe.cli.compute_image_mean", "compute the mean image of a database: INPUT_DB [OUTPUT_FILE]"
    ),
    "extract_features": Entry(
        "fcaffe.cli.extract_features",
        "write blobs of a net to databases: WEIGHTS NET BLOB,... DB,... BATCHES KIND",
    ),
    "upgrade_net_proto_text": Entry("fcaffe.cli.upgrade", "bring the prototxt of a net up to date: IN OUT"),
    "upgrade_net_proto_binary": Entry("fcaffe.cli.upgrade", "bring a model up to date: IN OUT"),
    "upgrade_solver_proto_text": Entry("fcaffe.cli.upgrade", "bring the prototxt of a solver up to date: IN OUT"),
    "draw_net": Entry(
        "fcaffe.cli.draw_net", "draw a net: IN.prototxt OUT.svg [--rankdir LR|TB] [--phase TRAIN|TEST|ALL]"
    ),
    "classify": Entry(
        "fcaffe.cli.classify", "say what is in pictures: IN OUT.npy --model_def FILE --pretrained_model FILE"
    ),
    "detect": Entry("fcaffe.cli.detect", "say what is in windows of pictures: IN.csv OUT.csv --crop_mode list"),
    "parse_log": Entry("fcaffe.cli.parse_log", "write the numbers in a training's log as CSV: LOG OUTPUT_DIR"),
    "extract_seconds": Entry(
        "fcaffe.cli.parse_log", "write when each iteration of a training's log was: LOG OUTPUT_FILE"
    ),
    "plot_training_log": Entry(
        "fcaffe.cli.plot_training_log", "draw one curve of trainings: CHART_TYPE PICTURE LOG..."
    ),
    "summarize": Entry("fcaffe.cli.summarize", "show what a net's prototxt says, a line for each layer: NET"),
    "resize_and_crop_images": Entry(
        "fcaffe.cli.resize_and_crop_images",
        "make pictures square: --input LIST --input_folder IN --output_folder OUT",
    ),
}
OTHERS = {
    "summary": Entry("fcaffe.cli.summary", "show layers, shapes and costs of a net: NET [--phase TRAIN|TEST] [--json]"),
    "solver": Entry("fcaffe.cli.solver", "show a solver's fields and learning rate: SOLVER [--json]"),
    "report": Entry(
        "fcaffe.cli.report", "write a page about a training: LOG PAGE.html [--solver FILE [--weights FILE]]"
    ),
    "plot": Entry("fcaffe.cli.plot", "draw the curves of trainings: LOG... [--out PICTURE] [--x time]"),
    "convert": Entry("fcaffe.cli.convert", "write a model, solver state, net, solver or mean in another form: IN OUT"),
    "merge-bn": Entry(
        "fcaffe.cli.merge_bn", "fold BatchNorm and Scale into the weights before: NET WEIGHTS NEW_NET NEW_WEIGHTS"
    ),
    "compress": Entry(
        "fcaffe.deep_compression.command",
        "compress a model: WEIGHTS OUT.dcmodel, or its layers: NET WEIGHTS NEW_NET NEW_WEIGHTS",
    ),
    "lmdb": Entry(
        "fcaffe.cli.lmdb", "look into databases, merge, shuffle, export: info|cat|merge|shuffle|export DB..."
    ),
    "run": Entry("fcaffe.cli.run", "run a Python script in which `import caffe` means fcaffe: SCRIPT [ARGUMENTS]"),
    "bench": Entry(
        "fcaffe.cli.bench",
        "measure sums of gradients, or whole training iterations: reduce|step [--net FILE] [--workers N]",
    ),
    "plan": Entry(
        "fcaffe.cli.plan",
        "predict what more workers would buy: --solver FILE|--net FILE --machine NAME [--workers N,...]",
    ),
    "completion": Entry("fcaffe.cli.completion", "print what lets a shell complete commands and flags: bash|zsh|fish"),
}
COMMANDS = {**CAFFE_COMMANDS, **TOOLS, **OTHERS}
