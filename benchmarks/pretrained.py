"""Makes the translator of the built-in set that comes with the package.

    python -m benchmarks.pretrained FOLDER

The demo's recipe with generators half as wide, one thread, 3,520 images: about six minutes of processor time. It writes
FOLDER/apples2oranges.safetensors (float32, 0.8 MB), to be put into velogan/interchange/pretrained, and prints the mean
PSNR to the truth on the objects of 48 held-out pictures, beside that of doing nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

IMAGES = 3520

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    run = folder / "run"
    train = ["train", "demo", "--images", str(IMAGES), "--generator.channels", "16", "--out", str(run)]
    engine = ["--engine.threads", "1", "--engine.precision", "fp32"]
    subprocess.run([sys.executable, "-m", "velogan", *train, *engine], check=True)
    shutil.copy(run / f"checkpoints/{IMAGES:09d}/G_A.ema.safetensors", folder / "apples2oranges.safetensors")
    words = ["evaluate", str(run), "--checkpoint", "last", "--json"]
    done = subprocess.run([sys.executable, "-m", "velogan", *words], check=True, stdout=subprocess.PIPE, text=True)
    for score in json.loads(done.stdout.splitlines()[-1])["scores"]:
        if (score["name"], score["direction"], score["weights"]) == ("psnr_object_db", "a2b", "ema"):
            print(f"object {score['value']:.1f} dB, doing nothing {score['baseline']:.1f} dB")
