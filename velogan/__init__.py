"""velogan: unpaired image-to-image translation, trained fast and judged honestly."""

__version__ = "0.1.0"
