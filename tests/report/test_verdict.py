from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from velogan.report.run_data import read_run_data
from velogan.report.verdict import summarize_run, summarize_scores

MakeScore = Callable[..., dict[str, Any]]
RELATED = "more like their own input than like another in 98.0 % of comparisons (chance 50 %)"
MakeRun = Callable[..., Path]
NAMES = {"a2b": ("apples", "oranges"), "b2a": ("oranges", "apples")}


def test_reports_what_is_better_and_worse_with_a_hint(score: MakeScore) -> None:
    scores = [
        score("retrieval", 0.98, baseline=1.0),
        score("psnr_object_db", 20.6, baseline=13.0),
        score("psnr_background_db", 18.2, baseline=None),
        score("lite2_fid", 373.0, baseline=181.0, better="lower"),
        score("structure", 0.7, baseline=1.0),
        score("kid", 0.2, baseline=0.21, better="lower", interval_95=[0.15, 0.25]),
    ]
    summary, sentence, hint = summarize_scores(scores, NAMES)
    assert summary.startswith("Mixed: ")
    assert sentence == (
        f"apples to oranges: better by Object PSNR (20.6 dB, unchanged input 13.0 dB); {RELATED}; worse by "
        "lite2-FID (373.0, unchanged input 181.0); the background changed (18.2 dB to the input)."
    )
    assert "larger --images" in hint
    assert "--generator.output mask" in hint


def test_names_the_most_important_metrics_first(score: MakeScore) -> None:
    scores = [score("label_iou", 0.5, baseline=0.2), score("kid", 0.1, baseline=0.3, better="lower")]
    sentence = summarize_scores([*scores, score("retrieval", 0.98, baseline=1.0)], NAMES)[1]
    assert "better by KID (0.100, unchanged input 0.300), Label IoU" in sentence


def test_a_single_image_decides_nothing(score: MakeScore) -> None:
    single = score("psnr_truth_db", 20.1, baseline=20.0, interval_95=None, images_fake=1)
    assert summarize_scores([single], NAMES) == []
    many = [{**single, "images_fake": 6000}, score("retrieval", 0.98, baseline=1.0)]
    assert summarize_scores(many, NAMES)[0] == "Better than the unchanged input."


def test_reports_what_cannot_be_told_from_the_unchanged_input(score: MakeScore) -> None:
    kid = score("kid", 0.1, baseline=0.11, better="lower", interval_95=[0.05, 0.2])
    (summary,) = summarize_scores([kid, score("retrieval", 0.98, baseline=1.0)], NAMES)
    assert summary == "Neither better nor worse than the unchanged input, as far as this number of images can tell."


def test_reports_translations_that_do_not_depend_on_their_inputs(score: MakeScore) -> None:
    scores = [score("kid", 0.1, baseline=0.3, better="lower"), score("retrieval", 0.53, baseline=1.0, real=0.5)]
    summary, sentence, hint = summarize_scores(scores, NAMES)
    assert summary == "Realistic, but unrelated to the input: apples to oranges."
    assert sentence.endswith("more like their own input than like another in 53.0 % of comparisons (chance 50 %).")
    assert hint.startswith("Train longer")
    good = [score("kid", 0.1, baseline=0.3, better="lower", direction="b2a")]
    good.append(score("retrieval", 0.98, direction="b2a", baseline=1.0))
    assert summarize_scores([*scores, *good], NAMES)[0] == summary  # the other direction does not hide it
    assert summarize_scores(scores[1:], NAMES)[0] == "Unrelated to the input: apples to oranges."
    assert summarize_scores(scores[:1], NAMES)[0].startswith("Neither better nor worse")  # one that was not measured


def test_reports_a_bad_translator_with_a_hint_and_a_good_one_without(score: MakeScore) -> None:
    bad = summarize_scores([score("kid", 0.3, baseline=0.1, better="lower", direction="b2a")], NAMES)
    assert bad[:2] == [
        "Worse than the unchanged input.",
        "oranges to apples: worse by KID (0.300, unchanged input 0.100).",
    ]
    assert len(bad) == 3
    scores = [score("psnr_object_db", 25.0), score("psnr_background_db", 36.0, baseline=None)]
    assert summarize_scores([*scores, score("retrieval", 0.98, baseline=1.0)], NAMES) == [
        "Better than the unchanged input.",
        f"apples to oranges: better by Object PSNR (25.0 dB, unchanged input 12.2 dB); {RELATED}.",
    ]


def test_without_a_baseline_quotes_the_most_important_metric(make_run: MakeRun, score: MakeScore) -> None:
    alone = [score("lite1_share_class_950", 0.42, baseline=None), score("lite1_kid", 0.5, baseline=None)]
    assert summarize_scores(alone, NAMES) == []
    assert summarize_run(read_run_data(make_run(scores=alone))) == ["lite1-KID: 0.500."]
    ended = {
        f"validation/{name}{suffix}": value
        for suffix in ("", "_a2b")
        for name, value in (("distance", 3), ("unchanged_input", 4))
    }
    run = make_run("ended", scores=[])
    (run / "stats.jsonl").write_text(json.dumps({"images": 9, "ended": True, **ended}))
    sentences = summarize_run(read_run_data(run))
    assert sentences[0].startswith("Not scored yet")
    assert (
        sentences[1] == "Translations of held-out images are 25% closer to real ones than their inputs are (a2b 25%)."
    )
