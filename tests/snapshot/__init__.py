"""Every plan and every kernel of a corpus of programs as text, and the difference of two such
folders: what a change to weft's inside did to the code that it makes.

In comes the corpus (`corpus.py`), out come text files (`record.py`) that depend on nothing but
weft's sources, LLVM and the target. `inside.py` alone knows how plans look inside of weft.

    python tests/snapshot dump FOLDER    # some minutes of one core
    python tests/snapshot diff BEFORE AFTER
"""
