"""Measurements that compare velogan with others or forecast; run from the checkout as `python -m benchmarks.NAME`."""
