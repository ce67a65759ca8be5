"""Remakes the golden files. Run by hand after `pip install -r requirements.txt`; README.md describes each
one.

    python make.py                  everything
    python make.py models text      some of: models, skein-7m, text, templates, expressions, vectors
"""

import sys

import expressions
import models
import templates
import text
import vectors

ROOMS = {"models": models.make, "skein-7m": models.make_skein_7m, "text": text.make, "templates": templates.make, "expressions": expressions.make, "vectors": vectors.make}

if __name__ == "__main__":
    for name in sys.argv[1:] or ROOMS:
        ROOMS[name]()
