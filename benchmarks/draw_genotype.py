"""Draws a genotype: the JSON file that an architecture search wrote.

python -m benchmarks.draw_genotype genotype.json docs/genotype.svg ["What the picture shows"]
"""

from __future__ import annotations

import sys
from pathlib import Path

from velogan.networks.genotype import read_genotype
from velogan.report.genotype import genotype_to_svg

if __name__ == "__main__":
    source, target, *title = sys.argv[1:]
    Path(target).write_text(genotype_to_svg(read_genotype(Path(source)), title=title[0] if title else "A genotype"))
