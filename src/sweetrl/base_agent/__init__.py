"""The small base agent: its tokenizer, its pre-training, and the warm start of a pretrained model."""
