from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.cli import main
from velogan.config import Config
from velogan.methods.contrast import PATCHES, Contrast, ContrastObjective
from velogan.networks.build import build_network
from velogan.networks.generators import GeneratorConfig, ResidualBlock, build_generator, compose
from velogan.networks.outputs import apply_mask
from velogan.networks.patch_features import split_for_features
from velogan.objectives.losses import (
    TEMPERATURE,
    gather_at,
    generator_adversarial_loss,
    sample_locations,
)
from velogan.store.checkpoint import load_weights
from velogan.training.build import build_roles, build_step
from velogan.training.engine_settings import resolve_engine
from velogan.types import Batch

SIDE = 32


def _config(tiny_config: Callable[..., Config], *, blocks: int = 3, output: str = "image", **method: Any) -> Config:
    return tiny_config(generator={"blocks": blocks, "output": output}, method={"kind": "contrast", **method})


def _objective(config: Config, *, batched: bool = False) -> ContrastObjective:
    method = config.method
    assert isinstance(method, Contrast)
    return method.objective(config.spec, shape=(SIDE, SIDE), batched=batched)


def _nets(config: Config) -> dict[str, nn.Module]:
    return {name: role.net for name, role in build_roles(config.method, config.spec, seed=1).items()}


def _batch(objective: ContrastObjective, *, images: int = 2) -> Batch:
    random = torch.Generator().manual_seed(0)
    batch = {side: torch.rand(images, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}
    return batch | {"uniform": torch.rand(objective.num_uniforms["train"], images, generator=random)}


def test_sampled_locations_are_distinct_and_cover_the_image():
    draws = torch.rand(8, 500, generator=torch.Generator().manual_seed(0))
    locations = sample_locations(draws, 21)
    assert locations.shape == (500, 8)
    assert all(len(set(row.tolist())) == 8 for row in locations)
    assert set(locations.flatten().tolist()) == set(range(21))
    last = sample_locations(torch.full((8, 1), 1 - 2**-24), 21)  # the ends of the ranges
    assert last.flatten().tolist() == [1, 4, 6, 9, 12, 14, 17, 20]
    assert sample_locations(draws, 5)[0].tolist() == [0, 1, 2, 3, 4]
    features = torch.arange(12.0).view(1, 2, 2, 3)
    assert gather_at(features, torch.tensor([[1, 3]])).tolist() == [[[1.0, 7.0], [3.0, 9.0]]]


@pytest.mark.parametrize(("blocks", "taps"), [(9, [0, 1, 5]), (3, [0, 1, 2]), (1, [0, 1]), (0, [0])])
@pytest.mark.parametrize("config", [{}, {"antialias": "both", "padding": "reflect"}])
def test_features_are_those_of_the_paper_and_the_parts_compose_the_generator(
    blocks: int, taps: list[int], config: dict[str, Any]
):
    net = build_generator(GeneratorConfig(channels=2, blocks=blocks, **config))
    encoder, rest = split_for_features(net)
    x = torch.rand(1, 3, SIDE, SIDE) * 2 - 1
    expected, last_layers = [], [stage.model[-1] for stage in encoder.stages]  # pyright: ignore
    for layer in net.model.children():  # pyright: ignore
        layer.register_forward_hook(lambda layer, inputs, out: expected.append(out) if layer in last_layers else None)
    output = net(x)
    features = encoder(x)
    counts = [sum(isinstance(layer, ResidualBlock) for layer in stage.modules()) for stage in encoder.stages]
    assert counts[2:] == [b - a for a, b in pairwise([0, *taps[1:]])] or blocks == 0
    assert [isinstance(end, nn.Conv2d) for end in last_layers[:2]] == [True, True]
    assert all(map(torch.equal, features, expected[: len(last_layers)]))
    assert torch.equal(rest(features[-1]), output)
    assert list(compose(*encoder.stages, rest).state_dict()) == list(net.state_dict())


@pytest.mark.parametrize("output", ["image", "mask"])
@pytest.mark.parametrize("batched", [False, True])
def test_generator_loss_by_its_definition(output: str, batched: bool, tiny_config: Callable[..., Config]):
    config = _config(tiny_config, output=output, contrast=2.0, identity=0.5, gan="hinge")
    objective, nets = _objective(config, batched=batched), _nets(config)
    batch = _batch(objective)
    out = objective.generator_loss(nets, batch, {})
    encoder, rest, heads = nets["E_A"], nets["R_A"], nets["H_A"]

    def translate(x: Tensor) -> Tensor:
        outputs = rest(encoder(x)[-1])
        return apply_mask(outputs, x) if output == "mask" else outputs

    def contrastive_loss(outputs: Tensor, inputs: Tensor) -> Tensor:
        losses = []
        draws = batch["uniform"][-5 * PATCHES :]
        for tap, maps in enumerate(zip((outputs, *encoder(outputs)), (inputs, *encoder(inputs)), strict=True)):
            locations = sample_locations(draws[tap * PATCHES :][:PATCHES], maps[0].shape[2] * maps[0].shape[3])
            projected = [heads.heads[tap](gather_at(x, locations)) for x in maps]  # pyright: ignore
            queries, keys = (x / x.norm(dim=2, keepdim=True) for x in projected)
            logits = queries @ keys.mT / TEMPERATURE
            targets = torch.arange(logits.shape[1]).expand(len(logits), -1)
            losses.append(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
        return torch.stack(losses).mean()

    fake, identity = translate(batch["A"]), translate(batch["B"])
    expected = {
        "adversarial_a": generator_adversarial_loss(nets["D_A"](fake), kind="hinge"),
        "contrast_a": contrastive_loss(fake, batch["A"]) * 2.0 / 1.5,
        "identity_a": contrastive_loss(identity, batch["B"]) * 2.0 * 0.5 / 1.5,
    }
    assert set(out.terms) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(out.terms[name], value, rtol=2e-3, atol=1e-4)  # heads' lengths are 1 but for 1e-8
    torch.testing.assert_close(out.loss, sum(out.terms.values()))
    assert torch.equal(out.cache["fake_b"], objective.translate(nets, objective.directions[0], batch["A"])) or batched


def test_heads_and_both_parts_learn_from_the_contrast_alone(tiny_config: Callable[..., Config]):
    config = _config(tiny_config, direction="both")
    objective, nets = _objective(config), _nets(config)
    terms = objective.generator_loss(nets, _batch(objective), {}).terms
    (terms["contrast_a"] + terms["identity_b"]).backward()
    for name in ("E_A", "R_A", "H_A", "E_B", "R_B", "H_B"):
        for weight, value in nets[name].named_parameters():
            has_gradient = value.grad is not None and bool(value.grad.abs().sum() > 0)
            before_norm = weight.endswith("bias") and not name.startswith("H")  # the norm cancels it
            assert has_gradient or before_norm, (name, weight)
    assert all(value.grad is None for value in nets["D_A"].parameters())


def test_bf16_and_the_native_kernels_are_near_float32(tiny_config: Callable[..., Config]):
    rows = []
    for engine in ({"mode": "reference"}, {"precision": "bf16"}):
        config = _config(tiny_config, output="mask").change(engine={"threads": 1, **engine})
        config = config.model_copy(update={"engine": resolve_engine(config)[0]})
        step, objective, _ = build_step(config, shape=(SIDE, SIDE))
        assert isinstance(objective, ContrastObjective)
        rows.append({name: float(value) for name, value in step({"train": _batch(objective)}).items()})
    assert rows[0].keys() == rows[1].keys()
    for name, value in rows[0].items():
        assert rows[1][name] == pytest.approx(value, rel=0.03), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": {"network": "unet_128"}}, "network=unet_128 has no blocks.*set generator.network=resnet"),
        ({"generator": {"output": "change", "norm": "none"}}, "output=change is not available.*set"),
        ({"discriminator": {"network": "projected"}, "method": {"source_as_fake_fraction": 0.1}}, "is for PatchGANs"),
    ],
)
def test_rejects_unsuitable_networks(changes: dict[str, Any], message: str, tiny_config: Callable[..., Config]):
    changes = {**changes, "method": {"kind": "contrast", **changes.get("method", {})}}
    with pytest.raises(ValueError, match=message):
        tiny_config(**changes)


