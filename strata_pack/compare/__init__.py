"""How far a pack's outputs are from its source: KL divergence, perplexity, top-1."""
