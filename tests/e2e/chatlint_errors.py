"""Run by the Python of an environment that has chatlint: prints its errors for the named templates as JSON."""

from __future__ import annotations

import json
import sys

from chatlint.check import check
from chatlint.render import Template

errors = {path: [[one.prop, one.shape] for one in check(Template.from_path(path)).errors] for path in sys.argv[1:]}
print(json.dumps(errors))
