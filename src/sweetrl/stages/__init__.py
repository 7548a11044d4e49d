"""stages"""

from sweetrl.threads import wait_briefly

wait_briefly()  # before a stage imports torch
