"""Self-contained HTML pages about runs, sweeps and profiles."""

from __future__ import annotations

from velogan.report.page import write_report

__all__ = ["write_report"]
