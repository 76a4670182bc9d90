from __future__ import annotations

import pytest
import torch

from velogan.metrics import registry
from velogan.metrics.registry import class_name, class_shares, describe, is_top1, set_distances
from velogan.report.scores import display_name


@pytest.mark.parametrize(("network", "long"), [("lite1", "EfficientNet-Lite1"), ("lite2", "EfficientNet-Lite2")])
def test_metrics_are_named_after_the_network(network: str, long: str) -> None:
    features = {network: torch.rand(4, 3), f"{network}_logits": torch.rand(4, 10)}
    metrics = set_distances(features, features, seed=0) | class_shares(features, {"zebra": 3}, seed=0)
    assert list(metrics) == [f"{network}_fid", f"{network}_kid", f"{network}_share_class_3"]
    for name in metrics:
        assert long in describe(name, source="horse", target="zebra", classes={"zebra": 3})
    labels = [display_name({"name": name}) for name in metrics]
    assert labels == [f"{network}-FID", f"{network}-KID", f"Class 3 ({network})"]
    orange = {"name": f"{network}_share_class_950", "class": class_name(f"{network}_share_class_950", {"orange": 950})}
    assert display_name(orange) == f"orange ({network})"


def test_large_sets_are_not_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = {"lite1": torch.rand(4, 3)}, {"lite1": torch.rand(9, 3)}
    for limit, is_resampled in ((9, True), (8, False)):
        monkeypatch.setattr(registry, "MAX_IMAGES", limit)
        for metric in set_distances(few, many, seed=0, resample=True).values():
            assert (metric.resampled is not None) == is_resampled


def test_is_top1_compares_the_largest_logit() -> None:
    logits = torch.eye(4)[[0, 1, 1, 3]]
    assert is_top1(logits, 1).tolist() == [0, 1, 1, 0]
    assert is_top1(logits, 2).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="class 4 does not exist; choose a number from 0 to 3"):
        is_top1(logits, 4)
