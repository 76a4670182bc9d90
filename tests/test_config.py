from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from velogan.config import (
    SIZES,
    Config,
    Size,
    differences,
    field_names,
    parse_config,
    read_config,
    to_yaml,
)
from velogan.methods.base import Method
from velogan.recipes import RECIPES
from velogan.search.method import METHODS


@pytest.mark.parametrize("name", RECIPES)
def test_yaml_restores_every_recipe(name: str, tmp_path: Path):
    config = RECIPES[name]()
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert read_config(str(tmp_path)) == read_config(tmp_path) == read_config(tmp_path / "config.yaml") == config


def test_yaml_restores_special_values(tmp_path: Path):
    config = Config().change(
        data={"path": ("Äpfel", "oranges: 2"), "load_size": None}, optimizer={"rules": ("D_*:lr=1e-4",), "lr": 1e-5}
    )
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert read_config(tmp_path) == config


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"generator": {"chanels": 3}}, "generator.chanels: unknown field; did you mean generator.channels?"),
        ({"data": {"crop_size": "big"}}, r"data.crop_size='big': input should be a valid integer"),
        ({"optimizer": {"lr": -1}}, r"optimizer.lr=-1: input should be greater than 0"),
        ({"train": {"length": "soon"}}, "train.length: 'soon' is not a duration"),
        (
            {"discriminator": {"network": "projected"}, "method": {"source_as_fake_fraction": 0.25}},
            "method.source_as_fake_fraction=0.25 is for PatchGANs, and discriminator.network=projected has none: set "
            "method.source_as_fake_fraction=0, or",
        ),
        ({"optimizer": {"rules": ["D_A"]}}, r"optimizer.rules: 'D_A' is not a rule"),
    ],
)
def test_rejects_wrong_fields(tree: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_config(tree, source="here")
    assert str(caught.value).startswith("here: ")


def test_reports_all_wrong_fields_at_once():
    with pytest.raises(ValueError, match=r"(?s)generator.blocks=-1.*discriminator.foo"):
        parse_config({"generator": {"blocks": -1}, "discriminator": {"foo": 1}})


@pytest.mark.parametrize(
    ("content", "message"),
    [("- a\n- b\n", "is not a configuration"), ("a: [", "in plain YAML"), ("", "is not a configuration")],
)
def test_rejects_other_files(content: str, message: str, tmp_path: Path):
    (tmp_path / "file.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path / "file.yaml")
    with pytest.raises(ValueError, match="file not found"):
        read_config(tmp_path / "absent.yaml")


def test_differences_are_by_field_and_auto_asks_for_nothing():
    saved = Config().change(engine={"precision": "bf16", "threads": 2, "device": "cpu"}, train={"seed": 3})
    assert differences(Config(), saved) == {"train.seed": (0, 3)}
    requested = Config().change(engine={"precision": "fp32"}, train={"seed": 3})
    assert differences(requested, saved) == {"engine.precision": ("fp32", "bf16")}
    assert differences(saved, saved) == {}


def test_changes_are_checked_and_leave_the_original():
    config = Config()
    assert config.change(data={"crop_size": 64}).data.crop_size == 64
    assert config.data.crop_size == 256
    with pytest.raises(ValueError, match=r"data.crop_size=3"):
        config.change(data={"crop_size": 3})
    with pytest.raises(ValueError, match=r"data=None: set a mapping of fields, data=\{\.\.\.\}"):
        config.change(data=None)
    assert config.change(data={"path": "pictures"}).data.path == ("pictures",)
    with pytest.raises(ValueError, match="optimiser: unknown field; did you mean optimizer"):
        config.change(optimiser={"lr": 1e-3})


@pytest.mark.parametrize("size", SIZES)
def test_a_size_sets_width_and_depth_alone(size: Size):
    sized = Config().change(data={"crop_size": 64}).with_size(size)
    dial = SIZES[size]
    assert (sized.generator.channels, sized.generator.blocks) == (dial["channels"], dial["blocks"])
    assert sized.discriminator.channels == dial["discriminator"]
    assert sized.data.crop_size == 64
    assert Config().with_size("l") == Config()


def test_every_field_is_described_and_no_description_is_a_stub():
    def fields(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str]]:
        described_fields = []
        for name, field in model.model_fields.items():
            if field.annotation is Method:
                plain = [kind for kind in METHODS.values() if not prefix or "inner" not in kind.model_fields]
                kinds = [entry for kind in plain for entry in fields(kind, f"{prefix}{name}.")]
                described_fields += [(f"{prefix}{name}.kind", "chooses the method"), *kinds]
            elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                described_fields += fields(field.annotation, f"{prefix}{name}.")
            else:
                described_fields.append((prefix + name, field.description or ""))
        return described_fields

    described = dict(fields(Config))
    assert list(described) == field_names(Config)
    assert [name for name, text in described.items() if len(text) < 12] == []
