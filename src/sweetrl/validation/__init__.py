"""Is a collected batch fit to learn from? Flat tables of verdicts, and Great Expectations' rules over them."""