def test_train_evaluate_export_and_start_from_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, flags = tmp_path / "run", "--data.render-count 6 --data.render-test 2 --generator.channels 4 --json"
    small = f"{flags} --generator.blocks 2 --discriminator.channels 4 --image-size 32 --engine.threads 1 --images 4"
    assert main(["train", "contrast", "--data", "apples2oranges", "--out", str(run), *small.split()]) == 0
    trained = json.loads(capsys.readouterr().out.splitlines()[-1])
    files = {file.stem: file for file in Path(trained["checkpoint"]).glob("*.safetensors")}
    assert set(files) == {"G_A", "G_A.ema", "D_A", "H_A", "state"}
    for name in set(files) - {"state"}:
        header, weights = load_weights(files[name])
        build_network(header).load_state_dict(weights)
    for widths in ([], [0], "many", [3] * 17):
        with pytest.raises(ValueError, match="widths="):
            build_network({"network": "patch_heads", "widths": widths})
    assert main(["evaluate", str(run), "--features", "none", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])["scores"]
    assert {score["direction"] for score in scores} == {"a2b"}
    exported = tmp_path / "G.pth"
    assert main(["export", str(run), str(exported), "--format", "reference"]) == 0
    assert exported.is_file()
    capsys.readouterr()
    start = ["--start", str(run), "--out", str(tmp_path / "more")]
    assert main(["train", "contrast", "--data", "apples2oranges", *start, *small.split()]) == 0
    assert "starts with D_A, G_A, H_A of" in capsys.readouterr().err
