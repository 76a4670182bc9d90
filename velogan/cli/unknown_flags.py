"""Explain unknown flags, without the imports of a command, which take seconds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

REFERENCE_FLAGS = (
    " dataroot name checkpoints_dir suffix gpu_ids model input_nc output_nc ngf ndf netG netD n_layers_D norm "
    "init_type init_gain no_dropout dataset_mode direction serial_batches num_threads batch_size load_size crop_size "
    "max_dataset_size preprocess no_flip display_winsize epoch load_iter which_epoch verbose use_wandb "
    "wandb_project_name n_epochs n_epochs_decay niter niter_decay lr beta1 lr_policy lr_decay_iters gan_mode lambda_A "
    "lambda_B lambda_identity lambda_L1 pool_size continue_train epoch_count phase save_latest_freq save_epoch_freq "
    "save_by_iter print_freq display_freq update_html_freq display_ncols display_id display_server display_env "
    "display_port no_html results_dir num_test how_many ntest aspect_ratio eval "
)
"""The flags of the reference implementation, which docs/migration.md lists."""

HINTS = {
    "dataroot": "--data",
    "epochs": "--images or --minutes",
    "gpu": "--device cuda",
    "gpus": "--device cuda",
    "gpu_ids": "--device cuda",
    "name": "--out",
    "preset": "the name of the preset, without a flag, as the first word",
}
"""What to use instead of the flags of other programs, by the flag's name."""

SHORT_FLAGS = {
    "--data": "data.path",
    "--seed": "train.seed",
    "--image-size": "data.crop_size",
    "--device": "engine.device",
    "--method": "method.scheme",
}
"""The field of the configuration that each short flag sets."""

CONFIG_FIELDS = {
    "method": "kind gan smoothing pool_size edges source_as_fake_fraction augment augment_probability adversarial_a "
    "adversarial_b cycle_a cycle_b identity direction contrast reconstruction scale "
    "adversarial deviation_target deviation_source scheme hidden",
    "train": "length accumulate seed ema_images ema_rampup process_timeout log_every sample_every samples "
    "checkpoint_every exchange_every start patience keep logger",
    "data": "path preprocess crop_size load_size channels_a channels_b range_a range_b window context_slices "
    "pages flip flip_vertical rotate90 serial_batches batch_size validation group masks_a masks_b "
    "masks_keep labels_a labels_b cache_dir workers render_count render_test",
    "generator": "network blocks channels norm dropout decoder antialias padding output operations space init",
    "discriminator": "network features feature_size layers channels norm antialias operations space init",
    "optimizer": "kind lr beta1 beta2 epsilon momentum weight_decay clip_norm rules",
    "schedule": "kind hold gamma every warmup",
    "engine": "mode device precision kernels checkpoint_activations compile threads",
}
"""The fields of a configuration by section."""

_COMMON = "config data device discriminator_b generator_b help help_all image_size json method out seed size "
_FLAGS = {
    "train": _COMMON + "address dry_run epochs genotype hidden images match_size minutes modules sizes_only start",
    "search": _COMMON + "cells dry_run epochs hidden images inner minutes space",
    "sweep": _COMMON + "address dry_run images metric minutes parallel search seeds stop_early trials vary",
    "profile": _COMMON + "steps",
}
"""The flags of each command with a configuration, without the flags of the configuration's fields."""


def name_fields_as_typed(text: str, argv: Sequence[str]) -> str:
    """Return the message `text` with each field replaced by its short flag, if `argv` sets the field by that flag."""
    typed = [word.partition("=")[0].replace("_", "-") for word in argv]
    for flag, field in SHORT_FLAGS.items():
        if flag in typed and f"--{field.replace('_', '-')}" not in typed:
            text = re.sub(rf"(--)?{re.escape(field)}\b( \({flag}\))?", flag, text)
    return text


def check_config_flags(argv: Sequence[str]) -> None:
    """Raise ValueError if the command line `argv` has an unknown flag; commands without a configuration are ignored."""
    if argv[0] in _FLAGS:
        names = [f"{section}.{field}" for section, fields in CONFIG_FIELDS.items() for field in fields.split()]
        check_flags(argv, [f"--{name.replace('_', '-')}" for name in [*_FLAGS[argv[0]].split(), *names]])


def check_flags(argv: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError if a flag is not `known`."""
    for word in argv:
        flag = word.partition("=")[0].replace("_", "-").replace(".inner.", ".")
        if flag.startswith("--") and re.sub(r"(--|\.)no-", r"\1", flag) not in known:  # --no-json, --data.no-flip
            raise ValueError(explain_unknown_flag(word, known))


def explain_unknown_flag(flag: str, flags: Iterable[str]) -> str:
    """Return one sentence on a flag that is not among `flags`, with suggestions."""
    name = re.sub("^-+|=.*", "", flag).replace("-", "_")
    by_name: dict[str, list[str]] = {}
    for known in flags:
        full_name = known.lstrip("-").replace("-", "_")
        for key in {full_name, full_name.rpartition(".")[2]}:
            by_name.setdefault(key, []).append(known)
    if "." in name and name in by_name:
        return f"{flag}: the chosen {name.partition('.')[0]} does not have it"
    hint = HINTS.get(name, "")
    needed = hint.split()[0].lstrip("-") if hint.startswith("-") else "size"  # commands with presets have --size
    if hint and needed in by_name:
        suggestion = f"; use {hint}"
    else:
        near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.65)
        suggestion = f"; did you mean {' or '.join(by_name[near[0]][:3])}?" if near else ""
    if f" {name} " in REFERENCE_FLAGS:
        suggestion += "; docs/migration.md has the reference implementation's flags"
    return f"{flag}: unknown {'flag' if flag.startswith('-') else 'argument'}{suggestion}"
