"""Metrics: pure functions of images and of features of images."""
