"""What runs a stage: its run in MLflow, its scratch folder, shares of it, and folders of its own."""
