"""stages"""

from sweetrl.console.progress import wait_briefly

wait_briefly()  # before a stage imports torch
