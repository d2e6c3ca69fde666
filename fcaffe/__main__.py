"""`python -m fcaffe` is the command `fcaffe`."""

import sys

from fcaffe.cli import main

sys.exit(main())
