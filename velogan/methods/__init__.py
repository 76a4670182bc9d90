"""The methods: each is a file with its configuration, its networks by role, its losses and its generators."""

from velogan.methods.base import Method
from velogan.methods.contrast import Contrast
from velogan.methods.cyclegan import CycleGAN
from velogan.methods.onepair import OnePair

METHODS: dict[str, type[Method]] = {method.kind: method for method in (CycleGAN, Contrast, OnePair)}
"""Methods by their name in `method.kind`. A search can wrap a method if it `is_searchable`."""

DEFAULT = CycleGAN()
