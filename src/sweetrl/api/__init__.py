"""The functions behind `sweetrl.collect`, `sweetrl.train` and the like; the pipeline's stages call the same ones."""
