"""All that touches the language model: rows of tokens, adapters, log-probabilities, dialogue trees."""
