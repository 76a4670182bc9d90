"""Draw a genotype: the JSON file that an architecture search wrote.

python -m benchmarks.draw_genotype genotype.json docs/genotype.svg ["What the picture shows"]
"""

from __future__ import annotations

import sys
from pathlib import Path

from velogan.networks.genotype import Genotype, read_genotype
from velogan.report.genotype import WIDTH, draw_discriminators, draw_generators, draw_legend
from velogan.report.plots import Drawing


def genotype_to_svg(genotype: Genotype, *, title: str = "A genotype") -> str:
    """Return all networks of a genotype and the legend as the text of an SVG file."""
    drawing = Drawing(WIDTH, 0)
    y = draw_generators(drawing, genotype, 14)
    if genotype.discriminators:
        y = draw_discriminators(drawing, genotype, y + 24)
    drawing.height = draw_legend(drawing, y + 24) + 14
    return drawing.to_svg_file(title=title)


if __name__ == "__main__":
    source, target, *title = sys.argv[1:]
    Path(target).write_text(genotype_to_svg(read_genotype(Path(source)), title=title[0] if title else "A genotype"))
