"""Measuring: every way of computing a step against the others and against the machine."""

from velogan.measure.bench.cases import Case, Plan, make_chain, make_plan
from velogan.measure.bench.measure import bench
from velogan.measure.bench.paper import bench_paper
from velogan.measure.bench.table import render

__all__ = ["Case", "Plan", "bench", "bench_paper", "make_chain", "make_plan", "render"]
