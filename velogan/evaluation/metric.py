"""The figure by which a sweep compares runs: of held-out training pictures, at each checkpoint; never of test ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from velogan.data.config import DataConfig
from velogan.data.rendered.apples2oranges import render_answers
from velogan.data.sets.sources import Folder, Side, Sources, cache_directory
from velogan.evaluation import each
from velogan.evaluation.evaluate import load_networks
from velogan.evaluation.features import JUDGE, Judge
from velogan.evaluation.pictures import Pictures, Real
from velogan.evaluation.scoring import Scorer, quiet
from velogan.evaluation.validation import SCORE, Validation
from velogan.files import did_you_mean
from velogan.methods.base import Method, Spec, Views
from velogan.metrics.bootstrap import resampled_sliced
from velogan.metrics.figures import NAMES, lower_is_better, means
from velogan.metrics.sliced import level_patches
from velogan.networks.build import Networks
from velogan.translate.model import Translator
from velogan.types import Direction

RESAMPLED = "/resampled"
"""The end of the name, in the log, of a list: the metric over held-out pictures that were drawn again."""

_PREFIX = "validation/"
_LOGGED = ("distance", "cycle_a", "cycle_b", "reconstruction_a", "reconstruction_b")
"""What the log of every run may hold, whatever the metric is."""

_OF_TRUTH = ("psnr_object_db", "ssim_object", "psnr_background_db", "psnr_truth_db", "ssim_truth")
_OF_TRUTH += ("label_accuracy", "label_iou")
_WAYS: tuple[Direction, ...] = get_args(Direction)
_SHARE = r"(lite1|lite2)_share_class_(\d{1,3})"


def parse_metric(text: str) -> str:
    """The name in the log, `validation/...`, of the figure that `text` names. ValueError with the nearest name."""
    name = text.removeprefix(_PREFIX)
    figure, way = _parts(name)
    if re.fullmatch(_SHARE, figure):
        if way is None:
            raise ValueError(
                f"{text}: the share of a class is of one direction, name {text}_a2b with a class of domain B"
            )
    elif figure not in (*_LOGGED, *NAMES) or (way and figure in _LOGGED[1:]):
        known = [*_LOGGED, *NAMES]
        raise ValueError(
            f"{text} is no figure of held-out pictures{did_you_mean(figure, known)}; there are {', '.join(known)}, "
            f"and {JUDGE}_share_class_INDEX; with _a2b or _b2a at the end, of one direction"
        )
    return f"{_PREFIX}{name}"


def higher_is_better(metric: str) -> bool:
    """Whether a higher value of the `metric` is better. Of the share of a class it is: name one of the target."""
    figure, _ = _parts(metric.removeprefix(_PREFIX))
    return figure not in _LOGGED and not lower_is_better(figure)


def features_of(metric: str) -> dict[str, Any]:
    """What `evaluate` and `load_networks` must be asked for, so that they give the `metric`; `classes` among it."""
    figure, _ = _parts(metric.removeprefix(_PREFIX))
    asked: dict[str, Any] = {"features": "none", "inception": None, "classes": {}}
    if (judge := figure.partition("_")[0]) in get_args(Judge):
        asked["features"] = judge
    if figure.startswith(("fid", "kid")):
        asked["inception"] = "auto"
    if share := re.fullmatch(_SHARE, figure):
        asked["classes"] = {f"class {share[2]}": int(share[2])}
    return asked


def check_metric(metric: str, method: Method, spec: Spec, sources: Sources, *, data: DataConfig, device: str) -> None:
    """ValueError, with the reason and the mend, where runs of `method` on `sources` cannot give the `metric`."""
    name = metric.removeprefix(_PREFIX)
    figure, way = _parts(name)
    ways = method.directions
    if way is not None and way not in ways:
        raise ValueError(f"metric={name}: method={method.kind} learns {ways[0]} alone: name that direction")
    if sources.a.validation is None or sources.b.validation is None:
        raise ValueError(
            f"metric={name} is measured on held-out training pictures, and there are none: set data.validation to 2 "
            "or more; a domain needs 20 training pictures for that"
        )
    if figure.startswith("cycle") or "reconstruction" in figure:
        _check_views(method, spec, name, figure)
    elif figure != "distance":
        given = _given(sources, metric, data, device)
        for asked in (way,) if way else ways:
            if figure not in given[asked]:
                other = next((one for one in ways if figure in given[one]), None)
                mend = f"name {figure}_{other}" if other else f"there are {', '.join(given[asked])}"
                why = ": what they should become is not known, or of another kind" if figure in _OF_TRUTH else ""
                raise ValueError(f"metric={figure}: held-out pictures give none for {asked}{why}; {mend}")


class MetricValidation(Validation):
    """`Validation` that also measures a metric: for each direction, and the mean over them.

    Runs on equal pictures resample equally, so that their metrics can be compared resample by resample. The best
    checkpoint of a run is chosen as `Validation` chooses it.
    """

    def __init__(
        self,
        method: Method,
        spec: Spec,
        sources: Sources,
        views: Views,
        *,
        data: DataConfig,
        device: str,
        bf16: bool,
        metric: str,
    ):
        super().__init__(method, spec, sources, views, data=data, device=device, bf16=bf16)
        self.metric, self._resampled = metric, dict[Direction, Tensor]()
        self.figure, self.way = _parts(metric.removeprefix(_PREFIX))
        if self.figure not in _LOGGED and self.on:
            self.scorer, self.reals = _opened(sources, metric, data, device)

    def score(self) -> dict[str, Any]:
        """The figures of `Validation`, the metric, and a list of it over held-out pictures drawn again."""
        self._resampled = {}
        found = super().score()
        if self.figure not in _LOGGED:
            values = {way: self._measure(way) for way in self.method.directions}
            known = {way: value for way, value in values.items() if value is not None}
            found |= {f"{_PREFIX}{self.figure}_{way}": value for way, value in known.items()}
            if len(known) == len(values):
                found[f"{_PREFIX}{self.figure}"] = fmean(known.values())
        if self.metric not in found:
            raise ValueError(
                f"metric={self.metric.removeprefix(_PREFIX)} cannot be measured here; there are {', '.join(found)}"
            )
        ways = (self.way,) if self.way else self.method.directions
        if all(way in self._resampled for way in ways):
            mean = torch.stack([self._resampled[way] for way in ways]).mean(dim=0)
            found[self.metric + RESAMPLED] = [_short(value) for value in mean.tolist()]
        return found

    def distance(self, way: Direction, fake: Tensor, wanted: Tensor) -> float:
        if self.figure == "distance":
            x, y = (list(level_patches(images).values()) for images in (fake, wanted))
            self._resampled[way] = resampled_sliced(x, y, seed=0)
        return super().distance(way, fake, wanted)

    def _measure(self, way: Direction) -> float | None:
        """The figure of one direction's translations, None if there is none."""
        source, target = self.reals if way == "a2b" else self.reals[::-1]
        if "_reconstruction" in self.figure:
            assert self.views.reconstruction is not None, "checked before"
            backs = self._made(self.views.reconstruction, source, source)
            figures = means(each.of_reconstructions(source.pictures, backs), seed=0)
        else:
            fakes = self._made(self.views.generators[way], source, target)
            seen = self.scorer.look(fakes, "")
            figures = self.scorer.figures(source, target, fakes, seen, resample=True)
        figure = figures.get(self.figure)
        if figure is not None and figure.resampled is not None:
            self._resampled[way] = figure.resampled
        return None if figure is None else figure.value

    def _made(self, net: nn.Module, source: Real, target: Real) -> Pictures:
        device = torch.device(self.device)
        translator = Translator(_AsTrained(net, self.bf16), multiple=self.spec.multiple, device=device)
        return self.scorer.made(translator, source, target.pictures.format, "")


