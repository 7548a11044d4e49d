"""The functions behind `sweetrl.collect`, `sweetrl.train` and the like; the stages of the pipeline call the same ones."""
