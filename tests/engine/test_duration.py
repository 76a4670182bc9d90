from __future__ import annotations

import pytest

from velogan.engine.duration import Length, Span, parse_length, parse_span


@pytest.mark.parametrize(
    ("text", "amount", "unit", "normalised"),
    [
        ("1 images", 1, "images", "1 image"),
        ("500i", 500, "images", "500 images"),
        (" 2.5 epochs ", 2.5, "epochs", "2.5 epochs"),
        ("5%", 5, "percent", "5 percent"),
        (".5 Minutes", 0.5, "minutes", "0.5 minutes"),
    ],
)
def test_parses_and_normalises_durations(text: str, amount: float, unit: str, normalised: str):
    span = parse_span(text)
    assert span == Span(amount, unit)  # pyright: ignore[reportArgumentType]
    assert str(span) == normalised
    assert parse_span(normalised) == span


@pytest.mark.parametrize("text", ["", "5", "5 hours", "-5 images", "1e3 images", "5 imagery"])
def test_rejects_text_that_is_not_a_duration(text: str):
    with pytest.raises(ValueError, match=r"is not a duration: write '500 images'"):
        parse_span(text)


def test_rejects_zero_and_lengths_in_percent():
    with pytest.raises(ValueError, match="must be more than 0"):
        parse_span("0 images")
    with pytest.raises(ValueError, match=r"train\.length=50 %: a percentage is not a length"):
        parse_length("50 %", images_per_epoch=10)


@pytest.mark.parametrize(
    ("text", "passed"),
    [("100 images", 2.5), ("2 epochs", 2.5), ("10 %", 4.5), ("1 minutes", 185 / 60), ("250 images", 1)],
)
def test_counts_how_often_a_span_has_passed(text: str, passed: float):
    assert parse_span(text).count(images=250, seconds=185.0, progress=0.45, images_per_epoch=50) == passed


def test_a_length_in_epochs_has_their_schedule():
    length = parse_length("2.5 epochs", images_per_epoch=40)
    assert (length.schedule_epochs, length.total) == (3, 100)
    assert [length.schedule_epoch(images, 0.0) for images in (0, 39, 40, 79, 80, 99)] == [1, 1, 2, 2, 3, 3]
    assert length.progress(50, 1e9) == 0.5
    assert length.progress(120, 0.0) == 1.0
    assert parse_length("0.01 epochs", images_per_epoch=10).total == 1


@pytest.mark.parametrize("length", [Length(Span(400, "images"), 7), Length(Span(10, "minutes"), 7)])
def test_other_lengths_have_200_epochs_of_the_schedule(length: Length):
    def at(share: float) -> tuple[int, float]:
        return round(400 * share), 600 * share

    assert length.schedule_epochs == 200
    assert [length.schedule_epoch(*at(share)) for share in (0, 0.0025, 0.005, 0.5, 0.9975)] == [1, 1, 2, 101, 200]
    assert [length.progress(*at(share)) for share in (0, 0.25, 1, 2)] == [0, 0.25, 1, 1]
