"""`velogan profile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from velogan.cli.fields import Configured, configure, data_is_named
from velogan.cli.flags import Outcome


@dataclass(kw_only=True)
class Profile(Configured):
    """Flags of `velogan profile`.

    velogan profile --engine.mode reference --steps 3 --out profiles/reference
    """

    FIRST = ("preset", "data", "method", "size", "image_size", "steps", "out", "json")

    steps: Annotated[int, tyro.conf.arg(help="Steps under the profiler; up to nine more come before and after.")] = 8
    out: Annotated[
        Path, tyro.conf.arg(help="The folder for profile.html, profile.json and trace.json.gz (ui.perfetto.dev).")
    ] = Path("profile")

    def places(self) -> list[tuple[str, Path]]:
        return [("--out", self.out)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.measure.profile import profile
        from velogan.observe.progress import Display

        config = configure(self)
        if not data_is_named(self, self.preset):  # a step's time does not depend on what is in the pictures
            config = config.change(data={"render_count": 8, "render_test": 1})
        with Display() as display:
            result = profile(config, steps=self.steps, out=self.out, display=display)
            display.say(f"look at it: {Path(result['page']).resolve()}")
        keys = ("step_ms", "temporal", "idle", "kernels", "launches", "page", "trace")
        return {key: result[key] for key in keys}, 0