class _AsTrained(nn.Module):
    """A generator in the precision of training: bfloat16 if `bf16`, else float32.

    It computes outside inference mode: tensors that a layer keeps from there could not be used in training.
    """

    def __init__(self, net: nn.Module, bf16: bool):
        super().__init__()
        self.net, self.bf16 = net, bf16

    def forward(self, images: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            images = images.clone()
            with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                return self.net(images).float()


def _parts(name: str) -> tuple[str, Direction | None]:
    """`structure_a2b` is the figure and its direction; None for the mean over directions."""
    for way in _WAYS:
        if name.endswith(f"_{way}"):
            return name.removesuffix(f"_{way}"), way
    return name, None


def _opened(sources: Sources, metric: str, data: DataConfig, device: str) -> tuple[Scorer, tuple[Real, Real]]:
    """The scorer of a metric, and the held-out pictures of A and of B with their true translations if known."""
    asked, cache = features_of(metric), cache_directory(data)
    classes = asked.pop("classes")
    networks = load_networks(**asked, cache=cache, device="cpu" if device == "auto" else device, task=quiet)
    scorer = Scorer(data, networks, classes, None, 0, quiet)
    a, b = _with_answers(sources, cache / "rendered")
    return scorer, (scorer.open(a, b), scorer.open(b, a))


def _with_answers(sources: Sources, rendered: Path) -> Iterator[Side]:
    """Both sides, with the held-out pictures in place of test pictures, and their own answers."""
    a, b = sources.a, sources.b
    assert a.validation is not None
    assert b.validation is not None
    pairs = sources.aligned and a.validation.names == b.validation.names
    answers = None
    names = {"A": a.validation.names, "B": b.validation.names}
    if isinstance(a.train, Folder):
        answers = render_answers(a.train.directory.parent, names, into=rendered)  # pyright: ignore[reportArgumentType]
    for side, other in ((a, b.validation), (b, a.validation)):
        truth = other.directory if pairs and isinstance(other, Folder) else None
        mask = None
        if answers:
            truth, mask = answers / f"truth{side.letter}", answers / f"mask{side.letter}"
        yield replace(side, test=side.validation, truth=truth, mask=mask)


def _given(sources: Sources, metric: str, data: DataConfig, device: str) -> Mapping[Direction, list[str]]:
    """The names of the figures that held-out pictures give, by direction, found by scoring black pictures."""
    scorer, reals = _opened(sources, metric, data, device)
    found: dict[Direction, list[str]] = {}
    for way in _WAYS:
        source, target = reals if way == "a2b" else reals[::-1]
        form = target.pictures.format
        arrays = [np.zeros((*one.shape[:2], form.channels), form.dtype) for one in source.pictures.arrays]
        black = Pictures(arrays, form)
        found[way] = [*scorer.figures(source, target, black, scorer.look(black, ""), resample=False)]
    return found


def _check_views(method: Method, spec: Spec, name: str, figure: str) -> None:
    """ValueError where the method lacks the way back or the reconstruction that a figure needs."""
    with torch.device("meta"):
        nets = {key: role.net for key, role in method.roles(spec, Networks()).items()}
        views = method.views(nets, spec)
    if "reconstruction" in figure and views.reconstruction is None:
        raise ValueError(f"metric={name}: method={method.kind} has no reconstruction: name {SCORE}")
    if figure.startswith("cycle") and (views.reconstruction is not None or len(views.generators) < 2):
        raise ValueError(f"metric={name}: method={method.kind} has no way back: name {SCORE}")


def _short(value: float) -> float | None:
    """Six digits, enough for an interval; None for what JSON cannot hold."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
