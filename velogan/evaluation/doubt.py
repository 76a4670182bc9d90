"""Maps of doubt for a run's translator, by its autoencoder or by the generator of the other direction."""

from __future__ import annotations

from dataclasses import replace

from velogan.config import read_config
from velogan.methods.capabilities import HasAutoencoder, capability
from velogan.translate.doubt import Doubter
from velogan.translate.model import Translator, load_translator
from velogan.types import GENERATOR_FILES


def doubter_of(model: Translator) -> Doubter:
    """Maps of doubt for `model`, a run's: by its autoencoder where its method has one, else by the other direction.

    ValueError, with the mend, for a file outside a run folder and for a run that has neither.
    """
    file = model.file
    run = None if file is None else file.absolute().parent.parent.parent
    if file is None or run is None or not (run / "config.yaml").is_file():
        raise ValueError(f"doubt needs the way back of a run, and {file} stands alone: name the run folder")
    if owner := capability(read_config(run).method, HasAutoencoder):
        reconstruct = replace(model, net=owner.autoencoder_of(model.net))
        return Doubter(model, lambda images, _results: reconstruct.quickly(images, rounded=False))
    role = model.header["role"]
    (other,) = {*GENERATOR_FILES.values()} - {role}
    way_back = file.with_name(file.name.replace(role, other, 1))
    if not way_back.is_file():
        raise ValueError(
            f"doubt needs the way back, and {file.parent} has no {way_back.name}: train a run of both directions, or "
            "by a method with an autoencoder"
        )
    back = load_translator(way_back, device=model.device, fast=model.accelerate is not None)
    return Doubter(model, lambda _images, results: back.quickly(results, rounded=False))
