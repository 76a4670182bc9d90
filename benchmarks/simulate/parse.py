"""What is written on the command line of a cluster: numbers of devices, bandwidths and latencies."""

from __future__ import annotations

import re

MOST_DEVICES = 2**20

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*"


def parse_devices(text: str) -> list[int]:
    """`1,2,8`, or `1..1024`: the powers of two in between, and both ends. ValueError otherwise."""
    wrong = ValueError(
        f"--devices {text:.40}: write numbers from 1 to {MOST_DEVICES:,}, as 1,2,8, or a range of powers of two, as "
        "1..1024"
    )
    found = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text)
    if found:
        low, high = map(int, found.groups())
        between = [2**power for power in range(MOST_DEVICES.bit_length()) if low < 2**power < high]
        counts = [low, *between, *([high] if high > low else [])]
    elif re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        low = high = 1
        counts = [int(word) for word in text.split(",")]
    else:
        raise wrong
    if high < low or not all(1 <= count <= MOST_DEVICES for count in counts):
        raise wrong
    return counts


def parse_bandwidth(text: str, flag: str) -> float:
    """Bytes a second of `10Gbit`, `100Mbit` or `400GB`. ValueError, which names the `flag`, otherwise."""
    found = re.fullmatch(_NUMBER + r"([kmgt]?)(bit|b)(?:/s|ps)?\s*", text, re.IGNORECASE)
    amount = float(found.group(1)) * _SCALES[found.group(2).lower()] if found else 0.0
    if not found or not amount:
        raise ValueError(f"{flag} {text:.40}: write a number above 0 and a unit, as 10Gbit, 100Mbit or 400GB (bytes)")
    return amount if found.group(3) == "B" else amount / 8


def parse_latency(text: str, flag: str) -> float:
    """Seconds of `50us`, `0.2ms` or `1s`. ValueError, which names the `flag`, otherwise."""
    found = re.fullmatch(_NUMBER + r"(ns|us|µs|ms|s)\s*", text)
    if not found:
        raise ValueError(f"{flag} {text:.40}: write a number and a unit, as 50us, 0.2ms or 1s")
    return float(found.group(1)) * _SECONDS[found.group(2)]
