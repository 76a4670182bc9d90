"""`velogan profile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from velogan.cli.fields import PresetFlags, configure, has_data
from velogan.cli.flags import Outcome


@dataclass(kw_only=True)
class Profile(PresetFlags):
    """Flags of `velogan profile`.

    velogan profile --engine.mode reference --steps 3 --out profiles/reference
    """

    HELP_FLAGS = "preset data method size image_size device steps out json"

    steps: Annotated[
        int, arg(help="Number of training steps to profile; up to nine more run before and after them.")
    ] = 8
    out: Annotated[Path, arg(help="Folder for profile.html, profile.json and trace.json.gz (see ui.perfetto.dev).")] = (
        Path("profile")
    )

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("--out", self.out)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.measure.profile import profile
        from velogan.observe.progress import Display

        config = configure(self)
        if not has_data(self, self.preset):  # the time of a step does not depend on the content of the images
            config = config.change(data={"render_count": 8, "render_test": 1})
        with Display() as display:
            result = profile(config, steps=self.steps, out=self.out, display=display)
            display.print_line(f"report: {Path(result['page']).resolve()}")
        keys = ("step_ms", "temporal", "idle", "kernels", "launches", "page", "trace")
        return {key: result[key] for key in keys}, 0
