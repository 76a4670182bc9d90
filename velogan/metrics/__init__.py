"""Figures: pure mathematics on images and on features of images."""
