"""The names of all commands, and the line that usage prints for each. A command is loaded when it is called."""

from __future__ import annotations

CAFFE_COMMANDS = {
    "train": "train or finetune a net: --solver FILE [--snapshot FILE|auto | --weights FILE,...]",
    "test": "score a model: --model FILE --weights FILE [--iterations N]",
    "time": "time the layers of a net: --model FILE [--iterations N] [--phase TRAIN|TEST]",
    "device_query": "show the properties of GPUs: --gpu ID,...|all",
}
TOOLS = {  # separate programs in Caffe
    "convert_imageset": "build a database from pictures: ROOTFOLDER/ LISTFILE DB_NAME [--shuffle]",
    "convert_annoset": "build a database of pictures with boxes: ROOTFOLDER/ LISTFILE DB_NAME [--anno_type detection]",
    "convert_mnist_data": "build a database from MNIST's files: IMAGES LABELS DB_NAME",
    "convert_mnist_siamese_data": "build a LevelDB of pairs from MNIST's files: IMAGES LABELS DB_NAME",
    "convert_cifar_data": "build databases from CIFAR-10's files: INPUT_FOLDER OUTPUT_FOLDER lmdb|leveldb",
    "compute_image_mean": "compute the mean image of a database: INPUT_DB [OUTPUT_FILE]",
    "extract_features": "write blobs of a net to databases: WEIGHTS NET BLOB,... DB,... BATCHES KIND",
    "upgrade_net_proto_text": "convert the prototxt of a net to the current notation: IN OUT",
    "upgrade_net_proto_binary": "convert a model to the current notation: IN OUT",
    "upgrade_solver_proto_text": "convert the prototxt of a solver to the current notation: IN OUT",
    "draw_net": "draw a net: IN.prototxt OUT.svg [--rankdir LR|TB] [--phase TRAIN|TEST|ALL]",
    "classify": "classify pictures: IN OUT.npy --model_def FILE --pretrained_model FILE",
    "detect": "classify windows of pictures: IN.csv OUT.csv --crop_mode list",
    "parse_log": "write the numbers in a training's log as CSV: LOG OUTPUT_DIR",
    "extract_seconds": "write the time of each iteration in a training's log: LOG OUTPUT_FILE",
    "plot_training_log": "draw one curve of trainings: CHART_TYPE PICTURE LOG...",
    "summarize": "print a net's prototxt, a line for each layer: NET",
    "resize_and_crop_images": "resize and crop pictures to squares: --input LIST --input_folder IN --output_folder OUT",
}
FLOW = {  # from a folder of pictures to predictions
    "dataset": "build databases, mean and names of a folder of pictures: PICTURES OUT [--size HxW]",
    "new": "write net, solver and deploy net for a data set: NAME --data FOLDER --net NET",
    "predict": "name what is in pictures: --solver FILE PICTURE... [--top N]",
    "deploy": "write the deploy net of a train_val net: TRAIN_VAL OUT",
}
OTHERS = {
    "summary": "show layers, shapes and costs of a net, a model or a solver: NET [--phase TRAIN|TEST] [--json]",
    "solver": "show a solver's fields and learning rate: SOLVER [--json]",
    "detect-objects": "find objects in pictures: --model FILE --weights FILE [--out FOLDER] IMAGE...",
    "report": "write a page about a training: LOG... PAGE.html [--solver FILE]",
    "plot": "draw the curves of trainings: LOG... [--out PICTURE]",
    "convert": "convert a model, solver state, net, solver or mean to another format: IN OUT",
    "merge-bn": "fold BatchNorm and Scale into the weights before: NET WEIGHTS NEW_NET NEW_WEIGHTS",
    "compress": "compress a model: WEIGHTS OUT.dcmodel [--solver FILE]",
    "lmdb": "inspect and export databases: info|cat|export DB [FOLDER]",
    "run": "run a Python script in which `import caffe` means fcaffe: SCRIPT|-m MODULE [ARGUMENTS]",
    "bench": "measure sums of gradients: reduce [--reduce NAME,...] [--workers N,...]",
    "plan": "predict what more workers would buy: --solver FILE|--net FILE --machine NAME [--workers N,...]",
}
COMMANDS = {**CAFFE_COMMANDS, **FLOW, **TOOLS, **OTHERS}

_SHARED = {  # modules of several commands, or under other names
    "cli.convert_data": [name for name in TOOLS if name.endswith("_data")] + ["compute_image_mean"],
    "cli.convert_imageset": ["convert_annoset", "resize_and_crop_images"],
    "cli.engine": ["device_query"],
    "cli.logs": ["extract_seconds", "parse_log", "plot", "plot_training_log", "report"],
    "cli.new": ["deploy"],
    "cli.net_files": [name for name in TOOLS if name.startswith("upgrade")] + ["draw_net", "merge-bn"],
    "cli.pictures": ["classify", "detect"],
    "cli.predict": ["detect-objects"],
    "cli.run_net": ["extract_features", "test", "time"],
    "cli.summary": ["solver", "summarize"],
    "deep_compression.command": ["compress"],
}


def module_of(command: str) -> str:
    """Return the module that defines the command, under its name with `_` for `-`."""
    shared = (module for module, names in _SHARED.items() if command in names)
    return f"fcaffe.{next(shared, 'cli.' + command.replace('-', '_'))}"
