"""What is compared, and whether that was enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from corpus import corpus_folder, read_entries
from golden_report import Report

HERE = Path(__file__).parent
EXAMPLES = sorted((HERE.parents[1] / "examples").glob("*.ipynb"))
NOTEBOOKS = sorted((HERE / "notebooks").glob("*.py"))
GPU_CELLS_MIN = 150
OWN_MIN = 20
CORPUS_MIN = 10
# Training and inference as people write them, which ask much the same of us; each other notebook of ours is about one
# feature. Of these, and of other people's notebooks, the gate compares every third by name.
PROGRAMS = frozenset({
    "averaged_models", "char_rnn", "dqn_replay", "embeddings_search", "finetune_groups", "gan_two_optimizers",
    "gradient_accumulation", "image_filters", "inference_text", "lora_adapters", "mixed_precision", "schedules",
    "tiny_transformer", "trainer_class", "vae_digits",
})  # fmt: skip
GATE_EVERY = 3


def left_to_soak(names: Iterable[str]) -> frozenset[str]:
    """Of notebooks that are much alike those that only `make golden` and `make soak` compare."""
    ordered = sorted(names)
    return frozenset(ordered) - frozenset(ordered[::GATE_EVERY])


def shortfalls(report: Report) -> list[str]:
    """Why a whole run, or the gate's part of it, has not compared enough, in words; nothing of any other part."""
    compared = {result.notebook for result in report.results}
    missing = {path.stem for path in (*EXAMPLES, *NOTEBOOKS)} - compared
    if missing - left_to_soak(PROGRAMS):
        return []
    corpus = None if corpus_folder() is None else {entry.name for entry in read_entries()}
    not_asked = left_to_soak(corpus or ()) if missing else ()
    return lacking(len(NOTEBOOKS), report.gpu_cells(), corpus, compared | set(not_asked))


def lacking(own: int, gpu_cells: int, corpus: Collection[str] | None, compared: Collection[str]) -> list[str]:
    """The same of counts; `corpus`: the notebooks of other people that are listed, None if they are not here."""
    found = []
    if own < OWN_MIN:
        found.append(f"{own} notebooks of our own are fewer than {OWN_MIN}")
    if gpu_cells < GPU_CELLS_MIN:
        found.append(f"{gpu_cells} cells on a GPU are fewer than {GPU_CELLS_MIN}")
    if corpus is not None and len(corpus) < CORPUS_MIN:
        found.append(f"{len(corpus)} listed notebooks of the corpus are fewer than {CORPUS_MIN}")
    missing = sorted(set(corpus or ()) - set(compared))
    if missing:
        found.append(f"{len(missing)} listed notebooks of the corpus were not compared: {', '.join(missing)}")
    return found
