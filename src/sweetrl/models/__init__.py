"""Folders of models: what they may hold, how they are loaded, under which licence they are."""
