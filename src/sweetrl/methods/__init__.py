"""How an agent is trained: each method says what it needs, what its data are, and which trainer learns from them."""
