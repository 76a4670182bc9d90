"""Benchmarks: modes of computing a step, compared with each other and with the machine's limit."""

from velogan.measure.bench.cases import Case, Plan, make_chain, make_plan
from velogan.measure.bench.measure import bench
from velogan.measure.bench.paper import bench_paper
from velogan.measure.bench.table import render

__all__ = ["Case", "Plan", "bench", "bench_paper", "make_chain", "make_plan", "render"]
