"""The promotion gate: what it can see, what it may spend, what it decides, and in which words (docs/gate.md)."""
