"""`python -m fcaffe.cli.plot train.log training.png`: draws the curves of a training's log."""

from __future__ import annotations

import sys

from fcaffe.errors import FcaffeError
from fcaffe.tools.plot import plot


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python -m fcaffe.cli.plot LOG PICTURE.png", file=sys.stderr)
        return 2
    try:
        plot(sys.argv[1], sys.argv[2])
    except FcaffeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
