"""The paper's tables and figures in small: variants (a method or an ablation, per seed), statistics, a report."""
