"""Measuring: every way of computing a step against the others and against the machine."""

from velogan.bench.cases import Case, Plan, make_chain, make_plan
from velogan.bench.measure import bench
from velogan.bench.paper import bench_paper
from velogan.bench.table import render

__all__ = ["Case", "Plan", "bench", "bench_paper", "make_chain", "make_plan", "render"]
