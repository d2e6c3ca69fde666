"""`fcaffe`, `caffe` and `python -m fcaffe`.

`fcaffe run` starts its script before any of the command line is loaded: the script may set environment variables that
NumPy reads when it is loaded, its signals are Python's, and its arguments are its own.
"""

import os
import sys


def main() -> int:
    """Run the command of the process's arguments; returns the exit code."""
    words = sys.argv[2:]
    if sys.argv[1:2] == ["run"]:
        if words[:1] == ["--gpu-optional"]:
            os.environ["FCAFFE_GPU"] = "optional"
            del words[0]
        if words[:1] == ["-m"] and words[1:]:
            from fcaffe.as_caffe import run_module

            run_module(words[1], words[2:])
            return 0
        if words and not words[0].startswith("-"):
            from fcaffe.as_caffe import run_script

            run_script(words[0], words[1:])
            return 0
    if __name__ == "__main__":
        from fcaffe.python_path import leave_current_folder

        leave_current_folder()
    from fcaffe.cli import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
