"""A small BERT made in code with its tokenizer, for the clients that export and quantize one themselves."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

WORDS = 200


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words ``w0``, ``w1``, …"""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate(special + [f"w{i}" for i in range(WORDS - len(special))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def classifier() -> BertForSequenceClassification:
    """Return a BERT with two layers and three labels."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        num_labels=3,
    )
    return BertForSequenceClassification(config).eval()


def save(folder: Path) -> Path:
    """Write both, as ``save_pretrained`` does."""
    classifier().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
