"""A fuzzer of files that come from others: valid examples, mutated, and read by every command that reads them.

`corpus` makes the examples, `mutations` changes them, `cases` says which command reads which file, `server` runs one
case in a fork, under `guard`, and `harness` runs many and tells what was found.
"""
