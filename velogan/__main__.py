"""The command line, for `python -m velogan`, and for `torchrun -m velogan` on several devices."""

import sys

from velogan.cli import main

if __name__ == "__main__":
    sys.exit(main())
