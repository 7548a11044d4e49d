"""`python -m sweetrl.cli`: the program `sweetrl`, where its folder is not on the PATH."""

from sweetrl.cli.main import main

main()
