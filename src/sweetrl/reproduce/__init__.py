"""The paper's tables and figures in small: variants (a method or an ablation on a seed), their statistics, the report."""
