"""Export of a trained model and its tokenizer to a folder in Hugging Face's format."""

import json
from pathlib import Path
from typing import Any

from experiments._texts.bpe import SPECIAL
from experiments._texts.types import Corpus
from experiments.gpt2 import data
from tensorjax.models import gpt2


def write(model: gpt2.GPT2, corpus: Corpus, folder: Path) -> None:
    """Writes weights, configuration and tokenizer in Hugging Face's format.

    Without ``tokenizer_config.json``, readers take the tokenizer of a GPT-2 to have the token
    "<|endoftext|>", and give it an id behind the last row of the token table.

    Args:
        model: A dense one.
        corpus: That it was trained on.
        folder: One that does not exist yet, or is empty.

    Raises:
        ValueError: The tokenizer has ids that the model has no rows for.
    """
    ids = token_ids(corpus)
    most = max(ids.values())
    if most >= model.config.vocabulary:
        raise ValueError(
            f"vocabulary: expected more than the largest id of the tokenizer, {most}, got "
            f"{model.config.vocabulary}"
        )
    gpt2.to_huggingface(model, folder, end=data.END)
    (folder / "tokenizer.json").write_text(corpus.tokenizer)
    for name, content in _files(model.config.length).items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def token_ids(corpus: Corpus) -> dict[str, int]:
    """Returns the ids of all tokens, added ones included."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(corpus.tokenizer).get_vocab(with_added_tokens=True)


def _files(length: int) -> dict[str, dict[str, Any]]:
    pad, unknown, _, end, mask = SPECIAL
    special = {"bos_token": end, "eos_token": end, "unk_token": unknown, "pad_token": pad,
               "mask_token": mask}  # fmt: skip
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
    return {
        "special_tokens_map.json": special,
        "tokenizer_config.json": {**options, **special},
        "generation_config.json": {
            "bos_token_id": data.END,
            "eos_token_id": data.END,
            "pad_token_id": SPECIAL.index(pad),
        },
    }
