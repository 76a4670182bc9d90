"""Parsers of numbers of devices, bandwidths and latencies."""

from __future__ import annotations

import re

MAX_DEVICES = 2**20

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*"


def parse_devices(text: str) -> list[int]:
    """Parse `1,2,8`, or `1..1024`: the endpoints and the powers of two between. Raises ValueError otherwise."""
    wrong = ValueError(
        f"--devices {text:.40}: write numbers from 1 to {MAX_DEVICES:,}, as 1,2,8, or a range of powers of two, as "
        "1..1024"
    )
    match = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text)
    if match:
        low, high = map(int, match.groups())
        between = [2**power for power in range(MAX_DEVICES.bit_length()) if low < 2**power < high]
        counts = [low, *between, *([high] if high > low else [])]
    elif re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        low = high = 1
        counts = [int(word) for word in text.split(",")]
    else:
        raise wrong
    if high < low or not all(1 <= count <= MAX_DEVICES for count in counts):
        raise wrong
    return counts


def parse_bandwidth(text: str, flag: str) -> float:
    """Return the bytes per second of `10Gbit`, `100Mbit` or `400GB`. Raises ValueError, with the `flag`, otherwise."""
    match = re.fullmatch(_NUMBER + r"([kmgt]?)(bit|b)(?:/s|ps)?\s*", text, re.IGNORECASE)
    amount = float(match.group(1)) * _SCALES[match.group(2).lower()] if match else 0.0
    if not match or not amount:
        raise ValueError(f"{flag} {text:.40}: write a number above 0 and a unit, as 10Gbit, 100Mbit or 400GB (bytes)")
    return amount if match.group(3) == "B" else amount / 8


def parse_latency(text: str, flag: str) -> float:
    """Return the seconds of `50us`, `0.2ms` or `1s`. Raises ValueError, with the `flag`, otherwise."""
    match = re.fullmatch(_NUMBER + r"(ns|us|µs|ms|s)\s*", text)
    if not match:
        raise ValueError(f"{flag} {text:.40}: write a number and a unit, as 50us, 0.2ms or 1s")
    return float(match.group(1)) * _SECONDS[match.group(2)]
