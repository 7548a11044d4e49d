"""A trained agent for others: as a folder for the Hugging Face Hub, and behind an OpenAI-compatible endpoint."""
