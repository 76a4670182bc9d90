"""Run folders in, one self-contained page out."""

from __future__ import annotations

from velogan.report.page import write_report

__all__ = ["write_report"]
