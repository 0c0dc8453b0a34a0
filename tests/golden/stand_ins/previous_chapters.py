"""A small language model of the form that a book's notebooks import from a file of this name."""

import torch
from torch import nn


class GPTModel(nn.Module):
    """Token and place embeddings, causal transformer layers, a head over the vocabulary."""

    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg["vocab_size"], cfg["emb_dim"])
        self.pos_emb = nn.Embedding(cfg["context_length"], cfg["emb_dim"])
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(cfg["emb_dim"], cfg["n_heads"], 4 * cfg["emb_dim"], cfg["drop_rate"])
            for _ in range(cfg["n_layers"])
        )
        self.out_head = nn.Linear(cfg["emb_dim"], cfg["vocab_size"], bias=cfg["qkv_bias"])

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = (self.tok_emb(ids) + self.pos_emb(places)).transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(len(x), device=ids.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.out_head(x.transpose(0, 1))
