"""The domains that come with the project: ColBench's two halves, programs and pages."""
