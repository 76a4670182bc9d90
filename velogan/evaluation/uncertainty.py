"""Uncertainty maps for a run's translator, by its autoencoder or by the generator of the other direction."""

from __future__ import annotations

from dataclasses import replace

from velogan.config import read_config
from velogan.translate.model import Translator, load_translator
from velogan.translate.uncertainty import UncertaintyEstimator
from velogan.types import GENERATOR_FILES


def uncertainty_estimator(model: Translator) -> UncertaintyEstimator:
    """Uncertainty maps for `model`, a run's: by its autoencoder where its method has one, else by the other direction.

    ValueError, with the mend, for a file outside a run folder and for a run that has neither.
    """
    file = model.file
    run = None if file is None else file.absolute().parent.parent.parent
    if file is None or run is None or not (run / "config.yaml").is_file():
        raise ValueError(
            f"uncertainty needs the reverse generator of a run, and {file} is a single file: name the run folder"
        )
    if (autoencoder := read_config(run).method.autoencoder_of(model.net)) is not None:
        reconstruct = replace(model, net=autoencoder)
        return UncertaintyEstimator(model, lambda images, _results: reconstruct.translate_fast(images, rounded=False))
    role = model.header["role"]
    (other,) = {*GENERATOR_FILES.values()} - {role}
    way_back = file.with_name(file.name.replace(role, other, 1))
    if not way_back.is_file():
        raise ValueError(
            f"uncertainty needs the reverse generator, and {file.parent} has no {way_back.name}: train both "
            "directions, or use a method with an autoencoder"
        )
    back = load_translator(way_back, device=model.device, fast=model.accelerate is not None)
    return UncertaintyEstimator(model, lambda _images, results: back.translate_fast(results, rounded=False))
