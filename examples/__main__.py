"""`python -m examples NAME [--once]`."""

from __future__ import annotations

import sys

from examples.runner import main

sys.exit(main(sys.argv[1:]))
