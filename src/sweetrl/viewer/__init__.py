"""`sweetrl view`: every dialogue in a browser, from the project's own files or as a folder that opens without a server.

sources    which dialogues a folder, a run or a registered version has
index      a compact table of them, made by streaming once and kept in a cache; their words stay on the disk
dialogue   one dialogue with all that is known about it
overview   what is said of all of them together, beside what the page computes from the table: runs, costs, curves
ranked     candidates, preference pairs and token log-ratios of a ranking, by dialogue
server     the page and its JSON at an address of this machine
export     the same page with its data as a folder of files
labels     what people say of dialogues, which an import takes as their rewards
heat       what the critic's advantage is made of, token by token
static/    the page: plain scripts and one style sheet, which a browser takes as they are
"""
