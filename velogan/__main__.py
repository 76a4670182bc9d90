"""`python -m velogan`, and so `torchrun -m velogan`: the command line."""

import sys

from velogan.cli import main

if __name__ == "__main__":
    sys.exit(main())
