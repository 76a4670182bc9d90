from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from velogan.observe.progress import Display, forecast, format_duration


class Now:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def display(*, terminal: bool) -> tuple[Display, io.StringIO, Now]:
    out, now = io.StringIO(), Now()
    return Display(console=Console(file=out, force_terminal=terminal, width=160), now=now), out, now


def test_prints_a_line_every_thirty_seconds_without_a_terminal() -> None:
    shown, out, now = display(terminal=False)
    with shown:
        rendering = shown.task("rendering [a]")
        for done in range(1, 101):
            now.seconds += 1
            rendering(done, 100)
    assert out.getvalue().splitlines() == [f"rendering [a]: {n}/100" for n in (30, 60, 90, 100)]


def test_a_training_line_has_position_speed_time_left_and_losses() -> None:
    shown, out, now = display(terminal=False)
    with shown:
        training = shown.training(12000)
        now.seconds = 31
        training.update(1200, images_per_s=40.12, eta_s=270.0, losses={"G": 2.345678, "D": 0.4})
    line = "training: 1,200/12,000 images · 40.1/s · 4 min 30 s left · G 2.346 · D 0.400"
    assert out.getvalue().splitlines() == [line]


def test_draws_bars_on_a_terminal() -> None:
    shown, out, _ = display(terminal=True)
    with shown:
        shown.task("caching")(3, 10)
        shown.print_line("picked [bf16]")
        shown.training(None).update(5, images_per_s=0.0, eta_s=None, losses={})
    text = out.getvalue()
    assert "caching" in text
    assert "3/10" in text
    assert "picked [bf16]" in text
    assert "5 images" in text


def test_prints_nothing_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as shown:
        shown.task("rendering")(1, 1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "rendering: 1/1\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_formats_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_forecasts_images_and_end() -> None:
    said = forecast(300, images_per_s=5.04, total=600, left_s=60.0)
    assert re.fullmatch(
        r"this machine sees 5.04 images/s, the run about 600, until (\d{4}-\d\d-\d\d )?\d\d:\d\d: so few show .*", said
    )
    by_time = forecast(300, images_per_s=10.0, total=None, left_s=2_000.0)
    assert "the run about 20,300" in by_time
    assert "17,000" in by_time
    assert "267,000" in forecast(300, images_per_s=50.0, total=266_800, left_s=None)
