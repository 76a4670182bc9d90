"""Choice of the uncertainty estimator of a run: by its autoencoder or by the generator of the other direction."""

from __future__ import annotations

from dataclasses import replace

from velogan.config import read_config
from velogan.translate.model import Translator, load_translator
from velogan.translate.uncertainty import UncertaintyEstimator
from velogan.types import GENERATOR_FILES


def uncertainty_estimator(model: Translator) -> UncertaintyEstimator:
    """Return an estimator for the `model` of a run: by its autoencoder if it has one, else by the reverse generator.

    Raises ValueError if its file is outside a run folder, or the run has neither.
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
    (reverse_role,) = {*GENERATOR_FILES.values()} - {role}
    reverse_file = file.with_name(file.name.replace(role, reverse_role, 1))
    if not reverse_file.is_file():
        raise ValueError(
            f"uncertainty needs the reverse generator, and {file.parent} has no {reverse_file.name}: train both "
            "directions, or use a method with an autoencoder"
        )
    reverse = load_translator(reverse_file, device=model.device, fast=model.accelerate is not None)
    return UncertaintyEstimator(model, lambda _images, results: reverse.translate_fast(results, rounded=False))
