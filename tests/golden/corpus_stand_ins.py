"""Files that stand for what a corpus notebook downloads or expects beside it: made up, of the same form, small.

Modules that it imports from its folder lie in stand_ins/ as they are; the functions of `MADE` write data.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

MODULES = Path(__file__).parent / "stand_ins"
_WORDS = {
    "good": ["fine", "warm", "funny", "great", "moving", "clever", "bright", "lovely"],
    "bad": ["dull", "slow", "flat", "noisy", "empty", "weak", "terrible"],
    "any": ["the", "a", "film", "movie", "plot", "i", "it", "dogs", "love", "acting", "story", "and", "was", "with"],
}


def put(names: Iterable[str], folder: Path) -> None:
    """Puts what the names stand for into the notebook's folder."""
    for name in names:
        source = MODULES / name
        if name in MADE:
            MADE[name](folder)
        elif source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def _sentence(rng: random.Random, good: bool, words: int) -> str:
    kinds = ("any" if rng.random() < 0.6 else "good" if good else "bad" for _ in range(words))
    return " ".join(rng.choice(_WORDS[kind]) for kind in kinds)


def reviews(folder: Path) -> None:
    """data/reviews.txt and data/labels.txt: 500 reviews, one a line."""
    rng = random.Random(0)
    labels = [rng.random() < 0.5 for _ in range(500)]
    (folder / "data").mkdir()
    texts = [_sentence(rng, good, rng.randint(5, 60)) for good in labels]
    (folder / "data/reviews.txt").write_text("\n".join(texts) + "\n")
    (folder / "data/labels.txt").write_text("\n".join("positive" if good else "negative" for good in labels))


def tagged_sentences(folder: Path) -> None:
    """train.txt, dev.txt and test.txt with lines `TAG ||| sentence`."""
    rng = random.Random(1)
    for name, lines in (("train", 60), ("dev", 10), ("test", 20)):
        tags = [rng.random() < 0.5 for _ in range(lines)]
        texts = [f"{int(good)} ||| {_sentence(rng, good, rng.randint(3, 9))}" for good in tags]
        (folder / f"{name}.txt").write_text("\n".join(["1 ||| i love dogs", *texts]) + "\n")


def sunspots(folder: Path) -> None:
    """sunspots.csv: a few months of years before and after 2000, `;` between the columns."""
    rng = random.Random(2)
    lines = []
    for year in (1998, 1999, 2000):
        for day in range(150):
            month, spots = day // 28 + 1, 80 + 60 * ((day % 27) / 27 - 0.5) + rng.random() * 10
            observed = 0 if year == 1998 and day < 5 else 9
            lines.append(f"{year};{month};{day % 28 + 1};{year + day / 365:.3f};{spots:.0f};1.5;{observed};1")
    (folder / "sunspots.csv").write_text("\n".join(lines) + "\n")


MADE: dict[str, Callable[[Path], None]] = {
    "reviews": reviews, "tagged_sentences": tagged_sentences, "sunspots": sunspots,
}  # fmt: skip
