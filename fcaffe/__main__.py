"""`fcaffe`, `caffe` and `python -m fcaffe`.

`fcaffe run` starts its script before any of the command line is loaded: the script may set environment variables that
NumPy and others read when they are loaded, signals are Python's, and its arguments are not ours to read.
"""

import sys


def main() -> int:
    """Run the command that the process was started for; returns the exit code."""
    if sys.argv[1:2] == ["run"] and len(sys.argv) > 2 and not sys.argv[2].startswith("-"):
        from fcaffe.as_caffe import run_script

        run_script(sys.argv[2], sys.argv[3:])
        return 0
    from fcaffe.cli import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
