"""Run folders in, one self-contained page out."""

from velogan.report.page import write_report

__all__ = ["write_report"]
